"""A Strands agent: `strands_agent.py PROVIDER BASE_URL QUESTION` prints its answer. Runs in the agents' environment."""

from __future__ import annotations

import sys

from strands import Agent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def model_of(provider: str, url: str):
    if provider == "anthropic":
        from strands.models.anthropic import AnthropicModel

        base = url.removesuffix("/v1")
        return AnthropicModel(client_args={"base_url": base, "api_key": "EMPTY"}, model_id="m", max_tokens=64)
    if provider == "openai responses":
        from strands.models.openai_responses import OpenAIResponsesModel

        return OpenAIResponsesModel(client_args={"base_url": url, "api_key": "EMPTY"}, model_id="m")
    from strands.models.openai import OpenAIModel

    return OpenAIModel(client_args={"base_url": url, "api_key": "EMPTY"}, model_id="m")


if __name__ == "__main__":
    provider, url, question = sys.argv[1:]
    agent = Agent(model=model_of(provider, url), tools=[add], system_prompt="Add.", callback_handler=None)
    print(str(agent(question)).strip())
