"""Agents written for an image run here: on their own port 8080, or with faults that must be told clearly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollway_emulator import container
from tests.emulator.conftest import StartEmulator
from tests.emulator.emulator_under_test import AGENTS, new_session_id, scripted_agent


@pytest.mark.parametrize(
    "launcher",
    [["{python}", "-m", "rollway_emulator.container"], ["{python}", "{launcher}"]],
    ids=["as a module", "by path"],
)
def test_an_app_that_asks_for_port_8080_serves_on_its_sessions_port(
    start_emulator: StartEmulator, launcher: list[str]
) -> None:
    emulator = start_emulator(agents=[scripted_agent(command=[*launcher, "{cwd}/port_8080_agent.py", "--flag"])])
    one, two = new_session_id(), new_session_id()
    for session_id in (one, two):
        answer = emulator.invoke(session_id, prompt="hi")
        assert answer == {
            "greeting": "hello from beside",
            "session_id": session_id,
            "argv": ["--flag"],
            "payload": {"prompt": "hi"},
        }


def test_a_module_can_be_launched(start_emulator: StartEmulator) -> None:
    command = ["{python}", "{launcher}", "-m", "uvicorn", "port_8080_agent:app", "--port", "8080"]
    emulator = start_emulator(agents=[scripted_agent(command=command)])
    assert emulator.invoke(new_session_id())["greeting"] == "hello from beside"


@pytest.mark.parametrize(
    ("arguments", "port", "told"),
    [([], "8123", "usage"), (["-m"], "8123", "usage"), (["x.py"], "", "usage"), (["x.py"], "8123", "no such script")],
)
def test_the_launcher_says_what_is_wrong(tmp_path: Path, arguments: list[str], port: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, container.__file__, *arguments],
        env={**os.environ, "PORT": port},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert told in done.stderr


def test_a_command_that_does_not_exist_is_told_with_the_log(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(agents=[scripted_agent(command=["no-such-program-anywhere"])])
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="status 127"):
        emulator.invoke(session_id)
    log = emulator.state_dir / "sessions" / session_id / "container.log"
    assert "cannot run no-such-program-anywhere" in log.read_text()


def test_an_agent_that_exits_at_start_is_told_at_once(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(agents=[scripted_agent(command=["{python}", "-c", "raise SystemExit(3)"])])
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="status 3"):
        emulator.invoke(new_session_id())


def test_an_agent_that_never_answers_ping_is_given_up_with_the_fix(start_emulator: StartEmulator) -> None:
    agent = scripted_agent(command=["{python}", "-c", "import time; time.sleep(600)"], start_timeout_s=0.5)
    emulator = start_emulator(agents=[agent])
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="launcher"):
        emulator.invoke(session_id)
    assert emulator.wait_ended(session_id)["reason"] == "start_timeout"


def test_braces_in_a_command_stay_as_they_are(start_emulator: StartEmulator) -> None:
    code = f"import runpy; runpy.run_path({str(AGENTS / 'scripted_agent.py')!r}, run_name='__main__')"
    emulator = start_emulator(agents=[scripted_agent(command=["{python}", "-c", code, json.dumps({"port": 1})])])
    assert emulator.invoke(new_session_id())["calls"] == 1
