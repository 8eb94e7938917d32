"""Agents written for an image run here: on their own port 8080, or with faults that must be told clearly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollway_emulator import container
from tests.emulator.emulator_under_test import AGENTS, Emulator, new_session_id, open_emulator, scripted_agent
from tests.kit.services import Services

RUN_SCRIPTED = f"import runpy; runpy.run_path({str(AGENTS / 'scripted_agent.py')!r}, run_name='__main__')"
COMMANDS = {
    "as-module": ["{python}", "-m", "rollway_emulator.container", "{cwd}/port_8080_agent.py", "--flag"],
    "by-path": ["{python}", "{launcher}", "{cwd}/port_8080_agent.py", "--flag"],
    "of-module": ["{python}", "{launcher}", "-m", "uvicorn", "port_8080_agent:app", "--port", "8080"],
    "no-program": ["no-such-program-anywhere"],
    "exits": ["{python}", "-c", "raise SystemExit(3)"],
    "silent": ["{python}", "-c", "import time; time.sleep(600)"],
    "braces": ["{python}", "-c", RUN_SCRIPTED, json.dumps({"port": 1})],
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One runtime per command."""
    folder = tmp_path_factory.mktemp("launched")
    services = Services(folder)
    agents = [
        scripted_agent(_arn(name), command=command, start_timeout_s=0.5 if name == "silent" else 60)
        for name, command in COMMANDS.items()
    ]
    try:
        with open_emulator(services, folder, agents=agents) as opened:
            yield opened
    finally:
        services.close()


def _arn(name: str) -> str:
    return f"arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/{name}"


@pytest.mark.parametrize("name", ["as-module", "by-path"])
def test_an_app_that_asks_for_port_8080_serves_on_its_sessions_port(emulator: Emulator, name: str) -> None:
    emulator.arn = _arn(name)
    for session_id in (new_session_id(), new_session_id()):
        assert emulator.invoke(session_id, prompt="hi") == {
            "greeting": "hello from beside",
            "session_id": session_id,
            "argv": ["--flag"],
            "payload": {"prompt": "hi"},
        }


def test_a_module_can_be_launched(emulator: Emulator) -> None:
    emulator.arn = _arn("of-module")
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


def test_a_command_that_does_not_exist_is_told_with_the_log(emulator: Emulator) -> None:
    emulator.arn = _arn("no-program")
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="status 127"):
        emulator.invoke(session_id)
    log = emulator.state_dir / "sessions" / session_id / "container.log"
    assert "cannot run no-such-program-anywhere" in log.read_text()


def test_an_agent_that_exits_at_start_is_told_at_once(emulator: Emulator) -> None:
    emulator.arn = _arn("exits")
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="status 3"):
        emulator.invoke(new_session_id())


def test_an_agent_that_never_answers_ping_is_given_up_with_the_fix(emulator: Emulator) -> None:
    emulator.arn = _arn("silent")
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="launcher"):
        emulator.invoke(session_id)
    assert emulator.wait_ended(session_id)["reason"] == "start_timeout"


def test_braces_in_a_command_stay_as_they_are(emulator: Emulator) -> None:
    emulator.arn = _arn("braces")
    assert emulator.invoke(new_session_id())["calls"] == 1
