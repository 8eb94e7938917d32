"""A page of results on the wire, as JSON or packed: the same tree either way. Pure, and run off the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from rollway_dispatcher.store import StoredResult
from rollway_wire.codec import dump_packed, load_packed, to_json_tree


def page(results: Sequence[StoredResult], *, cursor: int, total: int, packed: bool) -> bytes:
    """The encoded `rollway_wire.batch.ResultsPage`; ``cursor``: the one asked with, ``total``: the batch's rollouts."""
    end = results[-1].seq if results else cursor
    tree: dict[str, Any] = {
        "results": [
            {
                "rollout": orjson.loads(r.document),
                "trajectory": None if r.trajectory is None else load_packed(r.trajectory),
            }
            for r in results
        ],
        "cursor": end,
        "finished": end == total,
    }
    return dump_packed(tree) if packed else orjson.dumps(to_json_tree(tree))
