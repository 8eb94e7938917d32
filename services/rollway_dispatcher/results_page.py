"""Results on the wire: pages as JSON or packed, and the pieces of streams. Pure, and run off the event loop.

A page is the same tree as JSON and packed. A stream has one line or event a result, and says itself when the batch has
ended: one that stops without saying so was cut, and is taken up again at the last cursor it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rollway_dispatcher.store_reader import StoredResult
from rollway_wire.codec import dump_packed, load_packed, to_json_tree
from rollway_wire.problems import RollwayError


@dataclass(frozen=True, slots=True)
class Found:
    """What there was after a cursor."""

    results: Sequence[StoredResult]
    asked: int
    """The cursor."""
    total: int
    """Results that the batch will have."""

    @property
    def cursor(self) -> int:
        return self.results[-1].seq if self.results else self.asked

    @property
    def finished(self) -> bool:
        return self.cursor == self.total


def _entry(r: StoredResult) -> dict[str, Any]:
    return {
        "rollout": orjson.loads(r.document),
        "trajectory": None if r.trajectory is None else load_packed(r.trajectory),
    }


def _page(found: Found) -> dict[str, Any]:
    entries = [_entry(r) for r in found.results]
    return {"results": entries, "cursor": found.cursor, "finished": found.finished}


def json_page(found: Found) -> bytes:
    """`rollway_wire.batch.ResultsPage`."""
    return orjson.dumps(to_json_tree(_page(found)))


def packed_page(found: Found) -> bytes:
    """`rollway_wire.batch.ResultsPage`, packed."""
    return dump_packed(_page(found))


class NdjsonStream:
    """One JSON object a line; an empty line is a sign of life."""

    beat = b"\n"

    @staticmethod
    def results(found: Found) -> bytes:
        return b"".join(orjson.dumps({"cursor": r.seq, **to_json_tree(_entry(r))}) + b"\n" for r in found.results)

    @staticmethod
    def end(cursor: int) -> bytes:
        return orjson.dumps({"cursor": cursor, "finished": True}) + b"\n"

    @staticmethod
    def problem(error: RollwayError) -> bytes:
        return orjson.dumps({"problem": error.problem()}) + b"\n"


class EventStream:
    """Server-sent events as the HTML standard has them: ``result``, ``finished``, ``problem``; the id is the cursor."""

    beat = b":\n\n"

    @staticmethod
    def results(found: Found) -> bytes:
        return b"".join(
            b"event: result\nid: %d\ndata: %s\n\n" % (r.seq, orjson.dumps(to_json_tree(_entry(r))))
            for r in found.results
        )

    @staticmethod
    def end(cursor: int) -> bytes:
        return b'event: finished\nid: %d\ndata: {"cursor":%d}\n\n' % (cursor, cursor)

    @staticmethod
    def problem(error: RollwayError) -> bytes:
        return b"event: problem\ndata: %s\n\n" % orjson.dumps(error.problem())
