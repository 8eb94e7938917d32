"""Text completions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.kit.sum_agents.agent import SHOTS, SYSTEM, Call, Shown, SumAgent, openai_client, question, statement


class CompletionsAgent(SumAgent):
    """Text completions, the conversation written by the agent's own hand: as token ids, where what was sampled goes
    back as it was, or as a string, where only its text does."""

    dialect = "completions"

    def __init__(self, base_url: str, *, tokenizer: Path, ids: bool = True, **options: Any) -> None:
        super().__init__(base_url, **options)
        self.client = openai_client(self._base_url, self._retries)
        self._ids = ids
        self._tokenizer = load_tokenizer(tokenizer)
        self.prompt: list[int] = []
        self.text = ""
        self._write("system", f"{SYSTEM} Call the tool as shown.")
        for sums in SHOTS:
            self._write("user", question(sums))
            call = '<tool_call>\n{{"name": "add", "arguments": {{"a": {}, "b": {}}}}}\n</tool_call>'
            self._write("assistant", "\n".join(call.format(a, b) for a, b in sums))
            self._results([], [str(a + b) for a, b in sums])
            self._write("assistant", statement(sums))
        self._answer: tuple[str, list[int]] = ("", [])

    def _write(self, role: str, text: str) -> None:
        self._append(f"<|im_start|>{role}\n{text}<|im_end|>\n")

    def _append(self, text: str) -> None:
        self.text += text
        self.prompt += self._tokenizer.encode(text, add_special_tokens=False).ids

    def _question(self, text: str) -> None:
        self._write("user", text)

    def _results(self, calls: Sequence[Call], results: list[str]) -> None:
        for result in results:
            self._write("tool", result)

    def _body(self) -> dict[str, Any]:
        header = "<|im_start|>assistant\n"
        ids = self._tokenizer.encode(header, add_special_tokens=False).ids
        return {
            "model": self._model, "prompt": [*self.prompt, *ids] if self._ids else self.text + header,
            "temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.turns,
            "extra_headers": self._headers, "extra_body": {"return_token_ids": self._ids, **self.extra},
        }  # fmt: skip

    async def _begin(self) -> Any:
        return await self.client.completions.create(**self._body(), stream=True, stream_options={"include_usage": True})

    async def ask(self, *, stream: bool) -> Shown:
        text, sampled, usage = "", [], None
        if stream:
            async for chunk in await self._begin():
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.text
                    sampled += getattr(choice, "token_ids", None) or []
        else:
            answer = await self.client.completions.create(**self._body())
            (only,), usage = answer.choices, answer.usage
            text, sampled = only.text, getattr(only, "token_ids", None) or []
        self._answer = (text, sampled)
        calls = [Call("", said) for said in re.findall(r'"arguments": (\{.*?\})\}\s*</tool_call>', text)]
        assert usage is not None
        return Shown(text, tuple(calls), usage.prompt_tokens, usage.completion_tokens)

    def _keep(self) -> None:
        text, sampled = self._answer
        self._append("<|im_start|>assistant\n")
        end = self._tokenizer.token_to_id("<|im_end|>")
        before = list(self.prompt)
        self._append(f"{text}<|im_end|>\n")
        if self._ids:
            close = "\n" if sampled[-1] == end else "<|im_end|>\n"
            self.prompt = [*before, *sampled, *self._tokenizer.encode(close, add_special_tokens=False).ids]

    async def close(self) -> None:
        await self.client.close()


@cache
def load_tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))
