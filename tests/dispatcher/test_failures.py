"""Rollouts that go wrong, with real agent processes: each failure has its type, its siblings and its stop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher import engine
from rollway_dispatcher.clock import Clock
from rollway_dispatcher.runtimes.processes import LocalProcess
from rollway_dispatcher.runtimes.runtime import StartError
from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.failures import FailureType
from tests.dispatcher.harness import agent_pids, has_reported, process_runtime, runs, serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket

Make = Callable[..., dict[str, Any]]


def only(results: list[dict[str, Any]], group: str) -> dict[str, Any]:
    (found,) = [r["rollout"] for r in results if r["rollout"]["group_id"] == group]
    return dict(found)


@pytest.mark.parametrize("reports", [False, True], ids=["without-push", "with-push"])
async def test_a_killed_agent_is_agent_died_and_its_siblings_are_fine(
    settings: DispatcherSettings, batch: Make, runs_dir: Path, tmp_path: Path, state_path: Path, reports: bool
) -> None:
    gate = tmp_path / "go"
    async with serving(settings) as api:
        payload = {"reward": 1, "wait_for": str(gate), "reports": reports}
        made = await api.submit(batch([payload, payload, payload], limits={"max_attempts": 1}))
        await api.until_state(made["batch_id"], "running", 3)
        victim = (await api.rollouts(made["batch_id"]))[1]
        pid = next(p for p in agent_pids(state_path) if _session_of(p) == victim["session_id"])
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(120):
            while not (first := await api.page(made["batch_id"], wait_s=30))["results"]:
                pass
        assert [r["rollout"]["group_id"] for r in first["results"]] == ["g1"], "noticed before any sibling is done"
        await asyncio.to_thread(gate.touch)
        results = await api.results(made["batch_id"])
    dead = only(results, "g1")
    assert dead["state"] == "failed"
    assert dead["failure"]["type"] == "agent_died"
    assert "SIGKILL" in dead["failure"]["message"]
    assert dead["rewards"] is None
    assert only(results, "g0")["rewards"] == only(results, "g2")["rewards"] == [1.0]
    assert set(runs(runs_dir).values()) == {1}


async def test_an_agent_that_died_once_is_run_again_under_a_new_session(
    settings: DispatcherSettings, batch: Make, runs_dir: Path, state_path: Path
) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1, "act": "die_once"}], limits={"max_attempts": 2}))
        (result,) = await api.results(made["batch_id"])
        assert result["rollout"]["state"] == "succeeded"
        assert result["rollout"]["attempt"] == 2
        assert len(runs(runs_dir)) == 2, "two sessions"
        assert set(runs(runs_dir).values()) == {1}
        await eventually(lambda: not agent_pids(state_path), "both sessions are stopped")


async def test_attempts_end_at_the_limit_and_the_last_words_are_told(
    settings: DispatcherSettings, batch: Make, runs_dir: Path
) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"act": "die"}], limits={"max_attempts": 2}))
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == "agent_died"
    assert "status 17" in result["rollout"]["failure"]["message"]
    assert "dying as told" in result["rollout"]["failure"]["message"]
    assert result["rollout"]["attempt"] == 2
    assert len(runs(runs_dir)) == 2


async def test_agent_errors_no_turns_and_missing_rewards_are_typed_and_not_tried_again(
    settings: DispatcherSettings, batch: Make, runs_dir: Path
) -> None:
    async with serving(settings) as api:
        payloads = [{"act": "raise"}, {"reward": 1, "act": "no_turn"}, {}, {"reward": float(3)}]
        made = await api.submit(batch(payloads, limits={"max_attempts": 3}))
        results = await api.results(made["batch_id"])
        status = await api.status(made["batch_id"])
    assert only(results, "g0")["failure"] == {
        "type": "agent_error",
        "message": "the agent raised (status 500): told to raise",
        "traceback": "ZeroDivisionError: told to raise",
    }
    assert only(results, "g1")["failure"]["type"] == "no_turns"
    assert only(results, "g2")["failure"]["type"] == "agent_error"
    assert "rewards" in only(results, "g2")["failure"]["message"]
    assert only(results, "g3")["rewards"] == [3.0]
    assert [r["rollout"]["rewards"] for r in results].count(None) == 3, "a failure is not a reward of 0"
    assert status["failures"] == {"agent_error": 2, "no_turns": 1}
    assert len(runs(runs_dir)) == 4


async def test_incomplete_capture_is_sampled_again(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway
) -> None:
    gateway.incomplete = ["turn 1 has no log-probs"]
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}]))
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["state"] == "succeeded"
    assert result["rollout"]["attempt"] == 2
    assert result["trajectory"]["incomplete"] is None


async def test_an_agent_that_never_finishes_is_timed_out_sealed_and_stopped_with_its_children(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, state_path: Path, runs_dir: Path
) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"act": "spawn"}], limits={"rollout_timeout_s": 2}))
        (result,) = await api.results(made["batch_id"])
        session_id = result["rollout"]["session_id"]
        child = int(await asyncio.to_thread((runs_dir / f".child-{session_id}").read_text))
        assert result["rollout"]["failure"]["type"] == "timed_out"
        await eventually(lambda: not agent_pids(state_path), "the whole process group is gone")
        await eventually(lambda: not _lives(child), "the child, too")
        assert gateway.sealed == {session_id}


async def test_a_frozen_agent_that_used_to_report_is_dead_after_a_window_of_silence(
    noticing_silence: DispatcherSettings, batch: Make, state_path: Path, runs_dir: Path
) -> None:
    async with serving(noticing_silence) as api:
        made = await api.submit(batch([{"act": "hang", "reports": True}], limits={"max_attempts": 1}))
        await api.until_state(made["batch_id"], "running", 1)
        await has_reported(runs_dir, (await api.rollouts(made["batch_id"]))[0]["session_id"], beats=3)
        assert (await api.status(made["batch_id"]))["counts"] == {"running": 1}, "an agent in health is not suspected"
        (pid,) = agent_pids(state_path)
        os.kill(pid, signal.SIGSTOP)
        (result,) = await api.results(made["batch_id"])
        assert result["rollout"]["failure"]["type"] == "agent_died"
        silent = re.search(r"stopped reporting ([0-9.]+) s ago", result["rollout"]["failure"]["message"])
        assert silent is not None
        assert float(silent[1]) >= noticing_silence.heartbeat_window_s - 0.05
        assert result["rollout"]["timings"]["started_at"] is not None
        await eventually(lambda: not agent_pids(state_path), "a stopped process is killed, too")


async def test_a_pause_of_the_dispatchers_own_is_not_its_agents_silence(
    settings: DispatcherSettings, batch: Make, state_path: Path, runs_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As after SIGSTOP and SIGCONT: the clock has gone on, and what was pushed meanwhile is still to be read."""
    clock, ahead_s, gate = Clock.now, [0.0], tmp_path / "go"
    monkeypatch.setattr(Clock, "now", lambda self: clock(self) + ahead_s[0])
    monkeypatch.setattr(engine, "IDLE_S", 0.1)
    async with serving(settings) as api:
        payload = {"reward": 1, "reports": True, "wait_for": str(gate)}
        made = await api.submit(batch([payload], limits={"max_attempts": 1}))
        await api.until_state(made["batch_id"], "running", 1)
        await has_reported(runs_dir, (await api.rollouts(made["batch_id"]))[0]["session_id"])
        (pid,) = agent_pids(state_path)
        os.kill(pid, signal.SIGSTOP)  # none of its pushes is read before the dispatcher looks
        ahead_s[0] = 2 * settings.heartbeat_window_s
        await api.results((await api.submit(batch([{"reward": 1}])))["batch_id"])
        assert (await api.status(made["batch_id"]))["counts"] == {"running": 1}
        os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(gate.touch)
        (result,) = await api.results(made["batch_id"])
    assert (result["rollout"]["state"], result["rollout"]["attempt"]) == ("succeeded", 1)


