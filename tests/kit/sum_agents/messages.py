"""Anthropic's Messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anthropic

from tests.kit.sum_agents.agent import SCHEMA, SHOTS, SYSTEM, Call, Shown, SumAgent, question, statement


class MessagesAgent(SumAgent):
    """Anthropic's Messages: results go back beside each other in one user message."""

    dialect = "messages"

    def __init__(self, base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self.client = anthropic.AsyncAnthropic(
            base_url=base_url, api_key="EMPTY", max_retries=self._retries, timeout=900
        )
        self.messages: list[dict[str, Any]] = []
        for sums in SHOTS:
            ids = [f"shot-{a}-{b}" for a, b in sums]
            self._question(question(sums))
            uses = [
                {"type": "tool_use", "id": i, "name": "add", "input": {"a": a, "b": b}}
                for i, (a, b) in zip(ids, sums, strict=True)
            ]
            self.messages.append({"role": "assistant", "content": uses})
            self._results([Call(i, "") for i in ids], [str(a + b) for a, b in sums])
            self.messages.append({"role": "assistant", "content": statement(sums)})
        self._blocks: list[Any] = []

    def _question(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def _results(self, calls: Sequence[Call], results: list[str]) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": c.call_id, "content": r, "is_error": r.startswith("error")}
            for c, r in zip(calls, results, strict=True)
        ]
        self.messages.append({"role": "user", "content": blocks})

    def _body(self) -> dict[str, Any]:
        return {
            "model": self._model, "system": SYSTEM, "messages": self.messages, "max_tokens": self.max_tokens,
            "tools": [{"name": "add", "description": "Add", "input_schema": SCHEMA}],
            "extra_headers": self._headers,
            "extra_body": {"temperature": self.temperature, "seed": self.turns, **self.extra},
        }  # fmt: skip

    async def _begin(self) -> Any:
        return await self.client.messages.create(**self._body(), stream=True)

    async def ask(self, *, stream: bool) -> Shown:
        if stream:
            self._blocks, usage = await _streamed_blocks(await self._begin())
        else:
            said = await self.client.messages.create(**self._body())
            self._blocks, usage = said.content, said.usage
        found = [b if isinstance(b, dict) else b.model_dump() for b in self._blocks]
        text = "".join(b["text"] for b in found if b["type"] == "text")
        calls = [Call(b["id"], json.dumps(b["input"])) for b in found if b["type"] == "tool_use"]
        return Shown(text, tuple(calls), usage.input_tokens, usage.output_tokens)

    def _keep(self) -> None:
        self.messages.append({"role": "assistant", "content": self._blocks})

    async def close(self) -> None:
        await self.client.close()


async def _streamed_blocks(events: Any) -> tuple[list[dict[str, Any]], Any]:
    """The content and the usage. The SDK's own accumulation gives up on arguments that are no JSON, which models do
    write; such a call's input is what the gateway's whole answers have for it."""
    blocks: list[dict[str, Any]] = []
    pieces: dict[int, str] = {}
    usage: Any = None
    async for event in events:
        match event.type:
            case "message_start":
                usage = event.message.usage
            case "content_block_start":
                blocks.append(event.content_block.model_dump(exclude_none=True))
            case "content_block_delta" if event.delta.type == "text_delta":
                blocks[event.index]["text"] += event.delta.text
            case "content_block_delta" if event.delta.type == "input_json_delta":
                pieces[event.index] = pieces.get(event.index, "") + event.delta.partial_json
            case "message_delta":
                usage.output_tokens = event.usage.output_tokens
    for index, raw in pieces.items():
        blocks[index]["input"] = _input(raw)
    return blocks, usage


def _input(raw: str) -> dict[str, Any]:
    try:
        given = json.loads(raw or "{}")
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"INVALID_JSON": raw}
