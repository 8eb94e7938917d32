"""An agent for the command line: adds what the payload gives, and prints as it goes."""

from __future__ import annotations

from typing import Any

from rollway_shim import RolloutApp

app = RolloutApp()
print("imported")


@app.rollout_entrypoint
async def add(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    print("chatter that is not the result")
    rollout = payload.get("_rollout", {})
    return {"rewards": payload["a"] + payload["b"], "session": context.session_id, "model": rollout.get("model_id")}
