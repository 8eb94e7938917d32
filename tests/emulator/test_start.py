"""A wrong setting refuses to start and names itself; --help knows every setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollway_emulator.settings import EmulatorSettings
from tests.emulator.emulator_under_test import ARN, scripted_agent
from tests.kit.services import Services


def _refusal(services: Services, *arguments: str) -> str:
    service = services.spawn("emulator", ["-m", "rollway_emulator", *arguments])
    assert service.wait() == 2
    return service.logs()


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
def test_a_wrong_setting_is_named(services: Services, arguments: list[str], named: str) -> None:
    log = _refusal(services, *arguments)
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
def test_a_wrong_agents_file_is_told_with_its_place(services: Services, tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "agents.json"
    path.write_text(text)
    log = _refusal(services, "--agents", str(path))
    assert "refusing to start: ROLLWAY_EMULATOR_AGENTS" in log
    assert told in log


def test_help_lists_every_setting(services: Services) -> None:
    service = services.spawn("emulator", ["-m", "rollway_emulator", "--help"])
    assert service.wait() == 0
    for name in EmulatorSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in service.logs()


def test_flags_and_toml_serve_as_well_as_variables_and_json(services: Services, tmp_path: Path) -> None:
    agents: dict[str, Any] = scripted_agent()
    path = tmp_path / "agents.toml"
    path.write_text("[[agents]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in agents.items()))
    arguments = ["--agents", str(path), "--state-dir", str(tmp_path / "state"), "--tps", "3"]
    service = services.start("emulator", ["-m", "rollway_emulator", *arguments])
    assert service.stop() in (0, -15)
