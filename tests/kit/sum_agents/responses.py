"""OpenAI's Responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.kit.sum_agents.agent import (
    FUNCTION,
    SHOTS,
    SYSTEM,
    AnswerBroken,
    Call,
    Shown,
    SumAgent,
    openai_client,
    question,
    statement,
)


class ResponsesAgent(SumAgent):
    """Responses. Sends the SDK's items back, or names the previous response and sends only what is new."""

    dialect = "responses"

    def __init__(self, base_url: str, *, by_id: bool = False, **options: Any) -> None:
        super().__init__(base_url, **options)
        self.client = openai_client(self._base_url, self._retries)
        self._by_id = by_id
        self.items: list[Any] = []
        for sums in SHOTS:
            ids = [f"shot-{a}-{b}" for a, b in sums]
            self._question(question(sums))
            self.items += [
                {"type": "function_call", "call_id": i, "name": "add", "arguments": json.dumps({"a": a, "b": b})}
                for i, (a, b) in zip(ids, sums, strict=True)
            ]
            self._results([Call(i, "") for i in ids], [str(a + b) for a, b in sums])
            self.items.append({"role": "assistant", "content": statement(sums)})
        self._said: Any = None
        self._answer: Any = None

    def _question(self, text: str) -> None:
        self.items.append({"role": "user", "content": text})

    def _results(self, calls: Sequence[Call], results: list[str]) -> None:
        self.items += [
            {"type": "function_call_output", "call_id": c.call_id, "output": r}
            for c, r in zip(calls, results, strict=True)
        ]

    def _body(self) -> dict[str, Any]:
        body = {
            "model": self._model, "input": self.items, "instructions": SYSTEM, "temperature": self.temperature,
            "max_output_tokens": self.max_tokens, "tools": [{"type": "function", "strict": False, **FUNCTION}],
            "extra_headers": self._headers, "extra_body": {"seed": self.turns, **self.extra},
        }  # fmt: skip
        if self._by_id and self._answer is not None:
            body["previous_response_id"] = self._answer.id
        return body

    async def _begin(self) -> Any:
        return await self.client.responses.create(**self._body(), stream=True)

    async def ask(self, *, stream: bool) -> Shown:
        if stream:
            last = None
            async for event in await self._begin():
                last = event
            if last is None or last.type not in ("response.completed", "response.incomplete"):
                raise AnswerBroken(repr(last))
            said = last.response
        else:
            said = await self.client.responses.create(**self._body())
        self._said = said
        calls = [Call(item.call_id, item.arguments) for item in said.output if item.type == "function_call"]
        return Shown(said.output_text, tuple(calls), said.usage.input_tokens, said.usage.output_tokens)

    def _keep(self) -> None:
        self._answer = self._said
        if self._by_id:
            self.items = []
        else:
            self.items += self._answer.output

    async def close(self) -> None:
        await self.client.close()
