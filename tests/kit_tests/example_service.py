"""A service made of nothing but the kit, run as a process: ``python -m tests.kit_tests.example_service``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI
from pydantic_settings import SettingsConfigDict

from rollway_kit import logs, serve, settings
from rollway_kit.app import create_app


class ExampleSettings(settings.ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="ROLLWAY_EXAMPLE_")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    if os.environ.get("BREAK_LIFESPAN"):
        raise RuntimeError("the bucket is missing")
    yield
    structlog.get_logger().info("closed")


app = create_app("example", lifespan=lifespan, max_body_bytes=1000)


@app.get("/health")
async def health() -> dict[str, str]:
    structlog.contextvars.bind_contextvars(rollout_id="b1/g1/0")
    structlog.get_logger().info("looked", api_key="sk-secret", authorization="Bearer secret")
    logging.getLogger("elsewhere").warning("from the standard library")
    await asyncio.to_thread(structlog.get_logger().warning, "from a thread")
    return {}


@app.get("/slow")
async def slow() -> dict[str, bool]:
    structlog.get_logger().info("slow_began")
    await asyncio.sleep(1.0)
    return {"done": True}


@app.get("/bug")
async def bug() -> None:
    raise ZeroDivisionError("seen in the log")


if __name__ == "__main__":
    chosen = settings.load(ExampleSettings)
    logs.configure("example", chosen.log_level, chosen.log_json)
    serve.run(app, chosen, service="example")
