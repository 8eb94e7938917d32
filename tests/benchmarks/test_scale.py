"""The scale run at a tenth of its size: nothing lost, nothing twice, few requests, little memory. No times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

N = 500


@pytest.mark.timeout(330)
def test_five_hundred_rollouts_at_once_give_each_result_once_for_few_requests_and_bytes() -> None:
    command = [sys.executable, "-m", "benchmarks.dispatcher.scale", "--sizes", str(N), "--silent", "", "--sleep", "20"]
    command.append("--together")  # a run in which they cannot be has no end
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    row = json.loads(run.stderr.strip().splitlines()[-1])
    assert row["results"] == str(N), row
    assert row["agents"]["together"] == row["agents"]["invocations"] == N, "each ran once, and all at the same time"
    assert row["counts"]["PUT agent"] == row["counts"]["GET dispatcher"] == N
    assert row["s3"] <= 2.2
    assert 0 < row["kib_peak"] < 40
    assert row["lag_p99_ms"] > 0
