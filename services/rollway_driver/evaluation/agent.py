"""``--agent``: an AgentCore runtime, containers by URL, or a program of this machine's."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rollway_driver.evaluation.data_set import EvaluationError
from rollway_wire.batch import AgentCoreRuntime, HttpRuntime, ProcessRuntime, RuntimeSpec

AGENT_PYTHON = "ROLLWAY_AGENT_PYTHON"


def runtime_of(agent: str, endpoint_url: str | None = None) -> RuntimeSpec:
    """What an ``--agent`` means.

    Args:
        agent: ``arn:…``, ``http://…`` (several, comma-separated), a ``.py`` file, or a command line that serves the
            AgentCore contract on ``$PORT``.
        endpoint_url: another endpoint of the AgentCore API than AWS's.

    Raises:
        EvaluationError: none of these.
    """
    try:
        if agent.startswith("arn:"):
            return AgentCoreRuntime(agent_runtime_arn=agent, endpoint_url=endpoint_url)
        if agent.startswith(("http://", "https://")):
            return HttpRuntime(urls=[u.strip() for u in agent.split(",")])
    except ValueError as e:
        raise EvaluationError(f"--agent {agent}: {e}") from e
    if agent.endswith(".py"):
        script = Path(agent).resolve()
        if not script.is_file():
            raise EvaluationError(f"--agent {agent}: no such file")
        python = os.environ.get(AGENT_PYTHON) or sys.executable
        return ProcessRuntime(command=[python, str(script)], cwd=str(script.parent))
    words = shlex.split(agent)
    if not words:
        raise EvaluationError("--agent is empty")
    return ProcessRuntime(command=words, cwd=str(Path.cwd()))
