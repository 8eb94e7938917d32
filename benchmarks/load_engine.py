"""A scripted engine for load: vLLM's wire format out of bytes made beforehand, at a few microseconds an answer.

It samples nothing and renders nothing. A script (POST /script) says how long the prompt and the answer are, and every
call gets the same bytes until the next script: prompt ids, sampled ids and log-probs, whether asked for or not, so that
a proxy that only passes bytes on carries the same load as one that captures. Streams advance together, one event each
per tick, as an engine's steps do. GET /tally says how many calls came.

    python -m benchmarks.load_engine --port 0        prints its URL

Ids are SmolLM2's, so that a gateway that renders and decodes with that tokenizer meets text that fits them. With
``--tokenizer FOLDER`` it says where its model lies and answers /tokenize, for a gateway that checks its rendering.

Past 300 lines because it speaks three routes in two forms; split further, the wire format could not be read in one
place.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import orjson
import uvloop

from benchmarks.load_completions import Completions, prompt_ids

if TYPE_CHECKING:
    from rollway_gateway.render import Template

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


class Answers:
    """The bytes of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        all_words = words(script.prompt_tokens + script.sampled_tokens)
        self._ids = [WORDS[w] for w in all_words]
        self._prompt = self._ids[: script.prompt_tokens]
        self._sampled = all_words[script.prompt_tokens :]
        self._usage = {
            "prompt_tokens": script.prompt_tokens,
            "total_tokens": script.prompt_tokens + script.sampled_tokens,
            "completion_tokens": script.sampled_tokens,
        }
        self._head = {"id": "chatcmpl-0123456789abcdef", "created": 1_700_000_000, "model": MODEL}
        self.chat = whole(orjson.dumps(self._chat()))
        self.generate = whole(orjson.dumps(self._generate()))
        self.events = [_chunk(orjson.dumps(e)) for e in self._events()]
        end = b"data: [DONE]\n\n"
        usage = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage}
        self.end = framed(end) + b"0\r\n\r\n"
        self.end_with_usage = _chunk(orjson.dumps(usage)) + self.end
        n = script.sampled_tokens
        self.completions = Completions(
            self._head, self._sampled, self._sampled_ids(0, n), [_logprob(k) for k in range(n)], script.tokens_per_event
        )
        self.rest = [_chunk(e) for e in self.completions.rest]

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
        n, per = len(self._ids) - 1, self.script.routing_bytes
        return base64.b64encode(random.Random(3).randbytes(n * per)).decode() if per else None

    def _chat(self) -> dict[str, object]:
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
            "system_fingerprint": "scripted-load", "usage": self._usage, "prompt_logprobs": None,
            "prompt_token_ids": self._prompt, "prompt_text": None, "kv_transfer_params": None,
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


def _chunk(event: bytes) -> bytes:
    return framed(b"data: " + event + b"\n\n")


