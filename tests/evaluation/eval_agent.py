"""An agent for evaluations: asks its model once and scores the answer. A row may tell it to raise or to wait."""

from __future__ import annotations

import time
from pathlib import Path

import openai

from rollway_shim import RolloutApp

app = RolloutApp()


@app.rollout_entrypoint
def solve(payload: dict) -> dict:
    config = payload["_rollout"]
    if payload.get("act") == "raise":
        raise ValueError("told to raise")
    while payload.get("wait_for") and not Path(payload["wait_for"]).exists():
        time.sleep(0.05)
    client = openai.OpenAI(base_url=config["base_url"], api_key=config.get("api_key") or "EMPTY")
    answer = client.chat.completions.create(
        model=config["model_id"], messages=[{"role": "user", "content": payload["prompt"]}]
    )
    said = answer.choices[0].message.content
    return {"rewards": float(said == payload["answer"]), "said": said}


app.run()
