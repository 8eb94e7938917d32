"""An agent as agentcore-rl-toolkit's users write it: its own app, port 8080, nothing of ours."""

import json
from pathlib import Path

import openai
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()


@app.rollout_entrypoint
def call(payload: dict, context):
    cfg = payload["_rollout"]
    with Path(payload["diary"]).open("a") as diary:
        diary.write(json.dumps({"session": context.session_id, "exp": cfg["exp_id"]}) + "\n")
    messages = [{"role": "user", "content": payload["prompt"]}]
    client = openai.OpenAI(base_url=cfg["base_url"], api_key="EMPTY")
    for turn in range(2):
        answer = client.chat.completions.create(model=cfg["model_id"], messages=messages)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
        messages += [{"role": "user", "content": f"again {turn}"}]
    return {"rewards": 0.5}


if __name__ == "__main__":
    app.run()
