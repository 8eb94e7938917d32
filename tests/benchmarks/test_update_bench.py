"""The same rows through verl's actor: what an update is given, and what its table says. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.update.__main__ import seconds
from benchmarks.update.table import text
from tests.kit.vllm_server import tiny_model

ONE_ROW = [([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 1, 1, 0, 0, 1, 1])]
TWO_ROWS = [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 9, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 1, 1])]


def test_the_table_compares_each_with_the_first() -> None:
    run = {
        "results": {
            "mirror": {"sessions": 2, "sequences": 8, "tokens": 4000, "cpu_s": [41.0, 39.0, 40.0]},
            "exact": {"sessions": 2, "sequences": 2, "tokens": 1500, "cpu_s": [15.0, 30.0, 16.0]},
        }
    }
    first, second = text(run).splitlines()[2:]
    assert [cell.strip() for cell in first.split("|")[1:-1]] == [
        "mirror", "2", "8", "–", "4,000", "–", "40.0", "–", "41.0 39.0 40.0",
    ]  # fmt: skip
    assert [cell.strip() for cell in second.split("|")[1:-1]][3:8:2] == ["-75.0 %", "-62.5 %", "-60.0 %"]


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_verls_actor_takes_the_rows_of_both_as_often_as_asked(tmp_path: Path) -> None:
    took = seconds({"mirror": TWO_ROWS, "exact": ONE_ROW}, tiny_model(tmp_path), repeats=2)
    assert {name: len(times) for name, times in took.items()} == {"mirror": 2, "exact": 2}
    assert all(s > 0 for times in took.values() for s in times)
