"""What processes were told, for one that starts again: the latest of each kind; what all refused was never told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollway_gateway.pool import Pool
from rollway_gateway.pools_tree import pools_tree, restore_pools, take_told
from rollway_gateway.processes.told import Told, Undo

WORKER = {"url": "http://e:1", "worker_id": "w"}
CHANGES: dict[str, Callable[[Told], Undo]] = {
    "opened": lambda told: told.opened("p", 9),
    "opened as it is": lambda told: told.opened("p", None),
    "version": lambda told: told.version("p", 8),
    "fenced": lambda told: told.fenced("p"),
    "paused": lambda told: told.paused("p", refuses=True),
    "registered": lambda told: told.worker("p", WORKER),
    "registered anew": lambda told: told.worker("p", {**WORKER, "url": "http://e:2"}),
    "drained": lambda told: told.drained("p", "w"),
    "drained, unknown": lambda told: told.drained("p", "x"),
    "removed": lambda told: told.removed("p", "w"),
    "removed, unknown": lambda told: told.removed("p", "x"),
}


def _told(*before: str) -> Told:
    made = Told()
    for change in before:
        CHANGES[change](made)
    return made


@pytest.mark.parametrize("before", [(), ("opened",), ("registered", "paused"), ("registered", "drained", "fenced")])
@pytest.mark.parametrize("change", CHANGES)
def test_what_all_refused_is_taken_back(before: tuple[str, ...], change: str) -> None:
    told = _told(*before)
    tree = told.tree()
    CHANGES[change](told)()
    assert told.tree() == tree


def _process(told: Told, journal: list[dict[str, Any]]) -> dict[str, Any]:
    """Pool p of a process that starts with this journal, as it would write it down."""
    pools: dict[str, Pool] = {}
    restore_pools(pools, journal, retry_after_s=1)
    take_told(pools, told.tree(), retry_after_s=1)
    found = {tree["name"]: tree for tree in pools_tree(pools)}
    return found["p"]


def test_a_process_without_a_journal_is_as_it_was_told() -> None:
    made = _process(_told("registered", "opened", "drained", "paused"), [])
    assert (made["gate"], made["refuses"], made["policy_version"]) == ("paused", True, 9)
    assert [(w["worker_id"], w["url"], w["draining"]) for w in made["workers"]] == [("w", "http://e:1", True)]
    assert not _process(_told("registered", "drained", "registered"), [])["workers"][0]["draining"]
    assert _process(_told("registered", "fenced", "removed"), [])["workers"] == []


def test_what_was_not_said_stays_as_the_journal_has_it() -> None:
    """A supervisor that started anew was told nothing yet; its processes' journals know."""
    journal = [_process(_told("registered", "drained", "opened", "fenced"), [])]
    kept = _process(_told("version"), journal)
    assert (kept["gate"], kept["policy_version"]) == ("fenced", 8)
    assert [(w["worker_id"], w["draining"]) for w in kept["workers"]] == [("w", True)]
    kept = _process(_told("opened as it is"), journal)
    assert (kept["gate"], kept["policy_version"]) == ("open", 9)
