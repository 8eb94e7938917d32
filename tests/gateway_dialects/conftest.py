"""The gateway and the scripted engine of the gateway's own tests, and SDK clients that reach a session in each way."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from tests.gateway.conftest import RunningGateway, engine, gateway

__all__ = ["engine", "gateway"]

SESSION = "one/session-of-a-rollout:0"


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
