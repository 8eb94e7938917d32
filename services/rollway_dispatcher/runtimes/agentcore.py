"""AWS Bedrock AgentCore Runtime through its SDK; by endpoint URL, anything that speaks its API.

The SDK's own retries are off: every call counts against the shared rate, so every call passes our limiter.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)  # fmt: skip

from rollway_dispatcher.runtimes.runtime import StartError, StopUnconfirmed
from rollway_dispatcher.runtimes.starts import StartsInFlight
from rollway_dispatcher.runtimes.tps import Pace, TpsBudgets, own_pace
from rollway_wire.batch import AgentCoreRuntime
from rollway_wire.failures import FailureType

if TYPE_CHECKING:
    from types_aiobotocore_bedrock_agentcore import BedrockAgentCoreClient

INVOKE_TIMEOUT_S = 120.0
"""The receipt comes at once; what takes long is the container's cold start."""

START_FAILURES: dict[str, FailureType] = {
    "ThrottlingException": FailureType.THROTTLED,
    "TooManyRequestsException": FailureType.THROTTLED,
    "ServiceQuotaExceededException": FailureType.THROTTLED,
    "RuntimeClientError": FailureType.START_FAILED,
    "ResourceNotFoundException": FailureType.CONTRACT_ERROR,
    "AccessDeniedException": FailureType.CONTRACT_ERROR,
    "ValidationException": FailureType.CONTRACT_ERROR,
    "UnauthorizedException": FailureType.CONTRACT_ERROR,
    "UnrecognizedClientException": FailureType.CONTRACT_ERROR,
    "InvalidSignatureException": FailureType.CONTRACT_ERROR,
    "ExpiredTokenException": FailureType.CONTRACT_ERROR,
}
"""The service's error codes; any other means that this start failed."""

RATE_ERRORS = frozenset({"ThrottlingException", "TooManyRequestsException"})
"""Of these the ones that the rate of calls is to blame for; a quota of sessions is not."""

_BROKEN_SETUP = (NoCredentialsError, PartialCredentialsError, ParamValidationError)


class AgentCoreRuntimes:
    """Clients, one per region and endpoint, and the rate budgets, shared by every batch."""

    def __init__(self, pace: Pace = own_pace) -> None:
        self._clients: dict[tuple[str, str | None], BedrockAgentCoreClient] = {}
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self.budgets = TpsBudgets(pace)

    async def client(self, region: str, endpoint_url: str | None) -> BedrockAgentCoreClient:
        async with self._opening:
            known = self._clients.get((region, endpoint_url))
            if known is None:
                config = AioConfig(
                    retries={"total_max_attempts": 1},
                    connect_timeout=10,
                    read_timeout=INVOKE_TIMEOUT_S,
                    max_pool_connections=256,
                    user_agent="rollway",  # else the SDK puts one together anew for each call
                )
                made = aioboto3.Session().client(
                    "bedrock-agentcore", region_name=region, endpoint_url=endpoint_url, config=config
                )
                known = await self._stack.enter_async_context(made)
                self._clients[region, endpoint_url] = known
            return known

    async def close(self) -> None:
        await self._stack.aclose()


class AgentCore:
    """One runtime ARN (and qualifier), as a batch names it."""

    def __init__(self, spec: AgentCoreRuntime, shared: AgentCoreRuntimes) -> None:
        self._shared = shared
        self._region = spec.agent_runtime_arn.split(":")[3]
        self._endpoint_url = spec.endpoint_url
        self._target: dict[str, Any] = {"agentRuntimeArn": spec.agent_runtime_arn}
        if spec.qualifier is not None:
            self._target["qualifier"] = spec.qualifier
        self._tps = shared.budgets.of(spec.agent_runtime_arn, spec.tps_limit)
        self._starts = StartsInFlight()

    async def start(self, session_id: str, payload: bytes) -> bytes:
        with self._starts.begun(session_id):
            # The client first: making it takes a while, in which the calls after this one would catch up with it.
            client = await self._shared.client(self._region, self._endpoint_url)
            async with self._tps.limiter:
                return await self._invoke(client, session_id, payload)

    async def _invoke(self, client: BedrockAgentCoreClient, session_id: str, payload: bytes) -> bytes:
        try:
            answer = await client.invoke_agent_runtime(
                **self._target,
                runtimeSessionId=session_id,
                payload=payload,
                contentType="application/json",
                accept="application/json",
            )
            async with answer["response"] as body:
                read: bytes = await body.read()
        except ClientError as e:
            code = self._code(e)
            message = e.response.get("Error", {}).get("Message", "")
            kind = START_FAILURES.get(code, FailureType.START_FAILED)
            raise StartError(kind, f"AgentCore answered {code or 'an error'}: {message}") from e
        except _BROKEN_SETUP as e:
            raise StartError(FailureType.CONTRACT_ERROR, f"AgentCore cannot be called: {e}") from e
        except (BotoCoreError, HTTPClientError, aiohttp.ClientError, TimeoutError) as e:
            raise StartError(FailureType.START_FAILED, f"AgentCore did not answer: {type(e).__name__}: {e}") from e
        self._tps.accepted()
        status = answer.get("statusCode", 200)
        if status >= 400:
            raise StartError(FailureType.START_FAILED, f"the agent answered {status}: {read[:300]!r}")
        return read

    async def stop(self, session_id: str) -> None:
        await self._starts.settle(session_id)
        try:
            client = await self._shared.client(self._region, self._endpoint_url)
            async with self._tps.limiter:
                await client.stop_runtime_session(**self._target, runtimeSessionId=session_id)
            self._tps.accepted()
        except ClientError as e:
            code = self._code(e)
            if code == "ResourceNotFoundException":
                return
            raise StopUnconfirmed(f"AgentCore answered {code}: {e.response.get('Error', {}).get('Message', '')}") from e
        except (BotoCoreError, HTTPClientError, aiohttp.ClientError, TimeoutError) as e:
            raise StopUnconfirmed(f"AgentCore did not answer: {type(e).__name__}: {e}") from e

    def _code(self, error: ClientError) -> str:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in RATE_ERRORS:
            self._tps.throttled()
        return code

    async def watch(self, session_id: str) -> str | None:
        """The service has no call that tells; heartbeats do."""
        return None
