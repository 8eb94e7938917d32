"""A scripted agent: does as its payload says, through the real shim and the real OpenAI client.

``turns`` model calls in one growing conversation; before the last it waits for the file ``wait_for`` if one is named;
it leaves one line in ``diary`` each time it is run; it returns the rewards it is told to, or raises ``fail``.
"""

import json
import os
import time
from pathlib import Path

import openai

from rollway_shim import RolloutApp

app = RolloutApp()


@app.rollout_entrypoint
def call(payload: dict, context) -> dict:
    cfg = payload["_rollout"]
    with Path(payload["diary"]).open("a") as diary:
        diary.write(json.dumps({"session": context.session_id, "exp": cfg["exp_id"], "pid": os.getpid()}) + "\n")
    turns = payload.get("turns", 2)
    messages = [{"role": "user", "content": payload["prompt"]}]
    with openai.OpenAI(base_url=cfg["base_url"], api_key=cfg.get("api_key") or "EMPTY", max_retries=2) as client:
        for turn in range(turns):
            if turn == turns - 1 and payload.get("wait_for"):
                _wait_for(Path(payload["wait_for"]))
            answer = client.chat.completions.create(model=cfg["model_id"] or "any", messages=messages)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
            messages += [{"role": "user", "content": f"again {turn}"}]
    if payload.get("fail"):
        raise RuntimeError(payload["fail"])
    return {"rewards": payload.get("rewards", 1.0), "said": messages[1]["content"]}


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 400
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} never appeared")
        time.sleep(0.02)


if __name__ == "__main__":
    app.run()
