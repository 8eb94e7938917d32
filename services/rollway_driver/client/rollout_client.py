"""`RolloutClient`: invoke agents and collect rollouts, with the names and meanings of agentcore-rl-toolkit's client.

Unlike that client it talks to a dispatcher, which invokes the runtime, holds the rate limit, retries what another
attempt can mend, and reads S3; so it needs no AWS credentials, and with capture it also gives the tokens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rollway_driver.client.batch_result import AsyncBatchResult, BatchResult, MakeRequest
from rollway_driver.client.collector import Collector
from rollway_driver.client.dispatcher import AsyncDispatcherClient
from rollway_driver.client.retry import RetryPolicy
from rollway_driver.client.rollout_defaults import MOST_ATTEMPTS, RolloutDefaults
from rollway_driver.client.rollout_future import RolloutFuture
from rollway_wire.batch import AgentCoreRuntime, BatchRequest, Group, RuntimeSpec
from rollway_wire.gateway import DEFAULT_POOL

log = logging.getLogger(__name__)

DISPATCHER_URL = "ROLLWAY_DISPATCHER_URL"
LONGEST_ROLLOUT_S = 8 * 3600.0
"""AgentCore's own limit on a session's life."""


class RolloutClient:
    """Safe to use from several threads and event loops at once: one poller thread does the waiting for all of them.

    ``with`` and ``async with`` close it. Closing cancels no rollout: those not done are named in a warning, go on at
    the dispatcher, and their futures raise `ClientClosed`. ``close(cancel=True)`` stops them first.

    The synchronous methods block the calling thread: on an event loop use those ending in ``_async``.
    """

    def __init__(
        self,
        agent_runtime_arn: str | None = None,
        s3_bucket: str | None = None,
        exp_id: str = "default",
        max_retry_attempts: int = 5,
        tps_limit: float = 25,
        max_pool_connections: int = 10,
        base_url: str | None = None,
        model_id: str | None = None,
        *,
        dispatcher_url: str | None = None,
        dispatcher_api_key: str | None = None,
        capture: bool | None = None,
        capture_pool: str = DEFAULT_POOL,
        runtime: RuntimeSpec | None = None,
        rollout_timeout_s: float = LONGEST_ROLLOUT_S,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        **extra_config: Any,
    ) -> None:
        """
        Args:
            agent_runtime_arn: the AgentCore runtime to invoke; None only with ``runtime``.
            s3_bucket: where results are saved; None: the dispatcher's own.
            exp_id: first part of the results' S3 keys.
            max_retry_attempts: attempts per rollout for failures that another one can mend (throttled, failed start,
                dead container); more than 10 count as 10.
            tps_limit: invoke and stop calls a second on the runtime.
            max_pool_connections: taken for compatibility; sockets here do not grow with the number of rollouts.
            base_url: the model endpoint that agents call, for evaluation; nothing is captured then.
            model_id: the model's name, for the agents.
            dispatcher_url: the dispatcher; None: the environment's ROLLWAY_DISPATCHER_URL.
            dispatcher_api_key: its key, where it asks for one; None: the environment's ROLLWAY_DISPATCHER_API_KEY.
            capture: whether model calls go through the gateway; None: unless ``base_url`` is given.
            capture_pool: the gateway pool whose workers serve captured calls.
            runtime: another runtime than AgentCore by ARN: `HttpRuntime`, `ProcessRuntime`, or an `AgentCoreRuntime`
                with an endpoint of its own.
            rollout_timeout_s: how long an invoked rollout may run.
            retry: patience with the dispatcher.
            headers: added to each request to the dispatcher.
            **extra_config: further fields of ``_rollout``; ``sampling_params`` is also enforced at the gateway.

        Raises:
            ValueError: a setting is missing or wrong; the message names it.
        """
        url = dispatcher_url or os.environ.get(DISPATCHER_URL)
        if not url:
            raise ValueError(f"no dispatcher: pass dispatcher_url or set {DISPATCHER_URL}")
        if runtime is None and not agent_runtime_arn:
            raise ValueError("no runtime: pass agent_runtime_arn, or runtime for one that is not AgentCore")
        if max_retry_attempts < 0 or max_pool_connections < 1:
            raise ValueError("max_retry_attempts must be at least 0 and max_pool_connections at least 1")
        self._defaults = RolloutDefaults(
            exp_id=exp_id,
            runtime=runtime or AgentCoreRuntime(agent_runtime_arn=agent_runtime_arn or "", tps_limit=tps_limit),
            s3_bucket=s3_bucket,
            base_url=base_url,
            model_id=model_id,
            capture=capture,
            capture_pool=capture_pool,
            max_attempts=min(MOST_ATTEMPTS, max(1, max_retry_attempts)),
            config=extra_config,
        )
        self._timeout_s = rollout_timeout_s
        self._collector = Collector(
            AsyncDispatcherClient(url, api_key=dispatcher_api_key, headers=headers, retry=retry)
        )

    def invoke(
        self,
        payload: Mapping[str, Any],
        session_id: str | None = None,
        input_id: str | None = None,
        **rollout_overrides: Any,
    ) -> RolloutFuture:
        """Start one rollout; returns when the dispatcher has taken it.

        Args:
            payload: the row's fields, handed to the agent at top level.
            session_id: must be left out: the dispatcher names the sessions, a fresh one for each attempt.
            input_id: names the input, for grouping (`RolloutFuture.input_id`); made when absent.
            **rollout_overrides: win over the client's own settings, key by key.

        Raises:
            ValueError: a payload or override that cannot be sent.
            RollwayError: the dispatcher refused it or stayed out of reach.
        """
        input_id, request = self._single(payload, session_id, input_id, rollout_overrides)
        return self._watched(self._collector.post(request), input_id)

    async def invoke_async(
        self,
        payload: Mapping[str, Any],
        session_id: str | None = None,
        input_id: str | None = None,
        **rollout_overrides: Any,
    ) -> RolloutFuture:
        """`invoke`, awaited. Cancelling the awaiting task stops the rollout: nobody would hold its future."""
        input_id, request = self._single(payload, session_id, input_id, rollout_overrides)
        return self._watched(await self._collector.post_async(request), input_id)

    def run_batch(
        self,
        payloads: Sequence[Mapping[str, Any]],
        max_concurrent_sessions: int,
        timeout: float = 900.0,
        initial_interval: float = 0.5,
        max_interval: float = 30.0,
        backoff_factor: float = 1.5,
        log_interval: float = 30.0,
        *,
        progress: bool = False,
    ) -> BatchResult:
        """Run every payload once and iterate over their ends in the order they come.

        Args:
            payloads: one rollout each.
            max_concurrent_sessions: how many run at once.
            timeout: seconds an attempt may take, from its start.
            initial_interval: like ``max_interval`` and ``backoff_factor`` taken for compatibility and without effect:
                the dispatcher answers when something finishes, so no polls need spacing.
            log_interval: seconds between progress lines of this module's logger.
            progress: draw a progress bar while it is iterated; needs the extra ``progress``.

        Raises:
            ValueError: ``max_concurrent_sessions`` or ``timeout`` out of range.
        """
        make = self._batch(max_concurrent_sessions, timeout)
        return BatchResult(self._collector, make, payloads, timeout, log_interval, progress=progress)

    def run_batch_async(
        self,
        payloads: Sequence[Mapping[str, Any]],
        max_concurrent_sessions: int,
        timeout: float = 900.0,
        initial_interval: float = 0.5,
        max_interval: float = 30.0,
        backoff_factor: float = 1.5,
        log_interval: float = 30.0,
        *,
        progress: bool = False,
    ) -> AsyncBatchResult:
        """`run_batch` for ``async for``."""
        make = self._batch(max_concurrent_sessions, timeout)
        return AsyncBatchResult(self._collector, make, payloads, timeout, log_interval, progress=progress)

    def close(self, *, cancel: bool = False) -> None:
        """End the poller. ``cancel`` stops the rollouts not done; otherwise a warning names them and they go on."""
        left = self._collector.watched
        if cancel:
            for stopping in [self._collector.stop(rollout.batch_id) for rollout in left]:
                stopping.result()
        elif left:
            names = ", ".join(rollout.batch_id for rollout in left[:10]) + (", …" if len(left) > 10 else "")
            log.warning("client closed while %d rollouts run on at the dispatcher: batches %s", len(left), names)
        self._collector.close()

    async def aclose(self, *, cancel: bool = False) -> None:
        """`close`, awaited."""
        await asyncio.to_thread(self.close, cancel=cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def _single(
        self, payload: Mapping[str, Any], session_id: object, input_id: str | None, overrides: Mapping[str, Any]
    ) -> tuple[str, BatchRequest]:
        if session_id is not None:
            raise ValueError("session_id cannot be chosen: the dispatcher names a fresh session for each attempt")
        input_id = str(uuid.uuid4()) if input_id is None else str(input_id)
        groups = [Group(group_id=input_id, payload=dict(payload))]
        return input_id, self._defaults.request(groups, timeout_s=self._timeout_s, overrides=overrides)

    def _watched(self, batch_id: str, input_id: str) -> RolloutFuture:
        future = RolloutFuture(self._collector, batch_id, input_id)
        self._collector.watch(future)
        return future

    def _batch(self, max_concurrent: int, timeout: float) -> MakeRequest:
        def make(groups: list[Group]) -> BatchRequest:
            return self._defaults.request(groups, timeout_s=timeout, max_concurrent=max_concurrent)

        make([Group(group_id="probe", payload={})])
        return make
