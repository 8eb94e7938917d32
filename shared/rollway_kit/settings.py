"""Settings: one frozen pydantic-settings class per service, read from the environment; a wrong one names itself."""

from __future__ import annotations

import sys
from typing import NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """Base of a service's settings. Subclasses set ``env_prefix``; unknown variables with that prefix are not refused
    (the environment is shared), unknown keyword arguments are."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_nested_delimiter="__", validate_default=True)

    host: str = "127.0.0.1"
    """Interface to bind."""
    port: int = 0
    """Port to bind; 0 takes a free one and logs it."""
    log_level: str = "info"
    log_json: bool | None = None
    """None: JSON unless standard error is a terminal."""


S = TypeVar("S", bound=ServiceSettings)


def load(cls: type[S], **overrides: object) -> S:
    """Build settings from the environment and non-None overrides, or exit with status 2 naming each wrong setting."""
    try:
        return cls(**{k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as e:
        refuse(cls, e)


def refuse(cls: type[ServiceSettings], error: ValidationError) -> NoReturn:
    prefix = str(cls.model_config.get("env_prefix", ""))
    for item in error.errors():
        name = "__".join(str(p) for p in item["loc"]).upper()
        shown = f"{prefix}{name}" if name else "settings"
        sys.stderr.write(f"refusing to start: {shown}: {item['msg']} (got {item.get('input')!r:.80})\n")
    raise SystemExit(2)
