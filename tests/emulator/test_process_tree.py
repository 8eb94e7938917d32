"""Killing a session's processes is over when none is left, not when none can be recognised any more."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollway_emulator import process_tree
from rollway_emulator.process_tree import StillAlive, kill_tree
from tests.emulator.emulator_under_test import alive

LARGE = "held = bytearray(b'x') * 500_000_000; print('ready', flush=True); import time; time.sleep(600)"
"""Takes the kernel a while to end: its environment cannot be read meanwhile, and its files and ports are still open."""


class ScriptedProc:
    """A /proc of one process in a folder, which has no environment once it is killed, and goes some looks later."""

    def __init__(self, folder: Path, group: int, looks: int) -> None:
        self._entry = folder / "4242"
        self._looks = itertools.count()
        self._last, self._group = looks, group
        self.kills = 0
        self._entry.mkdir()
        (self._entry / "environ").write_bytes(b"A=1\0MARK=m.1.\0")
        self._stat(f"S 1 {group}", began=17)

    def _stat(self, said: str, began: int) -> None:
        (self._entry / "stat").write_text(f"4242 (a) name)) {said} {' '.join('0' * 16)} {began} 0 0\n")

    def kill(self, pid: int, number: int) -> None:
        assert pid == 4242
        self.kills += 1
        (self._entry / "environ").write_bytes(b"")

    def killpg(self, group: int, number: int) -> None:
        if group == self._group:
            self.kill(4242, number)

    def glob(self, pattern: str) -> list[Path]:
        if next(self._looks) == self._last:
            self._stat("S 1 77", began=18)  # another process under its pid
        return [self._entry]


@pytest.fixture(params=[4242, 77], ids=["in the group", "left the group"])
def proc(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedProc:
    made = ScriptedProc(tmp_path, request.param, looks=30)
    monkeypatch.setattr(process_tree, "_PROC", made)
    monkeypatch.setattr(os, "kill", made.kill)
    monkeypatch.setattr(os, "killpg", made.killpg)
    return made


def test_a_process_is_waited_for_until_it_is_gone_and_another_of_its_pid_is_let_alone(proc: ScriptedProc) -> None:
    kill_tree({4242}, "MARK", "m.1.")
    assert next(proc._looks) == 32, "two looks that found nothing, after those that found it dying"
    assert proc.kills in (30, 31), "at each of those looks, and before with its group"


def test_one_that_does_not_go_is_said(proc: ScriptedProc) -> None:
    with pytest.raises(StillAlive, match="4242"):
        kill_tree({4242}, "MARK", "m.1.", deadline_s=0.0)


def test_a_large_process_is_waited_for() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LARGE], env={**os.environ, "MARK": "m.1."}, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with process.stdout as said:
            assert said.readline() == b"ready\n"
        kill_tree((), "MARK", "m.1.")
        assert not alive(process.pid)
    finally:
        process.kill()
        process.wait()
