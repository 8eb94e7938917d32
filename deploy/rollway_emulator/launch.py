"""How a container is started: argv, environment and folders, worked out without touching anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rollway_emulator.agents import AgentSpec

MARKER_VARIABLE = "ROLLWAY_EMULATOR_SESSION"
"""In the environment of every process of a session: how its escaped descendants are found."""

_INHERITED = re.compile(
    r"PATH|LANG|LC_.*|TZ|USER|LOGNAME|LD_LIBRARY_PATH|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE"
    r"|(https?|no|all)_proxy|AWS_.*",
    re.IGNORECASE,
)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True, slots=True)
class Folders:
    """One container's own folders. ``root`` holds the rest and goes when the container ends."""

    root: Path
    work: Path
    home: Path
    tmp: Path
    log: Path

    @classmethod
    def under(cls, session_folder: Path, run: int) -> Folders:
        root = session_folder / f"container-{run}"
        return cls(root, root / "work", root / "home", root / "tmp", session_folder / "container.log")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    argv: tuple[str, ...]
    env: dict[str, str]
    work: Path


def folder_name(session_id: str) -> str:
    """The session id where a file system takes it, else a digest of it."""
    return session_id if _FOLDER_NAME.fullmatch(session_id) else f"id-{sha256(session_id.encode()).hexdigest()[:40]}"


def inherited(parent: Mapping[str, str]) -> dict[str, str]:
    """What a container takes from the emulator's environment: paths, locale, proxies, and AWS_… as its role."""
    return {name: value for name, value in parent.items() if _INHERITED.fullmatch(name)}


def plan_launch(
    agent: AgentSpec, *, port: int, folders: Folders, marker: str, parent: Mapping[str, str], python: str, launcher: str
) -> LaunchPlan:
    """The command and environment of one container.

    The agent's own ``env`` wins over what is inherited; PORT, HOME, TMPDIR and the marker are the emulator's.
    """
    source = folders.work if agent.copy_source else agent.cwd
    values = {"{port}": str(port), "{cwd}": str(source), "{python}": python, "{launcher}": launcher}
    env = inherited(parent) | agent.env
    if source is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), agent.env.get("PYTHONPATH"))))
    env |= {
        "PORT": str(port),
        "HOME": str(folders.home),
        "TMPDIR": str(folders.tmp),
        "PYTHONUNBUFFERED": "1",
        MARKER_VARIABLE: marker,
    }
    return LaunchPlan(tuple(_filled(part, values) for part in agent.command), env, folders.work)


def _filled(part: str, values: Mapping[str, str]) -> str:
    # Not str.format: an argument may be JSON, and its braces are its own.
    for placeholder, value in values.items():
        part = part.replace(placeholder, value)
    return part
