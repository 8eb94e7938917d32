"""What is fuzzed of the gateway's readers: bytes in, and whatever they are, either an answer or the one named refusal.

Every target raises only for a defect. They are used by hypothesis in the tests and by atheris in `coverage_guided`.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from rollway_gateway import agent_routes
from rollway_gateway.capture.answer import UNKNOWN_FORM, strip_answer, take_answer
from rollway_gateway.capture.ask import read_ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.json_body import DEEPEST, depth, read_object
from rollway_gateway.capture.sse import SseBlocks, data_of
from rollway_gateway.capture.stream import Fingerprint, StreamFilter
from rollway_gateway.dialects.dialect import Dialect
from rollway_gateway.dialects.messages.dialect import Messages
from rollway_gateway.dialects.messages.request import to_count
from rollway_gateway.dialects.responses.dialect import Responses
from rollway_gateway.dialects.responses.kept import KeptResponses
from rollway_gateway.keys import SessionKeys
from rollway_gateway.openai_errors import TYPES, AgentError

_KEYS = SessionKeys([b"a fuzzer's signing secret"], required=True)
_ASKS = [
    read_ask("chat", b'{"messages":[],"stream":true}', {}),
    read_ask("chat", b'{"messages":[],"stream":true,"n":2,"logprobs":true,"return_token_ids":true}', {}),
    read_ask("chat", b'{"messages":[],"stream":true,"include_reasoning":false}', {}),
    read_ask("text", b'{"prompt":["a","b"],"stream":true,"echo":true,"stream_options":{"include_usage":true}}', {}),
]


def _refused(error: AgentError) -> None:
    assert error.status in TYPES
    orjson.loads(error.body())


def sse(data: bytes) -> None:
    """However the bytes are cut, the blocks are the same, and nothing of them is lost."""
    whole, cut = SseBlocks(), SseBlocks()
    at_once = whole.feed(data)
    step = data[0] % 7 + 1 if data else 1
    pieces = [block for at in range(0, len(data), step) for block in cut.feed(data[at : at + step])]
    ends = bytes.maketrans(b"", b"")
    joined = (b"".join(at_once) + whole.close(), b"".join(pieces) + cut.close())
    assert joined[0].translate(ends, b"\r\n") == joined[1].translate(ends, b"\r\n") == data.translate(ends, b"\r\n")
    for block in at_once:
        data_of(block)


def stream(data: bytes) -> None:
    """An engine's stream: blocks that cannot be read cost the evidence, never the answer."""
    for ask in _ASKS:
        events = StreamFilter(ask, Evidence(ask.n, echo=ask.echo), Fingerprint())
        events.blocks(SseBlocks().feed(data + b"\n\n"))
        events.release()


def chunks(data: bytes) -> None:
    """A stream of JSON events, one a line."""
    stream(b"\n\n".join(b"data: " + line for line in data.split(b"\n")))


def answer(data: bytes) -> None:
    """An engine's whole answer: taken, or of an unknown form, which its caller passes on."""
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    if not isinstance(payload, dict):
        return
    for ask in _ASKS:
        take_answer(payload, ask, Evidence(ask.n, echo=ask.echo))
        try:
            strip_answer(payload, ask)
        except UNKNOWN_FORM:
            return


def request(data: bytes) -> None:
    """An agent's chat or completion request; what is taken can be written again."""
    for kind in ("chat", "text"):
        try:
            ask = read_ask(kind, data, {"temperature": 0.5, "max_tokens": 3})
        except AgentError as e:
            _refused(e)
            continue
        orjson.dumps(ask.body)
        assert depth(ask.body) <= DEEPEST


def dialects(data: bytes) -> None:
    """An agent's Responses or Messages request; what is taken is a chat request that can be read."""
    spoken: tuple[Dialect, ...] = (Responses(), Messages())
    for dialect in spoken:
        try:
            exchange = dialect.open(read_object(data), KeptResponses(1 << 20))
            read_ask("chat", orjson.dumps(exchange.chat), {})
        except AgentError as e:
            _refused(e)
    try:
        to_count(read_object(data))
    except AgentError as e:
        _refused(e)


def path_and_key(data: bytes) -> None:
    """Nothing but a key that was issued opens a session."""
    text = data.decode("latin-1")
    for path in (text, f"/sessions/{text}/v1/models", f"/sessions/s.rw1-{text}/v1/models", f"/v1/{text}"):
        found = agent_routes.match(path)
        if found is None:
            continue
        try:
            _KEYS.session_of(found[0], {b"authorization": b"Bearer rw1-" + data, b"x-api-key": data})
        except AgentError as e:
            _refused(e)
            continue
        raise AssertionError("a session was opened")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (sse, stream, chunks, answer, request, dialects, path_and_key)
}
