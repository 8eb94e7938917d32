"""The demo's verdict: each way in which a run would only look like training is called by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollway_local.demo import parser
from rollway_local.demo_plan import DemoError, Plan, interpreter
from rollway_local.demo_report import read_lines, read_report
from rollway_local.demo_trainer import RunFiles, trainer_command, trainer_environment
from rollway_wire.codec import dump_packed

STACK = {
    "s3": {"bucket": "rollway"},
    "emulator": {"agent_runtime_arn": "arn:aws:x", "endpoint_url": "http://127.0.0.1:1"},
    "gateway": {"url": "http://127.0.0.1:2", "admin_url": "http://127.0.0.1:3"},
    "dispatcher": {"url": "http://127.0.0.1:3"},
}


MODEL = {
    "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2,
}  # fmt: skip


def batch(step: int, **other: Any) -> dict[str, Any]:
    return {
        "step": step, "validate": False, "policy_version": step - 1, "groups": 4, "groups_trained": 4, "rollouts": 16,
        "rollouts_trained": 16, "failures": {}, "reward_mean": 0.5, "reward_min": 0.0, "reward_max": 1.0,
        "turns_mean": 2.0, "trained_tokens": 800, "sequences_per_session": 1.0, "fidelity": 1.0,
        "mirror_reasons": [], "ledger": {"sampled": 800, "trained": 800}, "seconds": 20.0,
        "trajectories": None, **other,
    }  # fmt: skip


def trained(**other: Any) -> dict[str, Any]:
    return {
        "actor/grad_norm": 1.0, "critic/advantages/max": 1.2, "critic/advantages/min": -1.1,
        "training/rollout_probs_diff_max": 1e-6, "training/rollout_actor_probs_pearson_corr": 0.99999,
        "timing_s/step": 60.0, **other,
    }  # fmt: skip


def problems(
    folder: Path,
    *,
    batches: list[dict[str, Any]] | None = None,
    steps: list[dict[str, Any]] | None = None,
    weights: str = "abc",
    status: int = 0,
    exact: bool = True,
) -> tuple[str, ...]:
    files = RunFiles(folder)
    batches = [batch(1), batch(2)] if batches is None else batches
    steps = [trained(), trained()] if steps is None else steps
    for path, lines in (
        (files.batches, batches),
        (files.trainer, [{"step": i, "data": data} for i, data in enumerate(steps, 1)]),
        (files.weights, [{"sha256": w} for w in weights]),
    ):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_report(files, steps=2, status=status, exact=exact).problems


def test_a_good_run_has_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path) == ()


NAN = float("nan")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"status": 1}, "the trainer ended with status 1"),
    ({"steps": [trained()]}, "1 of 2 steps were trained"),
    ({"weights": "ab"}, "2 weight updates reached vLLM, 3 were due"),
    ({"weights": "abb"}, "after step 2 are those from before it"),
    ({"weights": "aab"}, "after step 1 are those from before it"),
    ({"steps": [trained(), trained(**{"actor/grad_norm": 0.0})]}, "step 2 trained nothing"),
    ({"steps": [trained(**{"actor/grad_norm": NAN}), trained()]}, "step 1 trained nothing"),
    ({"batches": [batch(1), batch(2, trained_tokens=0)]}, "step 2 trained nothing: 0 tokens"),
    ({"batches": [batch(1, fidelity=0.9, mirror_reasons=["no proof"]), batch(2)]}, "fidelity is 0.9, not 1 (no proof)"),
    ({"batches": [batch(1, fidelity=None), batch(2)]}, "step 1: fidelity is None, not 1 (no reason was recorded)"),
    (
        {"batches": [batch(1), batch(2, ledger={"sampled": 801, "trained": 800, "lost": 0})]},
        "step 2: the ledger does not close: 801 sampled, 800 accounted",
    ),
    (
        {"batches": [batch(1), batch(2, ledger={"sampled": 800, "trained": 790, "lost": 10})]},
        "step 2: 800 tokens are in the rows' loss, 790 in the ledger",
    ),
    (
        {"steps": [trained(**{"critic/advantages/max": 0.0, "critic/advantages/min": 0.0}), trained()]},
        "step 1 trained nothing: 800 tokens, largest advantage 0.0",
    ),
    ({"steps": [trained(**{"training/rollout_actor_probs_pearson_corr": 0.99}), trained()]}, "step 1: Pearson 0.99"),
    ({"steps": [trained(**{"training/rollout_actor_probs_pearson_corr": NAN}), trained()]}, "step 1: Pearson nan"),
]


@pytest.mark.parametrize(("wrong", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_a_run_that_only_looks_like_training_is_a_failure(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    assert any(said in problem for problem in problems(tmp_path, **wrong)), problems(tmp_path, **wrong)


def test_a_run_that_need_not_be_exact_may_show_less_fidelity(tmp_path: Path) -> None:
    batches = [batch(1, fidelity=0.5, mirror_reasons=["no proof"]), batch(2)]
    assert problems(tmp_path, batches=batches, exact=False) == ()


def test_tool_calls_are_counted_over_the_rollouts_whose_agents_count_them(tmp_path: Path) -> None:
    folder = tmp_path / "step-000001-train"
    folder.mkdir()
    results: list[Any] = [{"tool_calls": 2}, {"tool_calls": 1}, {"rewards": 0.0}, None]
    entries = [{"rollout": {"result": result}, "trajectory": None} for result in results]
    (folder / "g.rwpk").write_bytes(dump_packed({"results": entries}))
    files = RunFiles(tmp_path)
    files.batches.write_text(json.dumps(batch(1, trajectories=str(folder))) + "\n")
    assert [s.tool_calls for s in read_report(files, steps=1, status=0).steps] == [1.5]


def test_a_line_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"a": 1}\n{"a": ')
    assert read_lines(tmp_path / "lines") == [{"a": 1}]
    assert read_lines(tmp_path / "missing") == []


def plan(*arguments: str) -> Plan:
    chosen = vars(parser().parse_args(arguments))
    return Plan(**{k: v for k, v in chosen.items() if k != "dir"}, folder=chosen["dir"])


def test_the_trainer_is_verls_own_with_the_stacks_addresses(tmp_path: Path) -> None:
    made = plan("--set", "a.b=1", "--temperature", "0.5")
    model = tmp_path / "m o'd"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    command = trainer_command(Path("/t/python"), made, RunFiles(tmp_path), model=model, data=Path("/d"), stack=STACK)
    assert command[:3] == ["/t/python", "-m", "verl.trainer.main_ppo"]
    assert "rollway.dispatcher_url='http://127.0.0.1:3'" in command
    assert (
        "rollway.runtime={kind:'agentcore',agent_runtime_arn:'arn:aws:x',endpoint_url:'http://127.0.0.1:1'}" in command
    )
    assert f"actor_rollout_ref.model.path='{tmp_path}/m o\\'d'" in command
    assert "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=520" in command
    room = 8 * 512 * (2 * 24 * 2 * 64 * 4)
    assert f"+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes={max(2**28, room * 5 // 4)}" in command
    assert command[-1] == "a.b=1"


def test_a_persons_own_settings_do_not_reach_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "AWS_PROFILE", "VLLM_USE_V1", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"):
        monkeypatch.setenv(name, "theirs")
    made = trainer_environment(plan(), RunFiles(tmp_path))
    assert not {"RAY_ADDRESS", "AWS_PROFILE", "VLLM_USE_V1", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"} & made.keys()
    assert made["VERL_USE_EXTERNAL_MODULES"] == "rollway_driver.cpu.plugin"


def test_a_missing_environment_names_the_make_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLWAY_TRAINER_PYTHON", "/nowhere/python")
    with pytest.raises(DemoError, match="make setup-trainer"):
        interpreter("ROLLWAY_TRAINER_PYTHON")
