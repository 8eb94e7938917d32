"""A wrong setting refuses to start and names itself; --help knows every setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollway_emulator.__main__ import main
from rollway_emulator.settings import EmulatorSettings
from rollway_kit.serve import bind
from tests.emulator.emulator_under_test import ARN, scripted_agent
from tests.kit.services import Services


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "ROLLWAY_EMULATOR_AGENTS"),
        (["--agents", "x.json", "--tps", "0"], "ROLLWAY_EMULATOR_TPS"),
        (["--agents", "x.json", "--burst", "0.5"], "ROLLWAY_EMULATOR_BURST"),
        (["--agents", "x.json", "--max-sessions", "none"], "ROLLWAY_EMULATOR_MAX_SESSIONS"),
        (["--agents", "x.json", "--idle-timeout-s", "nan"], "ROLLWAY_EMULATOR_IDLE_TIMEOUT_S"),
        (["--agents", "x.json", "--idle-timeout-s", "1", "--ping-interval-s", "2"], "ping_interval_s"),
        (["--agents", "x.json", "--first-port", "30000", "--last-port", "29000"], "last_port"),
        (["--agents", "missing.json"], "ROLLWAY_EMULATOR_AGENTS: missing.json"),
    ],
)
def test_a_wrong_setting_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    log = _refusal(capsys, *arguments)
    assert "refusing to start" in log
    assert named in log


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "agents"),
        ('{"agents": []}', "agents"),
        (json.dumps({"agents": [scripted_agent("nonsense")]}), "agents.0.arn"),
        (json.dumps({"agents": [scripted_agent(), scripted_agent()]}), "more than once"),
        (json.dumps({"agents": [scripted_agent(cwd="nowhere")]}), "not a folder"),
        (json.dumps({"agents": [scripted_agent(colour="green")]}), "colour"),
        (json.dumps({"agents": [{"arn": ARN, "command": ["{cwd}/x"]}]}), "need cwd"),
        (json.dumps({"agents": [{"arn": ARN, "command": []}]}), "command"),
        (json.dumps({"agents": [scripted_agent(chaos={"crash": {"after_s": -1}})]}), "chaos.crash.after_s"),
    ],
)
def test_a_wrong_agents_file_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "agents.json"
    path.write_text(text)
    log = _refusal(capsys, "--agents", str(path))
    assert "refusing to start: ROLLWAY_EMULATOR_AGENTS" in log
    assert told in log


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for name in EmulatorSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown


def test_a_port_that_is_taken_and_a_wrong_log_level_refuse_to_start(services: Services, tmp_path: Path) -> None:
    """As processes: these refusals come after the process's own logging or socket is set up."""
    path = tmp_path / "agents.json"
    path.write_text(json.dumps({"agents": [scripted_agent()]}))
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        both = [("--port", port, "cannot bind"), ("--log-level", "loud", "ROLLWAY_EMULATOR_LOG_LEVEL")]
        for flag, value, told in both:
            service = services.spawn("emulator", ["-m", "rollway_emulator", "--agents", str(path), flag, value])
            assert service.wait() == 2
            assert told in service.logs()


def test_flags_and_toml_serve_as_well_as_variables_and_json(services: Services, tmp_path: Path) -> None:
    agents: dict[str, Any] = scripted_agent()
    path = tmp_path / "agents.toml"
    path.write_text("[[agents]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in agents.items()))
    arguments = ["--agents", str(path), "--state-dir", str(tmp_path / "state"), "--tps", "3"]
    service = services.start("emulator", ["-m", "rollway_emulator", *arguments])
    assert service.stop() in (0, -15)
