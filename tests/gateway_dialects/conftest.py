"""The gateway and the scripted engine of the gateway's own tests, and SDK clients that reach a session in each way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.gateway.conftest import RunningGateway, gateway
from tests.kit.scripted_engine import ScriptedEngine
from tests.kit.scripted_model import write_model

__all__ = ["gateway"]

SESSION = "one/session-of-a-rollout:0"


@pytest.fixture
def exact() -> bool:
    """Whether the engine is one that exact mode can be proven on; tests of both say so with a parameter."""
    return False


@pytest.fixture
async def engine(exact: bool, tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=write_model(tmp_path / "model") if exact else None, scale_out=exact) as running:
        yield running


@pytest.fixture
async def openai_client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    ticket = await gateway.open(session_id=SESSION)
    async with gateway.openai(ticket) as client:
        yield client


@pytest.fixture
async def anthropic_client(gateway: RunningGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """As the SDK wants it: a base URL without /v1."""
    await gateway.open(session_id=SESSION)
    url = f"{gateway.url}/sessions/{SESSION}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="EMPTY", max_retries=0) as client:
        yield client
