"""From a batch to joined rows through every part but the trainer and the model, with parts killed on the way."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rollway_driver.client import FinishedRollout
from rollway_wire.batch import RolloutState
from rollway_wire.failures import FailureType
from rollway_wire.ids import result_key
from tests.e2e.conftest import DEADLINE_S, Chain
from tests.kit.deadlines import until

pytestmark = pytest.mark.timeout(600)


def collect(chain: Chain, batch_id: str) -> list[FinishedRollout]:
    return list(chain.batches().stream(batch_id, timeout=DEADLINE_S))


def emulator(chain: Chain, method: str, path: str) -> Any:
    request = urllib.request.Request(chain.emulator.url + path, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def no_session_is_left(chain: Chain) -> None:
    def gone() -> bool:
        return not emulator(chain, "GET", "/_emulator/sessions")["sessions"]

    until(gone, "all runtime sessions stopped", DEADLINE_S)


def test_a_batch_comes_back_as_joined_rewards_and_exact_tokens(chain: Chain, pool_name: Callable[[], str]) -> None:
    """Each rollout succeeds once, with its reward, one linear sequence of both turns, and a closed ledger."""
    pool = pool_name()
    chain.pool(pool, chain.engine("four"), policy_version=7)
    status = chain.batches().submit(chain.request(pool, groups=2, n=3, rewards=[0.25, 0.5], turns=2))
    finished = collect(chain, status.batch_id)

    assert sorted((f.rollout.group_id, f.rollout.index) for f in finished) == [
        (g, i) for g in ("g0", "g1") for i in range(3)
    ]
    for done in finished:
        assert done.rollout.state is RolloutState.SUCCEEDED
        assert done.rollout.rewards == [0.25, 0.5]
        trajectory = done.trajectory
        assert trajectory is not None
        assert trajectory.incomplete is None
        assert len(trajectory.turns) == 2
        assert len(trajectory.sequences) == 1
        row = trajectory.sequences[0]
        assert (
            row.trained_tokens
            == trajectory.ledger.sampled
            == sum(len(t.completion_token_ids) for t in trajectory.turns)
        )
        assert {v for v, m in zip(row.policy_versions, row.loss_mask, strict=True) if m} == {7}
        key = result_key(f"{pool}/{status.batch_id}", done.rollout.group_id, done.rollout.session_id or "")
        assert chain.bucket.get_json(key)["rewards"] == [0.25, 0.5]
    assert len(chain.runs()) == 6
    no_session_is_left(chain)


@pytest.mark.parametrize("heartbeat_window_s", [10.0])
def test_a_killed_agent_is_a_typed_failure_and_its_siblings_finish(chain: Chain, pool_name: Callable[[], str]) -> None:
    """SIGKILL of one agent process mid-rollout: agent_died for it alone; the other three succeed."""
    pool = pool_name()
    chain.pool(pool, chain.engine("four"))
    gate = chain.folder / "go"
    status = chain.batches().submit(chain.request(pool, groups=2, n=2, wait_for=str(gate)))
    runs = until(lambda: r if len(r := chain.runs()) == 4 else None, "four agents running", DEADLINE_S)
    victim = runs[0]["session"]
    until(lambda: chain.heard(victim), "its agent has reported", DEADLINE_S)
    emulator(chain, "DELETE", f"/_emulator/sessions/{victim}")
    gate.touch()

    by_session = {f.rollout.session_id: f.rollout for f in collect(chain, status.batch_id)}
    failure = by_session[victim].failure
    assert failure is not None
    assert failure.type is FailureType.AGENT_DIED
    assert by_session[victim].rewards is None
    assert Counter(r.state for r in by_session.values()) == {RolloutState.SUCCEEDED: 3, RolloutState.FAILED: 1}
    no_session_is_left(chain)


def test_a_dispatcher_killed_mid_batch_loses_and_doubles_nothing(chain: Chain, pool_name: Callable[[], str]) -> None:
    """SIGKILL and restart while agents run: every rollout is reported once and each agent ran once."""
    pool = pool_name()
    chain.pool(pool, chain.engine("four"))
    gate = chain.folder / "go"
    status = chain.batches().submit(chain.request(pool, groups=3, n=2, wait_for=str(gate)))
    until(lambda: len(chain.runs()) == 6, "six agents running", DEADLINE_S)
    chain.dispatcher.kill()
    gate.touch()
    chain.restart_dispatcher()

    finished = collect(chain, status.batch_id)
    assert Counter(f.rollout.rollout_id for f in finished) == {
        f"{status.batch_id}/g{g}/{i}": 1 for g in range(3) for i in range(2)
    }
    assert all(f.rollout.state is RolloutState.SUCCEEDED and f.trajectory and f.trajectory.sequences for f in finished)
    assert len({r["session"] for r in chain.runs()}) == len(chain.runs()) == 6
    no_session_is_left(chain)


def test_two_trainers_batches_at_once_do_not_mix(chain: Chain, pool_name: Callable[[], str]) -> None:
    """Each batch is answered by its own pool's engine alone, stamped with its own policy version; one's fence does not
    stop the other."""
    left, right = pool_name(), pool_name()
    chain.pool(left, chain.engine("left"), policy_version=1)
    chain.pool(right, chain.engine("right"), policy_version=9)
    client = chain.batches()
    batches = {p: client.submit(chain.request(p, groups=2, n=2)).batch_id for p in (left, right)}
    for pool, word, version in ((left, "left", 1), (right, "right", 9)):
        for done in collect(chain, batches[pool]):
            assert done.rollout.result is not None
            assert done.rollout.result["said"] == word
            assert done.trajectory is not None
            assert {t.policy_version_start for t in done.trajectory.turns} == {version}
        chain.trainer().fence_pool(pool)


def test_an_agent_that_raises_is_reported_with_its_traceback(chain: Chain, pool_name: Callable[[], str]) -> None:
    pool = pool_name()
    chain.pool(pool, chain.engine("four"))
    status = chain.batches().submit(chain.request(pool, groups=1, n=1, fail="no such tool"))
    (done,) = collect(chain, status.batch_id)
    assert done.rollout.failure is not None
    assert done.rollout.failure.type is FailureType.AGENT_ERROR
    assert "no such tool" in done.rollout.failure.message
    assert "caller.py" in (done.rollout.failure.traceback or "")
    assert done.rollout.rewards is None
    assert chain.batches().status(status.batch_id).failures == {"agent_error": 1}
