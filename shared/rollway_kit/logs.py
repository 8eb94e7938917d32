"""Structured logs: structlog to standard error, JSON unless a terminal, ids bound by contextvars."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from rollway_kit.keys import scrub

SECRET_KEYS = frozenset({"api_key", "admin_key", "key_secret", "authorization", "key", "token", "secret"})


def _redact(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """What is named as a secret, and signed keys wherever they stand: in a path, an error, a traceback."""
    for name in event.keys() & SECRET_KEYS:
        event[name] = "[redacted]"
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = scrub(value)
    return event


def configure(service: str, level: str = "info", as_json: bool | None = None) -> None:
    """Configure structlog and the standard library's logging for one process.

    Raises:
        ValueError: unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r}: choose debug, info, warning or error")
    use_json = as_json if as_json is not None else not sys.stderr.isatty()

    def name_service(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        name_service,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if use_json else structlog.processors.StackInfoRenderer(),
        _redact,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if use_json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for noisy in ("uvicorn.access", "botocore", "aiobotocore", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))
