"""However the emulator ends, nothing it started outlives it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.emulator.conftest import StartEmulator
from tests.emulator.emulator_under_test import Emulator, alive, new_session_id, wait_dead
from tests.kit.deadlines import until


def _guard_of(emulator: Emulator) -> int:
    """The pid of the emulator's orphan guard."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == emulator.service.pid and b"rollway_emulator.orphan_guard" in command:
            return int(entry.name)
    raise AssertionError("the emulator has no orphan guard")


def _families(emulator: Emulator, count: int = 2) -> list[int]:
    return [pid for _ in range(count) for pid in emulator.invoke(new_session_id(), do="family")["pids"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_shutdown_leaves_no_process_and_no_working_folder(
    start_emulator: StartEmulator, number: signal.Signals
) -> None:
    emulator = start_emulator()
    pids = [*_families(emulator), _guard_of(emulator)]
    emulator.service.signal(number)
    emulator.service.wait()
    assert not any(map(alive, pids))
    assert not list(emulator.state_dir.glob("sessions/*/container-*"))
    assert len(list(emulator.state_dir.glob("sessions/*/container.log"))) == 2


def test_a_shutdown_does_not_wait_for_calls_in_flight(start_emulator: StartEmulator) -> None:
    emulator = start_emulator()
    session_id = new_session_id()
    pid = emulator.invoke(session_id)["pid"]
    hanging = threading.Thread(target=_invoke_in_vain, args=(emulator, session_id))
    hanging.start()
    until(lambda: (emulator.active(session_id) or {})["calls_in_flight"] == 1, "the call is in flight")
    emulator.service.stop()
    hanging.join(30)
    assert not hanging.is_alive()
    assert not alive(pid)


def _invoke_in_vain(emulator: Emulator, session_id: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 - how a call breaks with its server is not promised
        emulator.invoke(session_id, do="hang")


def test_sigkill_of_the_emulator_leaves_no_process(start_emulator: StartEmulator) -> None:
    emulator = start_emulator()
    pids = [*_families(emulator), _guard_of(emulator)]
    emulator.service.kill()
    wait_dead(pids)


def test_a_guard_that_was_killed_is_replaced_and_guards_the_old_sessions_too(start_emulator: StartEmulator) -> None:
    emulator = start_emulator()
    pids = _families(emulator, 1)
    guard = _guard_of(emulator)
    os.kill(guard, signal.SIGKILL)
    wait_dead([guard])
    pids += _families(emulator, 1)
    replaced = _guard_of(emulator)
    emulator.service.kill()
    wait_dead([*pids, replaced])
