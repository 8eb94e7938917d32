"""pass@k against counting every draw, and what counts as a sample."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from rollway_driver.client import StreamedRollout
from rollway_driver.evaluation.agent import runtime_of
from rollway_driver.evaluation.data_set import EvaluationError, read_data_set
from rollway_driver.evaluation.journal import open_journal
from rollway_driver.evaluation.pass_at_k import mean_pass_at_k, pass_at_k
from rollway_driver.evaluation.score import counts, sample_of, summarize
from rollway_wire.batch import AgentCoreRuntime, HttpRuntime, ProcessRuntime, RolloutResult, RolloutState, Timings
from rollway_wire.failures import Failure, FailureType


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in range(1, 8) for k in range(1, n + 1)])
def test_pass_at_k_is_the_share_of_draws_with_a_correct_one(n: int, k: int) -> None:
    for c in range(n + 1):
        draws = list(combinations(range(n), k))
        hit = sum(any(i < c for i in draw) for draw in draws)
        assert pass_at_k(n, c, k) == pytest.approx(hit / len(draws), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_pass_at_k_of_what_was_not_drawn_is_an_error(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k"):
        pass_at_k(n, c, k)


def test_large_numbers_do_not_overflow_and_small_inputs_are_left_out() -> None:
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    found = mean_pass_at_k([(4, 4), (4, 0), (1, 1)], 2)
    assert (found.value, found.inputs) == (0.5, 2)
    assert mean_pass_at_k([(1, 1)], 2).value is None


def _ended(state: RolloutState, rewards: list[float] | None = None, kind: FailureType | None = None) -> StreamedRollout:
    failure = None if kind is None else Failure(type=kind, message="why")
    rollout = RolloutResult(
        rollout_id="b/q/0", batch_id="b", group_id="q", index=0, state=state, attempt=1, session_id="s",
        failure=failure, rewards=rewards, result=None, timings=Timings(invoked_at=10.0, finished_at=12.5),
    )  # fmt: skip
    return StreamedRollout(1, rollout, None)


@pytest.mark.parametrize(
    ("state", "rewards", "kind", "correct", "kept"),
    [
        (RolloutState.SUCCEEDED, [0.2, 1.0], None, True, True),
        (RolloutState.SUCCEEDED, [1.0, 0.2], None, False, True),
        (RolloutState.SUCCEEDED, None, None, None, True),
        (RolloutState.FAILED, None, FailureType.AGENT_ERROR, False, True),
        (RolloutState.FAILED, None, FailureType.TIMED_OUT, False, True),
        (RolloutState.FAILED, None, FailureType.NO_TURNS, False, True),
        (RolloutState.FAILED, None, FailureType.AGENT_DIED, None, True),
        (RolloutState.FAILED, None, FailureType.THROTTLED, None, True),
        (RolloutState.FAILED, None, FailureType.CONTRACT_ERROR, None, False),
        (RolloutState.CANCELLED, None, FailureType.CANCELLED, None, False),
    ],
)
def test_what_counts(state: RolloutState, rewards: list[float] | None, kind: FailureType | None,
                     correct: bool | None, kept: bool) -> None:  # fmt: skip
    """The last reward decides; an agent's own failure is a wrong answer; the infrastructure's is none at all."""
    found = _ended(state, rewards, kind)
    sample = sample_of(found, 0, threshold=1.0)
    assert (sample["correct"], sample["seconds"], counts(found)) == (correct, 2.5, kept)
    summary = summarize([sample], [1])
    assert summary.counted == (correct is not None) and summary.failed == (kind is not None)


def test_rows_are_named_by_their_ids_where_these_can_name(tmp_path: Path) -> None:
    def read(*rows: object, limit: int | None = None) -> list[str]:
        path = tmp_path / "d.jsonl"
        path.write_text("\n\n".join(json.dumps(r) for r in rows) + "\n")
        return list(read_data_set(path, limit).rows)

    assert read({"id": "a"}, {"id": 7}) == ["a", "7"]
    assert read({"id": "a"}, {"id": "a"}) == ["0", "1"]
    assert read({"id": "a/b"}, {"id": "c"}) == ["0", "1"]
    assert read({}, {}, {}, limit=2) == ["0", "1"]
    for wrong, why in (((1,), "line 1"), (({"_rollout": 1},), "_rollout"), ((), "no rows")):
        with pytest.raises(EvaluationError, match=why):
            read(*wrong)
    with pytest.raises(EvaluationError, match="No such file"):
        read_data_set(tmp_path / "nowhere")


def test_agents_by_arn_url_script_and_command(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.touch()
    arn = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-x"
    assert isinstance(runtime_of(arn), AgentCoreRuntime)
    assert runtime_of("http://a:1, http://b:2") == HttpRuntime(urls=["http://a:1", "http://b:2"])
    made = runtime_of(str(script))
    assert isinstance(made, ProcessRuntime) and made.command[1] == str(script) and made.cwd == str(tmp_path)
    assert isinstance(command := runtime_of("node 'my agent.js'"), ProcessRuntime)
    assert command.command == ["node", "my agent.js"]
    for wrong in ("nowhere.py", "", "arn:short"):
        with pytest.raises(EvaluationError):
            runtime_of(wrong)


def test_a_journal_survives_a_cut_line_and_refuses_what_does_not_belong(tmp_path: Path) -> None:
    folder, identity = tmp_path / "run", {"n": 2}
    journal = open_journal(folder, identity, resume=False)
    with pytest.raises(EvaluationError, match="in use"):
        open_journal(folder, identity, resume=True)
    journal.set_batch({"batch_id": "b"})
    journal.add({"input_id": "q", "batch_id": "b", "cursor": 3})
    journal.close()
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"input_id": "q", "batch')
    with pytest.raises(EvaluationError, match="--resume"):
        open_journal(folder, identity, resume=False)
    with pytest.raises(EvaluationError, match="another n"):
        open_journal(folder, {"n": 3}, resume=True)
    journal = open_journal(folder, identity, resume=True)
    assert (journal.cursor("b"), journal.cursor("c"), journal.done()["q"]) == (3, 0, 1)
    journal.add({"input_id": "q", "batch_id": "b", "cursor": 4})
    journal.close()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2
