"""The demo agent: a Strands math agent with a calculator, scored on its final number. See README.md."""

from __future__ import annotations

import inspect
import os
from typing import Any

from calculator import evaluate
from openai.resources.chat.completions import AsyncCompletions
from pydantic import BaseModel, Field
from reward import ArithmeticReward, final_number
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models.openai import OpenAIModel
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException

from rollway_shim import RolloutApp

app = RolloutApp()
reward = ArithmeticReward()

SYSTEM = "You solve math problems. Use the calculator tool for arithmetic."
ASK = 'Reply with only the final number after "####", like: #### 7'
SOLVING_CALLS = 4
"""Model calls at most before the final number is asked for."""
_OPENAI_PARAMETERS = frozenset(inspect.signature(AsyncCompletions.create).parameters)


class Problem(BaseModel):
    """The dataset row. Text only: content blocks from outside could make the agent run a tool unasked."""

    prompt: str = Field(min_length=1)
    answer: str = Field(min_length=1)


@tool
def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: For example "12 * (3 + 4)".
    """
    return evaluate(expression)


def model_of(rollout: dict[str, Any]) -> OpenAIModel:
    """The model that `_rollout` names, its sampling_params as they are; outside training, OpenAI's own variables."""
    model_id = rollout.get("model_id") or os.environ.get("OPENAI_MODEL")
    if not model_id:
        raise ValueError("no model: give _rollout.model_id, or set OPENAI_MODEL")
    client: dict[str, Any] = {"api_key": rollout.get("api_key") or os.environ.get("OPENAI_API_KEY") or "EMPTY"}
    if rollout.get("base_url"):
        client["base_url"] = rollout["base_url"]
    given = rollout.get("sampling_params") or {}
    params = {k: v for k, v in given.items() if k in _OPENAI_PARAMETERS}
    engines_own = {k: v for k, v in given.items() if k not in _OPENAI_PARAMETERS}  # top_k and the like
    if engines_own:
        params["extra_body"] = {**params.get("extra_body", {}), **engines_own}
    return OpenAIModel(client_args=client, model_id=model_id, params=params)


async def converse(agent: Agent, text: str, calls: int) -> None:
    """One user message and up to ``calls`` model calls. A model that runs out of tokens or context ends its own
    message, which is its doing and is scored as it stands; a call that fails raises."""
    try:
        await agent.invoke_async(text, limits={"turns": calls})
    except (MaxTokensReachedException, ContextWindowOverflowException):
        return


def last_text(agent: Agent) -> str:
    """What the model said last; "" when it answered the last question with nothing."""
    last = agent.messages[-1]
    blocks = last["content"] if last["role"] == "assistant" else []
    return "".join(block.get("text", "") for block in blocks)


def calculated(agent: Agent) -> int:
    """Tool calls that were carried out; a call of no known tool, or of something that is no arithmetic, was not."""
    results = [block["toolResult"] for m in agent.messages for block in m["content"] if "toolResult" in block]
    return sum(result["status"] == "success" for result in results)


@app.rollout_entrypoint
async def rollout(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    problem = Problem.model_validate(payload)
    agent = Agent(
        model=model_of(payload.get("_rollout") or {}),
        tools=[calculator],
        system_prompt=SYSTEM,
        callback_handler=None,
        conversation_manager=NullConversationManager(),  # history is never rewritten: each prompt extends the last
    )
    await converse(agent, problem.prompt, SOLVING_CALLS)
    await converse(agent, ASK, 1)
    text = last_text(agent)
    return {
        "rewards": reward(response_text=text, ground_truth=problem.answer),
        "final_text": text,
        "final_number": final_number(text)[0],
        "model_calls": sum(m["role"] == "assistant" for m in agent.messages),
        "tool_calls": calculated(agent),
    }


if __name__ == "__main__":
    app.run()
