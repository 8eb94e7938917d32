"""The emulator's settings. Defaults are the service's own quotas and time-outs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from rollway_kit.settings import ServiceSettings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EmulatorSettings(ServiceSettings):
    """Read from ROLLWAY_EMULATOR_… and the command line; a wrong one refuses to start."""

    model_config = SettingsConfigDict(env_prefix="ROLLWAY_EMULATOR_", use_attribute_docstrings=True)

    agents: Path
    """JSON or TOML file that lists the agent runtimes."""
    state_dir: Path = Path(".work/emulator")
    """Folder for sessions: sessions/<session id>/container.log and working folders."""
    tps: Positive = 25.0
    """Invoke and stop together, per runtime ARN, a second."""
    burst: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 25.0
    """Calls let through at once after a quiet time, per runtime ARN."""
    max_sessions: Annotated[int, Field(ge=1)] = 1000
    """Active sessions of all runtimes together."""
    idle_timeout_s: Positive = 900.0
    """A session with no call in flight and no HealthyBusy for so long is ended."""
    lifetime_s: Positive = 28_800.0
    """A session is ended after so long, busy or not."""
    request_timeout_s: Positive = 900.0
    """Longest wait for a container's answer to begin."""
    stream_timeout_s: Positive = 3600.0
    """Longest an answer may go on."""
    payload_limit_bytes: Annotated[int, Field(ge=1)] = 100_000_000
    """Largest request or unstreamed answer."""
    ping_interval_s: Positive = 2.0
    """Between two looks at a container's /ping."""
    ping_timeout_s: Positive = 2.0
    """Longest wait for /ping to answer."""
    stop_grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """From SIGTERM to SIGKILL."""
    first_port: Annotated[int, Field(ge=1024, le=65535)] = 20_000
    """Containers take free ports from here …"""
    last_port: Annotated[int, Field(ge=1024, le=65535)] = 29_999
    """… to here."""
    keep_folders: bool = False
    """Keep the working folders of ended sessions; logs are always kept."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ping_interval_s > self.idle_timeout_s:
            raise ValueError(
                "ping_interval_s over idle_timeout_s would end busy sessions as idle: lower ping_interval_s"
            )
        if self.last_port < self.first_port:
            raise ValueError("last_port is below first_port")
        return self
