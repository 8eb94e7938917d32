"""An agent built with agentcore-rl-toolkit itself works with our dispatcher and gateway unmodified."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_wire.batch import RolloutState
from tests.e2e.conftest import AGENTS, DEADLINE_S, Chain

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

TOOLKIT = "agentcore-rl-toolkit==0.1.6"
AGENT_PYTHON = os.environ.get("ROLLWAY_AGENT_PYTHON") or str(
    Path(__file__).parents[2] / ".venv-agent" / "bin" / "python"
)


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published package alone, to lie beside the agent environment's own bedrock-agentcore and boto3."""
    target = tmp_path_factory.mktemp("toolkit")
    pip = [AGENT_PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), TOOLKIT]
    subprocess.run(pip, check=True, timeout=300)
    return target


@pytest.fixture
def agent(toolkit: Path, container_env: dict[str, str]) -> dict[str, Any]:
    return {
        "command": [AGENT_PYTHON, "{launcher}", "{cwd}/toolkit_agent.py"],
        "cwd": str(AGENTS),
        "env": {**container_env, "PYTHONPATH": str(toolkit)},
    }


def test_an_image_built_with_the_toolkit_is_collected_without_any_push(
    chain: Chain, pool_name: Callable[[], str]
) -> None:
    """No heartbeat and no done ever come: the prefix listing finds the results, and the tokens are joined all the
    same."""
    pool = pool_name()
    chain.pool(pool, chain.engine("four"), policy_version=3)
    status = chain.batches().submit(chain.request(pool, groups=2, n=2))
    finished = list(chain.batches().stream(status.batch_id, timeout=DEADLINE_S))
    assert len(finished) == 4
    for done in finished:
        assert done.rollout.state is RolloutState.SUCCEEDED, done.rollout.failure
        assert done.rollout.rewards == [0.5]
        assert done.trajectory is not None
        assert done.trajectory.incomplete is None
        assert [s.trained_tokens for s in done.trajectory.sequences] == [done.trajectory.ledger.sampled]
    assert len(chain.runs()) == 4
