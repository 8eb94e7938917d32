"""An agent as it is built into an image: bedrock-agentcore's own app on its own port 8080, no word of $PORT."""

from __future__ import annotations

import sys
from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from beside_the_agent import GREETING

app = BedrockAgentCoreApp()


@app.entrypoint
def handle(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    return {"greeting": GREETING, "session_id": context.session_id, "argv": sys.argv[1:], "payload": payload}


if __name__ == "__main__":
    app.run()
