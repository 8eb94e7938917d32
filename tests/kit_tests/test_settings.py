"""Settings: read from the environment, frozen, and a wrong one is named before anything starts."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import SettingsConfigDict

from rollway_kit.settings import ServiceSettings, load


class ExampleSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="ROLLWAY_EXAMPLE_")

    tps: Annotated[float, Field(gt=0)] = 25.0
    hosts: list[str] = []  # noqa: RUF012
    admin_key: Annotated[str, Field(min_length=8)] = "long-enough"
    low: int = 0
    high: int = 10

    @model_validator(mode="after")
    def _ordered(self) -> ExampleSettings:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


def test_the_environment_and_overrides_are_read_and_none_overrides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLWAY_EXAMPLE_TPS", "3")
    monkeypatch.setenv("ROLLWAY_EXAMPLE_HOSTS", '["a", "b"]')
    made = load(ExampleSettings, port=7000, tps=None)
    assert (made.tps, made.hosts, made.port, made.host) == (3.0, ["a", "b"], 7000, "127.0.0.1")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(ExampleSettings).tps = 1.0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ROLLWAY_EXAMPLE_TPS", "0"),
        ("ROLLWAY_EXAMPLE_TPS", "fast"),
        ("ROLLWAY_EXAMPLE_PORT", "eighty"),
        ("ROLLWAY_EXAMPLE_HOSTS", "a,b"),
        ("ROLLWAY_EXAMPLE_HOSTS", "[1]"),
        ("ROLLWAY_EXAMPLE_LOG_JSON", "perhaps"),
    ],
)
def test_a_wrong_setting_refuses_to_start_and_is_named(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match="2"):
        load(ExampleSettings)
    assert f"refusing to start: {variable}" in capsys.readouterr().err


def test_each_wrong_setting_has_its_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROLLWAY_EXAMPLE_TPS", "0")
    monkeypatch.setenv("ROLLWAY_EXAMPLE_LOW", "x")
    with pytest.raises(SystemExit):
        load(ExampleSettings)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_an_unsafe_combination_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(ExampleSettings, low=11)
    assert "low is above high" in capsys.readouterr().err


def test_an_unknown_override_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(ExampleSettings, prot=7000)
    assert "ROLLWAY_EXAMPLE_PROT" in capsys.readouterr().err


def test_a_wrong_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROLLWAY_EXAMPLE_ADMIN_KEY", "hunter2")
    with pytest.raises(SystemExit):
        load(ExampleSettings)
    shown = capsys.readouterr().err
    assert "ROLLWAY_EXAMPLE_ADMIN_KEY" in shown
    assert "hunter2" not in shown