class Engine:
    """What the connections share: the script's answers, the streams under way, the tally."""

    def __init__(self, tokenizer: Path | None) -> None:
        self.answers = Answers(Script())
        self.tokenizer = tokenizer
        self._template: Template | None = None
        if tokenizer is not None:
            from rollway_gateway.render import Template

            self._template = Template.load(tokenizer)
        self.calls = 0
        self.captured = 0
        """Calls that asked for token ids, or were token-in."""
        self._streams: dict[Connection, Iterator[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set_script(self, body: bytes) -> None:
        self.answers = Answers(Script(**orjson.loads(body)))

    def tally(self) -> dict[str, int]:
        return {"calls": self.calls, "captured": self.captured, "streaming": len(self._streams)}

    def start_stream(self, connection: Connection, events: Iterator[bytes]) -> None:
        connection.write(STREAM_HEAD)
        self._streams[connection] = events
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.answers.script.tick_s, self._tick)

    def forget(self, connection: Connection) -> None:
        self._streams.pop(connection, None)

    def _tick(self) -> None:
        for connection, events in list(self._streams.items()):
            event = next(events, None)
            if event is None:
                del self._streams[connection]
            else:
                connection.write(event)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.answers.script.tick_s, self._tick) if self._streams else None

    def tokenize(self, body: bytes) -> bytes | None:
        """The answer to /tokenize; None: this engine has no tokenizer, or the template refuses."""
        if self._template is None:
            return None
        from rollway_gateway.render import Options
        from rollway_wire.problems import RollwayError

        asked = orjson.loads(body)
        try:
            ids = self._template.prompt_ids(asked["messages"], Options(tools=asked.get("tools"))).tolist()
        except RollwayError:
            return None
        return whole(orjson.dumps({"count": len(ids), "max_model_len": CONTEXT, "tokens": ids}))


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests come one after another, never pipelined."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._data = bytearray()
        self._need = 0
        """Bytes of the request in hand; 0: its head is not whole yet."""
        self._body_at = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._engine.forget(self)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._need:
            at = self._data.find(b"\r\n\r\n")
            if at < 0:
                return
            head = bytes(self._data[:at]).lower()
            found = head.find(b"content-length:")
            length = int(head[found + 15 :].split(b"\r\n", 1)[0]) if found >= 0 else 0
            self._body_at, self._need = at + 4, at + 4 + length
        if len(self._data) >= self._need:
            path = bytes(self._data[: self._data.find(b"\r\n")]).split(b" ")[1]
            body = bytes(self._data[self._body_at : self._need])
            self._data.clear()
            self._need = 0
            self._serve(path, body)

    def _serve(self, path: bytes, body: bytes) -> None:
        engine = self._engine
        if path.endswith(b"/chat/completions"):
            engine.calls += 1
            engine.captured += b'"return_token_ids"' in body
            if b'"stream":true' in body or b'"stream": true' in body:
                end = engine.answers.end_with_usage if _asks_usage(body) else engine.answers.end
                engine.start_stream(self, iter([*engine.answers.events, end]))
            else:
                self._later(engine.answers.chat)
        elif path.endswith(b"/completions"):
            self._complete(body)
        elif path.endswith(b"/inference/v1/generate"):
            engine.calls += 1
            engine.captured += 1
            self._later(engine.answers.generate)
        elif path == b"/script":
            engine.set_script(body)
            self.write(whole(b"{}"))
        elif path == b"/tally":
            self.write(whole(orjson.dumps(engine.tally())))
        elif path == b"/tokenize":
            missing = b"404 Not Found" if engine.tokenizer is None else b"400 Bad Request"
            self.write(engine.tokenize(body) or whole(b'{"error":{"message":"refused"}}', missing.decode()))
        elif path.endswith(b"/models"):
            root = None if engine.tokenizer is None else str(engine.tokenizer)
            model = {"id": MODEL, "object": "model", "root": root, "parent": None, "max_model_len": CONTEXT}
            self.write(whole(orjson.dumps({"object": "list", "data": [model]})))
        elif path == b"/health":
            self.write(whole(b"{}"))
        else:
            self.write(whole(b'{"detail":"Not Found"}', "404 Not Found"))

    def _complete(self, body: bytes) -> None:
        ids = prompt_ids(body)
        if len(ids) < 8:  # a question, not a call: whether prompt ids are taken at all
            refused = {"error": {"message": "max_tokens is above the context", "type": "BadRequestError", "code": 400}}
            self.write(whole(orjson.dumps(refused), "400 Bad Request"))
            return
        engine = self._engine
        engine.calls += 1
        engine.captured += 1
        answers = engine.answers
        if b'"stream":true' in body:
            last = _chunk(answers.completions.usage(ids)) + answers.end if _asks_usage(body) else answers.end
            engine.start_stream(self, iter([_chunk(answers.completions.first(ids)), *answers.rest, last]))
        else:
            self._later(whole(answers.completions.whole(ids)))

    def _later(self, answer: bytes) -> None:
        delay = self._engine.answers.script.delay_s
        if delay:
            spread = 0.5 + self._engine.calls * 0.618034 % 1
            asyncio.get_running_loop().call_later(delay * spread, self.write, answer)
        else:
            self.write(answer)


def _asks_usage(body: bytes) -> bool:
    return b'"include_usage":true' in body or b'"include_usage": true' in body


async def serve(port: int, tokenizer: Path | None) -> None:
    """Serve on 127.0.0.1 until SIGTERM or SIGINT; prints the URL first."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(tokenizer)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path)
    chosen = parser.parse_args()
    uvloop.run(serve(chosen.port, chosen.tokenizer))


if __name__ == "__main__":
    main()
