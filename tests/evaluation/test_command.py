"""`rollway eval` and `rollway sessions` as commands: real services and agent processes, only the model is scripted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rollway_driver.client import DispatcherClient
from tests.dispatcher.harness import agent_pids, kill_all
from tests.driver_client.test_real_services import Stack, stack
from tests.kit.deadlines import until
from tests.kit.services import Services

__all__ = ["stack"]
AGENT = Path(__file__).with_name("eval_agent.py")
COMMAND = [sys.executable, "-m", "rollway_local"]


@pytest.fixture(autouse=True)
def agents_end(tmp_path: Path) -> Iterator[None]:
    """Agents outlive their dispatcher; those of a test that failed are killed."""
    yield
    kill_all(agent_pids(tmp_path / "state.sqlite3"))


def spawn(folder: Path, *arguments: str, **env: str) -> tuple[subprocess.Popen[bytes], Path]:
    said = folder / f"said-{len(list(folder.glob('said-*')))}.txt"
    with said.open("wb") as sink:
        process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            env={**os.environ, "ROLLWAY_AGENT_PYTHON": sys.executable, "COLUMNS": "160", **env},
        )  # fmt: skip
    return process, said


def finish(started: tuple[subprocess.Popen[bytes], Path], within_s: float = 100) -> tuple[int, str]:
    process, said = started
    return process.wait(within_s), said.read_text()


def rows(folder: Path, *more: dict[str, Any]) -> Path:
    path = folder / "tasks.jsonl"
    listed = [
        {"id": "right", "prompt": "2+2", "answer": "four"},
        {"id": "wrong", "prompt": "2+2", "answer": "five"},
        *more,
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in listed))
    return path


def engine(services: Services) -> str:
    started = services.spawn("engine", ["-m", "tests.kit.scripted_engine", "--text", "four"])
    return str(until(lambda: started.logs().strip(), "the scripted engine's address"))


@pytest.mark.timeout(400)
def test_with_a_stack_of_its_own_to_a_parquet_file(services: Services, tmp_path: Path) -> None:
    """One command, nothing running before and nothing after: scores, pass@k, failures, tokens, and a file."""
    data = rows(tmp_path, {"id": "broken", "prompt": "", "answer": "", "act": "raise"})
    status, said = finish(
        spawn(tmp_path, "eval", str(data), "--agent", str(AGENT), "--n", "2", "--base-url", engine(services),
              "--model", "m", "--out", "out.parquet"), 200,
    )  # fmt: skip
    assert status == 1, said
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(r["input_id"], r["sample"], r["correct"], r["failure"]) for r in table] == [
        ("right", 0, True, None), ("right", 1, True, None), ("wrong", 0, False, None), ("wrong", 1, False, None),
        ("broken", 0, False, "agent_error"), ("broken", 1, False, "agent_error"),
    ]  # fmt: skip
    assert all(r["turns"] == 1 and r["sampled_tokens"] > 0 for r in table[:4])
    assert json.loads(table[0]["input"])["prompt"] == "2+2" and json.loads(table[0]["result"])["said"] == "four"
    assert "pass@1" in said and "0.3333 over 3 inputs" in said and "agent_error" in said
    assert not (tmp_path / "out.parquet.run" / "stack" / "stack.json").exists()
    again, said = finish(spawn(tmp_path, "eval", str(data), "--agent", str(AGENT), "--base-url", "http://x"))
    assert again == 2 and "http://x" in said, "a model server that is not there is said before any rollout"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.heavy)])
def test_interrupted_and_resumed_it_runs_each_rollout_once(stack: Stack, number: signal.Signals) -> None:
    """At a dispatcher that goes on meanwhile: what was read is kept, the rest is read by the resumed run."""
    assert stack.dispatcher is not None
    folder, go = stack.folder, stack.folder / "go"
    data = rows(folder, {"id": "late", "prompt": "2+2", "answer": "four", "wait_for": str(go)})
    arguments = ["eval", str(data), "--agent", str(AGENT), "--n", "2", "--model", "m", "--out", "out.jsonl"]
    there = {"ROLLWAY_DISPATCHER_URL": stack.dispatcher.url}
    started = spawn(folder, *arguments, **there)
    kept = folder / "out.jsonl.run" / "results.jsonl"
    until(lambda: kept.exists() and len(kept.read_text().splitlines()) == 4, "four are kept", 90)
    started[0].send_signal(number)
    status, said = finish(started)
    assert status == (130 if number is signal.SIGINT else -number)
    if number is signal.SIGINT:
        assert "4 of 6 rollouts are kept" in said and f"rollway {' '.join(arguments)} --resume" in said
    refused, said = finish(spawn(folder, *arguments, **there))
    assert refused == 2 and "--resume" in said
    go.touch()
    status, said = finish(spawn(folder, *arguments, "--resume", "--k", "1,2", **there))
    assert status == 0, said
    results = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [(r["input_id"], r["sample"]) for r in results] == [
        (i, n) for i in ("right", "wrong", "late") for n in (0, 1)
    ]
    assert len({r["session_id"] for r in results}) == 6 and len({r["batch_id"] for r in results}) == 1
    assert "pass@2" in said and "0.6667 over 3 inputs" in said
    with DispatcherClient(stack.dispatcher.url) as client:
        (batch,) = client.batches()
        assert batch.total == 6


@pytest.mark.timeout(400)
def test_a_batch_cancelled_at_the_dispatcher_is_made_up_by_the_next_run(stack: Stack) -> None:
    assert stack.dispatcher is not None
    go = stack.folder / "go"
    data = rows(stack.folder, {"id": "late", "prompt": "2+2", "answer": "four", "wait_for": str(go)})
    arguments = ["eval", str(data), "--agent", str(AGENT), "--model", "m"]
    there = {"ROLLWAY_DISPATCHER_URL": stack.dispatcher.url}
    started = spawn(stack.folder, *arguments, **there)
    kept = stack.folder / "tasks.results.jsonl.run" / "results.jsonl"
    until(lambda: kept.exists() and len(kept.read_text().splitlines()) == 2, "two are kept", 90)
    with DispatcherClient(stack.dispatcher.url) as client:
        until(lambda: [s.state for s in client.sessions()] == ["running"], "the others' sessions are gone", 60)
    listed, said = finish(spawn(stack.folder, "sessions", **there))
    assert listed == 0 and "running" in said and "late/0" in said
    ended, said = finish(spawn(stack.folder, "sessions", "stop", "--all", **there))
    assert ended == 0 and "1 stopped, 0 not confirmed" in said
    status, said = finish(started)
    assert status == 2 and "1 rollouts were cancelled" in said
    go.touch()
    assert finish(spawn(stack.folder, *arguments, "--resume", **there))[0] == 0
    assert len((stack.folder / "tasks.results.jsonl").read_text().splitlines()) == 3
    with DispatcherClient(stack.dispatcher.url) as client:
        until(lambda: not client.sessions(), "the last session is gone", 60)
    assert "no sessions" in finish(spawn(stack.folder, "sessions", **there))[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["eval", "d.jsonl", "--agent", "a.py"], "No such file"),
        (["eval", "tasks.jsonl", "--agent", "a.py"], "no such file"),
        (["eval", "tasks.jsonl", "--agent", "sleep 1"], "no model"),
        (["eval", "tasks.jsonl", "--agent", "sleep 1", "--direct"], "--direct needs --base-url"),
        (["eval", "tasks.jsonl", "--agent", "http://a"], "give --dispatcher"),
        (["eval", "tasks.jsonl", "--agent", "sleep 1", "--out", "o.csv"], "must end in"),
        (["eval", "tasks.jsonl", "--agent", "sleep 1", "--k", "4"], "--k 4 needs --n 4"),
        (["eval", "tasks.jsonl", "--agent", "sleep 1", "--sampling-params", "[]"], "must be a JSON object"),
        (["sessions"], "no dispatcher"),
        (["sessions", "stop"], "stop takes sessions or --all"),
        (["sessions", "--dispatcher", "ftp://x"], "http://"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_change(tmp_path: Path, arguments: list[str], why: str) -> None:
    rows(tmp_path)
    status, said = finish(spawn(tmp_path, *arguments))
    assert status == 2 and why in said and "Traceback" not in said
