"""Settings: one frozen pydantic-settings class per service, read from the environment; a wrong one names itself."""

from __future__ import annotations

import re
import sys
from typing import NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from rollway_kit.logs import SECRET_KEYS


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
    except SettingsError as e:  # a list or object that is not JSON
        field = re.search(r'field "(\w+)"', str(e))
        name = str(cls.model_config.get("env_prefix", "")) + (field[1].upper() if field else "…")
        sys.stderr.write(f"refusing to start: {name}: must be JSON ({e.__cause__ or e})\n")
        raise SystemExit(2) from e


def refuse(cls: type[ServiceSettings], error: ValidationError) -> NoReturn:
    """Exit with status 2, one line per wrong setting, the values of secrets left out."""
    prefix = str(cls.model_config.get("env_prefix", ""))
    for item in error.errors():
        name = "__".join(str(p) for p in item["loc"]).upper()
        secret = any(name.endswith(key.upper()) for key in SECRET_KEYS)
        got = "" if secret or not name else f" (got {item.get('input')!r:.80})"
        sys.stderr.write(f"refusing to start: {prefix + name if name else 'settings'}: {item['msg']}{got}\n")
    raise SystemExit(2)
