"""A small agent on the real shim and OpenAI client: two model calls, a score of its own words, and planned deaths.

Of the first two groups that come, one loses one session and the other two: those processes kill themselves with SIGKILL
after their first model call. $DEATHS is a folder where sessions agree on who they are.
"""

import os
import signal
from pathlib import Path

import openai

from rollway_shim import RolloutApp

app = RolloutApp()


def must_die(folder: Path, group: str) -> bool:
    """Symbolic links are made atomically, content and all: the first to make one owns what it names."""
    for name, deaths in (("one", 1), ("two", 2)):
        if owned(folder / name, group) == group:
            return any(owned(folder / f"{name}-{i}", str(os.getpid())) == str(os.getpid()) for i in range(deaths))
    return False


def owned(link: Path, claim: str) -> str:
    try:
        link.symlink_to(claim)
    except FileExistsError:
        return str(link.readlink())
    return claim


@app.rollout_entrypoint
def rollout(payload: dict, context) -> dict:
    cfg = payload["_rollout"]
    messages = [{"role": "user", "content": payload["prompt"]}]
    said = ""
    with openai.OpenAI(base_url=cfg["base_url"], api_key=cfg["api_key"]) as client:
        for _ in range(2):
            answer = client.chat.completions.create(model=cfg["model_id"], messages=messages, **cfg["sampling_params"])
            text = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Sure?"}]
            said += text
            if must_die(Path(os.environ["DEATHS"]), cfg["input_id"]):
                os.kill(os.getpid(), signal.SIGKILL)
    return {"rewards": [0.0, sum(said.encode()) % 97 / 97], "final_text": said}


if __name__ == "__main__":
    app.run()
