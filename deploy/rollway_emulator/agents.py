"""The agent runtimes this emulator serves, and the file that lists them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rollway_emulator.chaos import ChaosSpec, Seconds
from rollway_emulator.validation import DEFAULT_QUALIFIER

PLACEHOLDERS = ("{port}", "{cwd}", "{python}", "{launcher}")


class AgentsFileError(ValueError):
    """The agents file cannot be used; the message says which file, which entry and why."""


class AgentSpec(BaseModel):
    """One agent runtime. Its container is a process group per session, started from ``command``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arn: str = Field(pattern=r"^arn:[a-z0-9-]+:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:runtime/[A-Za-z0-9_.-]+$")
    """What the SDK is given as ``agentRuntimeArn``."""
    command: tuple[str, ...] = Field(min_length=1)
    """argv. ``{port}``: the session's port, also in $PORT. ``{cwd}``: the source folder. ``{python}``: the emulator's
    own interpreter. ``{launcher}``: `rollway_emulator.container` as a file, for any interpreter."""
    cwd: Path | None = None
    """The agent's source folder: on its PYTHONPATH, but never its working folder, which each session has alone."""
    copy_source: bool = False
    """Each session's working folder is a copy of ``cwd``, for agents that read or write files beside their code."""
    env: dict[str, str] = {}
    """Variables of the container, over the few it inherits (`rollway_emulator.launch`)."""
    qualifiers: frozenset[str] = frozenset({DEFAULT_QUALIFIER})
    """Endpoints that exist; DEFAULT always does."""
    start_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """From starting the process to its first answered /ping."""
    cold_start_delay_s: Seconds = 0.0
    """Waited before the process is started, as pulling an image would."""
    chaos: ChaosSpec = ChaosSpec()

    @field_validator("qualifiers")
    @classmethod
    def _default_exists(cls, value: frozenset[str]) -> frozenset[str]:
        return value | {DEFAULT_QUALIFIER}

    @model_validator(mode="after")
    def _source_is_known(self) -> Self:
        if self.cwd is None and (self.copy_source or any("{cwd}" in part for part in self.command)):
            raise ValueError("copy_source and {cwd} in command need cwd, the agent's source folder")
        return self

    @property
    def runtime_id(self) -> str:
        return self.arn.rpartition("/")[2]

    @property
    def account_id(self) -> str:
        return self.arn.split(":")[4]


class AgentsFile(BaseModel):
    """The file: ``{"agents": [AgentSpec, …]}`` in JSON, or ``[[agents]]`` tables in TOML."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agents: tuple[AgentSpec, ...] = Field(min_length=1)

    @field_validator("agents")
    @classmethod
    def _arns_differ(cls, value: tuple[AgentSpec, ...]) -> tuple[AgentSpec, ...]:
        arns = [agent.arn for agent in value]
        twice = sorted({arn for arn in arns if arns.count(arn) > 1})
        if twice:
            raise ValueError(f"listed more than once: {', '.join(twice)}")
        return value


def load_agents(path: Path) -> tuple[AgentSpec, ...]:
    """The agents of a ``.json`` or ``.toml`` file; a relative ``cwd`` is relative to the file.

    Raises:
        AgentsFileError: missing, not JSON or TOML, a wrong field, or a source folder that does not exist.
    """
    try:
        text = path.read_text()
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        listed = AgentsFile.model_validate(document).agents
    except OSError as e:
        raise AgentsFileError(f"{path}: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors()[0]
        raise AgentsFileError(f"{path}: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}") from e
    except ValueError as e:
        raise AgentsFileError(f"{path}: not {'TOML' if path.suffix == '.toml' else 'JSON'}: {e}") from e
    return tuple(_anchored(agent, path) for agent in listed)


def _anchored(agent: AgentSpec, path: Path) -> AgentSpec:
    if agent.cwd is None:
        return agent
    source = (path.parent / agent.cwd).resolve()
    if not source.is_dir():
        raise AgentsFileError(f"{path}: {agent.arn}: cwd is not a folder: {source}")
    return agent.model_copy(update={"cwd": source})
