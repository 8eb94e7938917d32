"""What a container is started with, worked out without starting one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rollway_emulator.agents import AgentSpec
from rollway_emulator.launch import MARKER_VARIABLE, Folders, LaunchPlan, folder_name, inherited, plan_launch

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/a-1"
FOLDERS = Folders.under(Path("/state/s"), 1)


def _plan(parent: dict[str, str] | None = None, **changes: Any) -> LaunchPlan:
    agent = AgentSpec.model_validate({"arn": ARN, "command": ["x"], **changes})
    return plan_launch(
        agent, port=1234, folders=FOLDERS, marker="m.", parent=parent or {}, python="/py", launcher="/launcher.py"
    )


def test_placeholders_are_filled_everywhere_and_other_braces_left() -> None:
    plan = _plan(
        command=["{python}", "{launcher}", "{cwd}/a.py", "--at=:{port}", '{"json": {}}', "{other}"], cwd="/src"
    )
    assert plan.argv == ("/py", "/launcher.py", "/src/a.py", "--at=:1234", '{"json": {}}', "{other}")


def test_a_copied_source_is_where_cwd_points() -> None:
    plan = _plan(command=["{cwd}/a.py"], cwd="/src", copy_source=True)
    assert plan.argv == (f"{FOLDERS.work}/a.py",)
    assert plan.env["PYTHONPATH"] == str(FOLDERS.work)


def test_the_emulators_own_variables_win_and_the_agents_win_over_what_is_inherited() -> None:
    plan = _plan({"PATH": "/bin", "LANG": "C"}, env={"LANG": "de", "PORT": "8080", "HOME": "/elsewhere"})
    assert plan.env == {
        "PATH": "/bin",
        "LANG": "de",
        "PORT": "1234",
        "HOME": str(FOLDERS.home),
        "TMPDIR": str(FOLDERS.tmp),
        "PYTHONUNBUFFERED": "1",
        MARKER_VARIABLE: "m.",
    }


def test_the_source_comes_before_the_agents_own_pythonpath() -> None:
    assert _plan(cwd="/src", env={"PYTHONPATH": "/lib"}).env["PYTHONPATH"] == os.pathsep.join(["/src", "/lib"])
    assert "PYTHONPATH" not in _plan({"PYTHONPATH": "/emulators"}).env


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("PATH", True), ("LC_ALL", True), ("AWS_SECRET_ACCESS_KEY", True), ("https_proxy", True), ("NO_PROXY", True),
        ("SSL_CERT_FILE", True), ("HOME", False), ("PYTHONPATH", False), ("ROLLWAY_EMULATOR_AGENTS", False),
        ("OPENAI_API_KEY", False), ("XPATH", False), ("PATH_EXTRA", False),
    ],
)  # fmt: skip
def test_what_a_container_inherits(name: str, taken: bool) -> None:
    assert inherited({name: "v"}) == ({name: "v"} if taken else {})


@pytest.mark.parametrize("session_id", ["a" * 33, "0-._" * 10, "a" * 200])
def test_a_plain_session_id_names_its_folder(session_id: str) -> None:
    assert folder_name(session_id) == session_id


@pytest.mark.parametrize("session_id", ["../" * 12, "." * 40, "a/" * 20, "-" * 40, "a" * 201, "é" * 40, "a b" * 20])
def test_another_gets_a_folder_of_its_own_inside_the_state_folder(session_id: str) -> None:
    name = folder_name(session_id)
    assert name not in (session_id, folder_name(session_id + "x"))
    assert Path(name).name == name
    assert len(name) < 100
