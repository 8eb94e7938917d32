"""Chat completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.kit.sum_agents.agent import (
    FUNCTION,
    SHOTS,
    SYSTEM,
    Call,
    Shown,
    SumAgent,
    openai_client,
    question,
    statement,
)


class ChatAgent(SumAgent):
    """Chat completions. Every second answer goes back rewritten, as frameworks do: arguments formatted anew, text as
    parts."""

    dialect = "chat"

    def __init__(self, base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self.client = openai_client(self._base_url, self._retries)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for sums in SHOTS:
            ids = [f"shot-{a}-{b}" for a, b in sums]
            calls = [
                {"id": i, "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": a, "b": b})}}
                for i, (a, b) in zip(ids, sums, strict=True)
            ]
            self.messages += [{"role": "user", "content": question(sums)}, {"role": "assistant", "tool_calls": calls}]
            self._results([Call(i, "") for i in ids], [str(a + b) for a, b in sums])
            self.messages.append({"role": "assistant", "content": statement(sums)})
        self._answer: dict[str, Any] = {}

    def _question(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def _results(self, calls: Sequence[Call], results: list[str]) -> None:
        self.messages += [
            {"role": "tool", "tool_call_id": c.call_id, "content": r} for c, r in zip(calls, results, strict=True)
        ]

    def _body(self) -> dict[str, Any]:
        return {
            "model": self._model, "messages": self.messages, "tools": [{"type": "function", "function": FUNCTION}],
            "temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.turns,
            "extra_headers": self._headers, "extra_body": self.extra,
        }  # fmt: skip

    async def _begin(self) -> Any:
        options = {"include_usage": True}
        return await self.client.chat.completions.create(**self._body(), stream=True, stream_options=options)

    async def ask(self, *, stream: bool) -> Shown:
        if stream:
            usage = await self._streamed()
        else:
            answer = await self.client.chat.completions.create(**self._body())
            self._answer, usage = answer.choices[0].message.model_dump(exclude_none=True), answer.usage
        calls = [Call(c["id"], c["function"]["arguments"]) for c in self._answer.get("tool_calls") or ()]
        text = self._answer.get("content") or ""
        return Shown(text, tuple(calls), usage.prompt_tokens, usage.completion_tokens)

    async def _streamed(self) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        calls: list[dict[str, Any]] = []
        usage = None
        async for chunk in await self._begin():
            usage = chunk.usage or usage
            for choice in chunk.choices:
                message["content"] += choice.delta.content or ""
                for part in choice.delta.tool_calls or ():
                    if part.index == len(calls):
                        calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
                    calls[part.index]["function"]["name"] += part.function.name or ""
                    calls[part.index]["function"]["arguments"] += part.function.arguments or ""
        self._answer = {**message, "tool_calls": calls} if calls else message
        return usage

    def _keep(self) -> None:
        answer = self._answer
        if self.turns % 2:
            calls = [{**c, "function": _formatted(c["function"])} for c in answer.get("tool_calls") or ()]
            answer = {"role": "assistant", "content": [{"type": "text", "text": answer.get("content") or ""}]}
            answer |= {"tool_calls": calls} if calls else {}
        self.messages.append(answer)

    async def close(self) -> None:
        await self.client.close()


def _formatted(function: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**function, "arguments": json.dumps(json.loads(function["arguments"]), indent=2)}
    except ValueError:
        return function
