"""A rollout agent on our shim: one model call, then the reward its payload names."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from rollway_shim import RolloutApp

app = RolloutApp()


@app.rollout_entrypoint
def rollout(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    with (Path(payload["runs"]) / context.session_id).open("a") as f:
        f.write("run\n")
    config = payload["_rollout"]
    request = urllib.request.Request(
        f"{config['base_url']}/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": payload["prompt"]}]}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {config['api_key']}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        json.loads(answer.read())
    return {"rewards": payload["reward"]}


if __name__ == "__main__":
    app.run()
