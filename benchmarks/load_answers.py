"""What the load engine answers: vLLM's wire format, as bytes made once per script.

Ids are SmolLM2's, so that a gateway that renders and decodes with that tokenizer meets text that fits them.
"""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass

import orjson

from benchmarks.load_completions import ANY_IDS, Completions, Spliced, any_usage

MODEL = "scripted"
CONTEXT = 1 << 20
WORDS = {
    "time": 655, "year": 713, "people": 701, "way": 970, "day": 1194, "man": 555, "thing": 2775, "woman": 4166,
    "life": 1029, "child": 811, "world": 905, "school": 1125, "state": 1215, "family": 1564, "student": 2222,
    "group": 1528, "country": 1798, "problem": 1732, "hand": 1369, "part": 599, "place": 1379, "case": 1671,
    "week": 2605, "company": 2727, "system": 817, "program": 1578, "question": 1962, "work": 746, "number": 1230,
    "night": 3163, "point": 1225, "home": 1478,
}  # fmt: skip
"""Each is one token of SmolLM2 with its leading space."""


FIRST_SEED = 1_000_000
"""Of seven digits, as all that follow it."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What every call is answered. Prompts and answers are cuts of one endless sequence, so later turns extend earlier
    ones when ``prompt_tokens`` grows by what was sampled and something new."""

    prompt_tokens: int = 2048
    sampled_tokens: int = 256
    tokens_per_event: int = 1
    tick_s: float = 0.01
    """Between two events of a stream."""
    delay_s: float = 0.0
    """Before a whole answer, on average: between half of it and half as much again, evenly spread."""
    routing_bytes: int = 0
    """Expert routing per token, base64 in the answer as vLLM sends it; 0: none."""

    @property
    def events(self) -> int:
        """Of a stream, with its first (the role) and without [DONE]."""
        return 1 + -(-self.sampled_tokens // self.tokens_per_event)


def words(count: int) -> list[str]:
    """The first ``count`` words of the endless sequence."""
    chance = random.Random(7)
    return chance.choices(list(WORDS), k=count)


def _logprob(k: int) -> float:
    return -((k * 0.37) % 3.0) - 0.012345678901234


class Seeded:
    """Bytes whose prompt begins with the request's seed as its first id, so that prompts differ where seeds do."""

    def __init__(self, answer: bytes) -> None:
        self._before, _, self._after = answer.partition(b"%d" % FIRST_SEED)

    def of(self, request: bytes) -> bytes:
        at = request.find(b'"seed":') + 7
        seed = request[at : at + len(str(FIRST_SEED))] if at > 6 else b""
        return b"".join((self._before, seed if seed.isdigit() else b"%d" % FIRST_SEED, self._after))


class Answers:
    """The bytes of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        all_words = words(script.prompt_tokens + script.sampled_tokens)
        self._ids = [WORDS[w] for w in all_words]
        self._prompt = [FIRST_SEED, *self._ids[1 : script.prompt_tokens]]
        self._sampled = all_words[script.prompt_tokens :]
        self._usage = {
            "prompt_tokens": script.prompt_tokens,
            "total_tokens": script.prompt_tokens + script.sampled_tokens,
            "completion_tokens": script.sampled_tokens,
        }
        self._head = {"id": "chatcmpl-0123456789abcdef", "created": 1_700_000_000, "model": MODEL}
        n = script.sampled_tokens
        self.any_chat = Spliced(self._chat(ANY_IDS, any_usage(n)), n)
        self.chat = Seeded(whole(orjson.dumps(self._chat(self._prompt, self._usage))))
        self.generate = whole(orjson.dumps(self._generate()))
        opening, *events = self._events()
        self.any_opening = Spliced({**opening, "prompt_token_ids": ANY_IDS}, n)
        self.opening = Seeded(chunk(orjson.dumps(opening)))
        self.events = [chunk(orjson.dumps(e)) for e in events]
        """Events after the opening, the same for every prompt."""
        self.end = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        usage = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage}
        self.usage = chunk(orjson.dumps(usage))
        self.any_usage = Spliced({**usage, "usage": any_usage(n)}, n)
        self.completions = Completions(
            self._head, self._sampled, self._sampled_ids(0, n), [_logprob(k) for k in range(n)], script.tokens_per_event
        )
        self.rest = [chunk(e) for e in self.completions.rest]

    def _entries(self, lo: int, hi: int) -> list[dict[str, object]]:
        return [
            {"token": " " + w, "logprob": _logprob(lo + k), "bytes": list(b" " + w.encode()), "top_logprobs": []}
            for k, w in enumerate(self._sampled[lo:hi])
        ]

    def _text(self, lo: int, hi: int) -> str:
        return "".join(" " + w for w in self._sampled[lo:hi])

    def _sampled_ids(self, lo: int, hi: int) -> list[int]:
        return [WORDS[w] for w in self._sampled[lo:hi]]

    def _routing(self) -> str | None:
        """A .npy file of uint8, as vLLM writes it: a row for each token but the last, one expert in each layer."""
        rows, per = len(self._ids) - 1, self.script.routing_bytes
        if not per:
            return None
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {per}, 1), }}".ljust(117) + "\n"
        file = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        return base64.b64encode(file + random.Random(3).randbytes(rows * per)).decode()

    def _chat(self, prompt: object, usage: object) -> dict[str, object]:
        n = self.script.sampled_tokens
        message = {
            "role": "assistant", "content": self._text(0, n), "refusal": None, "annotations": None, "audio": None,
            "function_call": None, "reasoning": None,
        }  # fmt: skip
        choice = {
            "index": 0, "message": message, "logprobs": {"content": self._entries(0, n)}, "finish_reason": "length",
            "stop_reason": None, "token_ids": self._sampled_ids(0, n), "routed_experts": self._routing(),
        }  # fmt: skip
        return {
            **self._head, "object": "chat.completion", "choices": [choice], "service_tier": None,
            "system_fingerprint": "scripted-load", "usage": usage, "prompt_logprobs": None,
            "prompt_token_ids": prompt, "prompt_text": None, "kv_transfer_params": None,
        }  # fmt: skip

    def _generate(self) -> dict[str, object]:
        n = self.script.sampled_tokens
        ids = self._sampled_ids(0, n)
        content = [{"token_id": i, "logprob": _logprob(k), "rank": 1, "top_logprobs": []} for k, i in enumerate(ids)]
        choice = {
            "index": 0, "logprobs": {"content": content}, "finish_reason": "length", "stop_reason": None,
            "token_ids": ids, "routed_experts": self._routing(),
        }  # fmt: skip
        return {
            "request_id": "generate-tokens-0123456789abcdef", "created": 1_700_000_000, "model": MODEL,
            "choices": [choice], "usage": self._usage, "prompt_logprobs": None, "kv_transfer_params": None,
        }  # fmt: skip

    def _events(self) -> list[dict[str, object]]:
        head = {**self._head, "object": "chat.completion.chunk"}
        opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        events: list[dict[str, object]] = [
            {**head, "choices": [opening], "prompt_token_ids": self._prompt, "prompt_text": None}
        ]
        n, step = self.script.sampled_tokens, self.script.tokens_per_event
        for lo in range(0, n, step):
            hi = min(lo + step, n)
            choice: dict[str, object] = {
                "index": 0, "delta": {"content": self._text(lo, hi)}, "logprobs": {"content": self._entries(lo, hi)},
                "finish_reason": "length" if hi == n else None, "token_ids": self._sampled_ids(lo, hi),
            }  # fmt: skip
            events.append({**head, "choices": [choice]})
        return events


def whole(body: bytes, status: str = "200 OK") -> bytes:
    """A JSON answer with its head."""
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status.encode(), len(body), body,
    )  # fmt: skip


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(event: bytes) -> bytes:
    return framed(b"data: " + event + b"\n\n")
