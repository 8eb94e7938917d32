"""verl's own trainer through the whole real stack, with a tiny model: exact log-probs, new weights, whole groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollway_local.demo_report import read_lines, read_report
from rollway_local.demo_trainer import RunFiles
from rollway_wire.codec import load_packed, load_trajectory
from tests.kit.vllm_server import tiny_model, trainer_python

AGENT = Path(__file__).parents[1] / "driver_verl" / "agents" / "mortal.py"
ARN = "arn:aws:bedrock-agentcore:us-west-2:000000000000:runtime/mortal"
STEPS, PROMPTS, ROLLOUTS = 2, 3, 3


def agents_file(folder: Path) -> Path:
    deaths = folder / "deaths"
    deaths.mkdir()
    spec = {
        "arn": ARN,
        "command": [sys.executable, str(AGENT)],
        "cwd": str(AGENT.parent),
        "env": {"DEATHS": str(deaths)},
    }
    path = folder / "agents.json"
    path.write_text(json.dumps({"agents": [spec]}))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """One run of the demo's command with the tiny model and mortal agents; it ended well."""
    folder = tmp_path_factory.mktemp("demo")
    command = [
        sys.executable, "-m", "rollway_local", "demo", "--dir", str(folder / "out"),
        "--agents", str(agents_file(folder)), "--model", str(tiny_model(folder)),
        "--steps", str(STEPS), "--prompts", str(PROMPTS), "--rollouts", str(ROLLOUTS),
        "--max-tokens", "12", "--prompt-length", "128", "--response-length", "128", "--learning-rate", "1e-3",
        "--temperature", "0.9", "--set", "rollway.max_attempts=1",
    ]  # fmt: skip
    environment = {**os.environ, "ROLLWAY_TRAINER_PYTHON": str(trainer_python())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    print(done.stdout[-6000:], done.stderr[-3000:])
    assert done.returncode == 0
    return RunFiles((folder / "out" / "latest").resolve())


def rollouts(run: RunFiles, step: int) -> list[dict[str, Any]]:
    files = sorted((run.trajectories / f"step-{step:06d}-train").glob("*.rwpk"))
    assert len(files) == PROMPTS
    return [entry for path in files for entry in load_packed(path.read_bytes())["results"]]


pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]


def test_engine_and_trainer_agree_on_every_sampled_token_at_every_step(run: RunFiles) -> None:
    report = read_report(run, steps=STEPS, status=0)
    assert report.problems == () and len(report.steps) == STEPS
    for step in report.steps:
        assert step.probability_difference is not None and step.probability_difference < 1e-4
        assert step.pearson is not None and step.pearson > 0.9999


def test_every_step_samples_from_new_weights_and_says_so(run: RunFiles) -> None:
    weights = [line["sha256"] for line in read_lines(run.weights)]
    assert len(weights) == len(set(weights)) == STEPS + 1
    for step in range(1, STEPS + 1):
        versions = {
            version
            for entry in rollouts(run, step)
            if entry["trajectory"]
            for s in load_trajectory(entry["trajectory"]).sequences
            for version, mask in zip(s.policy_versions, s.loss_mask, strict=True)
            if mask
        }
        assert versions == {step - 1}


def test_killed_agents_cost_their_own_rows_and_a_lone_survivor_is_not_trained(run: RunFiles) -> None:
    first, second = read_lines(run.batches)
    assert first["failures"] == {"agent_died": 3}
    assert (first["groups_trained"], first["rollouts_trained"]) == (2, 5)
    assert (second["groups_trained"], second["rollouts_trained"], second["failures"]) == (3, 9, {})
    died = Counter(e["rollout"]["group_id"] for e in rollouts(run, 1) if e["rollout"]["failure"])
    assert sorted(died.values()) == [1, 2]


def test_each_sampled_token_is_trained_once(run: RunFiles) -> None:
    for line in read_lines(run.batches):
        ledger = line["ledger"]
        assert ledger["sampled"] == ledger["trained"] == line["trained_tokens"] > 0
        assert line["turns_mean"] == 2
        assert (line["fidelity"], line["sequences_per_session"], line["mirror_reasons"]) == (1.0, 1.0, [])
    for entry in rollouts(run, 2):
        t = load_trajectory(entry["trajectory"])
        assert sum(s.trained_tokens for s in t.sequences) == sum(len(turn.completion_token_ids) for turn in t.turns)
        assert entry["rollout"]["rewards"][0] == 0.0
