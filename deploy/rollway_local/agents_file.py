"""Which agent the emulator runs: the person's file, or the demo's agent."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

DEMO_AGENT = Path(__file__).resolve().parents[1] / "demo" / "agent"
DEMO_ARN = "arn:aws:bedrock-agentcore:us-west-2:000000000000:runtime/math-agent"
AGENT_PYTHON = "ROLLWAY_AGENT_PYTHON"


class AgentsFileMissing(Exception):
    """There is no agent to run; the message says what to give."""


def chosen_agents_file(given: Path | None, folder: Path) -> Path:
    """The agents file to give to the emulator; the default one is written to ``folder``.

    Raises:
        AgentsFileMissing: the file, the demo's agent or its interpreter does not exist.
    """
    if given is not None:
        if not given.is_file():
            raise AgentsFileMissing(f"--agents {given}: no such file")
        return given.resolve()
    script, python = DEMO_AGENT / "rl_app.py", os.environ.get(AGENT_PYTHON, "")
    if not script.is_file():
        raise AgentsFileMissing(f"the demo's agent is not here ({script}); name your agents with --agents FILE")
    if not python or not Path(python).is_file():
        raise AgentsFileMissing(
            f"set {AGENT_PYTHON} to the Python of the agent's environment (make setup-agent makes "
            ".venv-agent/bin/python), or name your agents with --agents FILE"
        )
    agent = {"arn": DEMO_ARN, "command": [python, "{cwd}/rl_app.py"], "cwd": str(DEMO_AGENT)}
    path = folder / "agents.json"
    path.write_text(json.dumps({"agents": [agent]}, indent=2))
    return path


def first_arn(path: Path) -> str:
    """The ARN of the first agent in the file.

    Raises:
        AgentsFileMissing: the file lists none or cannot be read.
    """
    try:
        text = path.read_text()
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        return str(document["agents"][0]["arn"])
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise AgentsFileMissing(f"{path} lists no agent with an arn ({type(e).__name__}: {e})") from e
