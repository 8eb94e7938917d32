"""A scripted engine for load: vLLM's wire format out of bytes made beforehand, at a few microseconds an answer.

It samples nothing. A script (POST /script) says how long the prompt and the answer are, and every call gets the same
bytes until the next script: prompt ids, sampled ids and log-probs, whether asked for or not, so that a proxy that only
passes bytes on carries the same load as one that captures. Streams advance together, one event each per tick, as an
engine's steps do. GET /tally says how many calls came.

    python -m benchmarks.load_engine --port 0        prints its URL

With ``--tokenizer FOLDER`` it says where its model lies, answers /tokenize, and gives back with each chat the ids that
its messages render to, for a gateway that checks that; a chat asked in the same bytes as one of the last few is not
rendered again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvloop

from benchmarks.load_answers import MODEL, STREAM_HEAD, Answers, Script, chunk, whole
from benchmarks.load_completions import prompt_ids

if TYPE_CHECKING:
    from rollway_gateway.render import Template

CONTEXT = 1 << 20
RENDERED = 16
"""So many renderings are kept."""


class Engine:
    """What the connections share: the script's answers, the streams under way, the tally."""

    def __init__(self, tokenizer: Path | None) -> None:
        self.answers = Answers(Script())
        self.tokenizer = tokenizer
        self._template: Template | None = None
        if tokenizer is not None:
            from rollway_gateway.render import Template

            self._template = Template.load(tokenizer)
        self._rendered: dict[bytes, bytes] = {}
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
        ids = self.rendered(orjson.loads(body))
        if ids is None:
            return None
        tokens = orjson.Fragment(b"[%b]" % ids)
        return whole(orjson.dumps({"count": ids.count(b",") + 1, "max_model_len": CONTEXT, "tokens": tokens}))

    def rendered(self, asked: dict[str, Any]) -> bytes | None:
        """The prompt's ids as JSON without brackets; None: this engine has no tokenizer, or the template refuses."""
        if self._template is None:
            return None
        from rollway_gateway.render import Options
        from rollway_wire.problems import RollwayError

        name = orjson.dumps([asked["messages"], asked.get("tools")])
        if name not in self._rendered:
            try:
                ids = self._template.prompt_ids(asked["messages"], Options(tools=asked.get("tools"))).tolist()
            except RollwayError:
                return None
            while len(self._rendered) >= RENDERED:
                del self._rendered[next(iter(self._rendered))]
            self._rendered[name] = orjson.dumps(ids)[1:-1]
        return self._rendered[name]


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
            self._chat(body)
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

    def _chat(self, body: bytes) -> None:
        engine, answers = self._engine, self._engine.answers
        ids = None if engine.tokenizer is None else engine.rendered(orjson.loads(body))
        if b'"stream":true' in body or b'"stream": true' in body:
            opening = answers.opening.of(body) if ids is None else chunk(answers.any_opening.of(ids))
            usage = answers.usage if ids is None else chunk(answers.any_usage.of(ids))
            end = usage + answers.end if _asks_usage(body) else answers.end
            engine.start_stream(self, iter([opening, *answers.events, end]))
        else:
            self._later(answers.chat.of(body) if ids is None else whole(answers.any_chat.of(ids)))

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
            last = chunk(answers.completions.usage.of(ids)) + answers.end if _asks_usage(body) else answers.end
            engine.start_stream(self, iter([chunk(answers.completions.first.of(ids)), *answers.rest, last]))
        else:
            self._later(whole(answers.completions.whole.of(ids)))

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
