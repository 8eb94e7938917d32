"""A body in chunks, however it was cut up on its way: whole ones go past the parser, and nothing differs for it."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollway_gateway.connection import AnswerBroken, Connection

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECES = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"\r\n", b"0\r\n\r\n", b"1\r\nx\r\n", b"data: {}\n\n", b"x" * 300, b"5"]),
    ),
    max_size=8,
)


class Transport:
    """Of a peer whose bytes the test gives itself."""

    def __init__(self) -> None:
        self.aborted = False

    def writelines(self, parts: Any) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Parser:
    """A connection's own, and what went through it."""

    def __init__(self, connection: Connection) -> None:
        self._own = connection._parser
        self.fed = 0

    def feed_data(self, data: bytes) -> None:
        self.fed += 1
        self._own.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _flowing(loop: asyncio.AbstractEventLoop, got: list[bytes]) -> tuple[Connection, Parser]:
    connection = Connection(loop, 60.0, lambda _: None)
    connection.connection_made(Transport())  # type: ignore[arg-type]
    connection.ask(b"", b"")
    parser = Parser(connection)
    connection._parser = parser  # type: ignore[assignment]
    connection.data_received(HEAD)
    connection.sink = lambda data: got.append(data) or True  # type: ignore[func-returns-value]
    return connection, parser


def _chunk(piece: bytes, form: str) -> bytes:
    size = {"usual": b"%x", "upper": b"%X", "padded": b"0%x", "extended": b"%x;a=b"}[form] % len(piece)
    return size + b"\r\n" + piece + b"\r\n"


@given(
    pieces=st.lists(
        st.tuples(
            PIECES.filter(bool).map(b"".join), st.sampled_from(["usual"] * 3 + ["upper", "padded", "extended"]),
        )
    ),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)  # fmt: skip
def test_what_comes_is_what_was_sent_wherever_reads_end(pieces: list[tuple[bytes, str]], cuts: list[int]) -> None:
    loop = asyncio.new_event_loop()
    try:
        got: list[bytes] = []
        connection, _ = _flowing(loop, got)
        reads: list[bytes] = []
        for k, (piece, form) in enumerate(pieces):
            sent = _chunk(piece, form)
            at = cuts[k] % len(sent) if k < len(cuts) else 0
            reads += [sent[:at], sent[at:]] if at else [sent]
        if len(cuts) > len(pieces):
            reads = [b"".join(reads)]
        for read in filter(None, [*reads, b"0\r\n\r\n"]):
            connection.data_received(read)
        assert b"".join(got) == b"".join(piece for piece, _ in pieces)
        assert connection.whole and connection.problem is None
        connection.close()
    finally:
        loop.close()


async def test_a_chunk_that_is_a_read_does_not_go_through_the_parser() -> None:
    got: list[bytes] = []
    connection, parser = _flowing(asyncio.get_running_loop(), got)
    for _ in range(10):
        connection.data_received(_chunk(b"data: {}\n\n", "usual"))
    assert got == [b"data: {}\n\n"] * 10
    assert parser.fed == 2, "the head, and the first, by which the parser shows that a chunk may begin"
    connection.data_received(b"0\r\n\r\n")
    assert connection.whole and parser.fed == 3
    connection.close()


async def test_what_follows_the_end_is_no_part_of_the_answer() -> None:
    got: list[bytes] = []
    connection, _ = _flowing(asyncio.get_running_loop(), got)
    connection.data_received(_chunk(b"a", "usual") + b"0\r\n\r\n")
    connection.data_received(_chunk(b"b", "usual"))
    assert got == [b"a"] and isinstance(connection.problem, AnswerBroken)


async def test_a_chunk_whose_length_is_not_its_own_is_refused() -> None:
    got: list[bytes] = []
    connection, _ = _flowing(asyncio.get_running_loop(), got)
    connection.data_received(_chunk(b"a", "usual"))
    connection.data_received(b"3\r\nabcd\r\n")
    assert got[0] == b"a" and isinstance(connection.problem, AnswerBroken)


async def test_a_sink_that_has_enough_or_fails_gets_no_more() -> None:
    for ends in ("enough", "fails"):
        got: list[bytes] = []
        connection, _ = _flowing(asyncio.get_running_loop(), got)
        connection.data_received(_chunk(b"a", "usual"))

        def last(data: bytes, got: list[bytes] = got, ends: str = ends) -> bool:
            got.append(data)
            if ends == "fails":
                raise LookupError(ends)
            return False

        connection.sink = last
        connection.data_received(_chunk(b"b", "usual"))
        connection.data_received(_chunk(b"c", "usual"))
        assert got == [b"a", b"b"] and connection.sink is None and connection.take() == b"c"
        assert isinstance(connection.sink_problem, LookupError) is (ends == "fails")
        connection.close()
