"""The repository as its own tests see it: tracked files, the package definition, the Makefile's targets."""

from __future__ import annotations

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@cache
def tracked() -> tuple[str, ...]:
    """Every file git would publish, by its path from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return tuple(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def texts(*suffixes: str) -> list[tuple[str, str]]:
    """(path, text) of each tracked text file, or of those with one of the suffixes."""
    found = []
    for name in tracked():
        if suffixes and not name.endswith(suffixes):
            continue
        raw = (ROOT / name).read_bytes()
        if b"\0" not in raw:
            found.append((name, raw.decode()))
    return found


@cache
def definition() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def pins(name: str) -> dict[str, str]:
    """Version by normalised distribution name of deploy/envs/NAME.txt."""
    lines = (ROOT / f"deploy/envs/{name}.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", dist).lower(): version for dist, version in pairs}
