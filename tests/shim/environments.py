"""Interpreters of other environments: the one that `make setup` keeps, else a fresh one in a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, timeout_s: float = 600, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run to the end with captured text; AssertionError with the output unless the status is 0."""
    ended: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, **kwargs
    )
    assert ended.returncode == 0, f"{' '.join(map(str, command))}\n{ended.stdout[-8000:]}"
    return ended


def agent_python(folder: Path) -> Path:
    """With everything of deploy/envs/agent.txt and rollway."""
    kept = ROOT / ".venv-agent/bin/python"
    if (
        kept.exists()
        and subprocess.run([kept, "-c", "import strands, rollway_shim"], capture_output=True).returncode == 0
    ):
        return kept
    environment = {**os.environ, "PYTHON": sys.executable}
    run("bash", ROOT / "deploy/envs/build.sh", "agent", folder / "agent", env=environment)
    return folder / "agent/bin/python"


def bare_python(folder: Path) -> Path:
    """With ``rollway[shim]`` from this checkout and what that alone brings."""
    run(sys.executable, "-m", "venv", folder / "shim")
    python = folder / "shim/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{ROOT}[shim]")
    return python
