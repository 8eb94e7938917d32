"""Strands, in the agents' own environment (it wants older SDKs than ours), on each of its model providers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.gateway.conftest import RunningGateway
from tests.gateway_dialects.conversation import ANSWER, QUESTION, TURNS, check, script
from tests.kit.scripted_engine import ScriptedEngine

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
AGENT_PYTHON = os.environ.get("ROLLWAY_AGENT_PYTHON") or str(HERE.parents[1] / ".venv-agent" / "bin" / "python")


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("provider", ["openai", "openai responses", "anthropic"])
async def test_strands(gateway: RunningGateway, engine: ScriptedEngine, provider: str, exact: bool) -> None:
    script(engine, exact=exact)
    ticket = await gateway.open()
    program = str(HERE / "agents" / "strands_agent.py")
    agent = await asyncio.create_subprocess_exec(
        AGENT_PYTHON, program, provider, ticket["base_url"], QUESTION,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, trouble = await agent.communicate()
    assert agent.returncode == 0, trouble.decode()
    assert said.decode().strip() == ANSWER
    assert len(engine.requests) == TURNS
    check(await gateway.seal(ticket["session_id"]), exact=exact)