@pytest.mark.parametrize(
    ("fields", "payload", "words"),
    [
        ({"runtime": {"kind": "process", "command": ["/no/such/agent"]}}, {}, "cannot be run"),
        ({}, {"act": "no_receipt"}, "receipt"),
    ],
)
async def test_a_broken_setup_fails_the_whole_batch_with_its_reason(
    settings: DispatcherSettings, batch: Make, fields: dict[str, Any], payload: dict[str, Any], words: str
) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([payload] * 4, n=2, **fields))
        results = await api.results(made["batch_id"])
        status = await api.status(made["batch_id"])
    assert words in status["contract_error"]
    assert status["failures"] == {"contract_error": 1}
    assert status["counts"] == {"failed": 1, "cancelled": 7}
    for r in results:
        assert words in r["rollout"]["failure"]["message"]


async def test_an_unknown_pool_is_a_contract_error(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway
) -> None:
    gateway.refuse = 404
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}] * 3, capture={"pool": "nowhere"}))
        await api.results(made["batch_id"])
        assert "no pool nowhere" in (await api.status(made["batch_id"]))["contract_error"]


async def test_an_agent_that_does_not_serve_in_time_is_start_failed(settings: DispatcherSettings, batch: Make) -> None:
    runtime = process_runtime() | {"command": ["sleep", "600"], "start_timeout_s": 0.5}
    async with serving(settings) as api:
        made = await api.submit(batch([{}], runtime=runtime, limits={"max_attempts": 2}))
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == "start_failed"
    assert "$PORT" in result["rollout"]["failure"]["message"]
    assert result["rollout"]["attempt"] == 2


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _session_of(pid: int) -> str:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)["ROLLWAY_SESSION_ID"]


async def test_a_result_wins_over_a_start_whose_answer_was_lost(
    settings: DispatcherSettings, batch: Make, s3: Bucket, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = LocalProcess.start

    async def unheard(self: LocalProcess, session_id: str, payload: bytes) -> bytes:
        await answered(self, session_id, payload)

        async def saved() -> bool:
            return any(session_id in key for key in await asyncio.to_thread(s3.keys, ""))

        await eventually(saved, "the agent saved its result")
        raise StartError(FailureType.START_FAILED, "the answer was lost")

    monkeypatch.setattr(LocalProcess, "start", unheard)
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 0.5}], limits={"max_attempts": 1}))
        (result,) = await api.results(made["batch_id"])
    assert (result["rollout"]["state"], result["rollout"]["rewards"]) == ("succeeded", [0.5])
    assert list(runs(runs_dir).values()) == [1]
