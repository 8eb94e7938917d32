"""`RolloutApp`: the AgentCore HTTP contract (/invocations, /ping, port 8080) with rollouts behind it."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from starlette.applications import Starlette

from rollway_shim.handler import Handler, handler_of
from rollway_shim.result_store import ResultStore
from rollway_shim.rollouts import Rollouts


class RolloutApp(BedrockAgentCoreApp):
    """`bedrock-agentcore`'s app, whose entry point starts a rollout in the background and answers at once.

    ``shutdown_grace_s``: seconds from SIGTERM in which running rollouts are cancelled and saved as cancelled.
    ``lifespan`` and further keyword arguments are `BedrockAgentCoreApp`'s own.
    """

    def __init__(self, *args: Any, lifespan: Any = None, shutdown_grace_s: float = 10.0, **kwargs: Any) -> None:
        self.shutdown_grace_s = shutdown_grace_s
        self.rollout_handler: Handler | None = None
        """The function that `rollout_entrypoint` decorated."""
        super().__init__(*args, **kwargs)
        self.rollouts = self._open_rollouts()
        self._agents_lifespan = lifespan
        self.router.lifespan_context = self._lifespan

    def _open_rollouts(self) -> Rollouts:
        return Rollouts(ResultStore(), on_start=self.add_async_task, on_end=self.complete_async_task)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[Any]:
        if self.rollouts.closed:  # served a second time in one process, as tests do
            self.rollouts = self._open_rollouts()
        if self._agents_lifespan is None:
            try:
                yield None
            finally:
                await asyncio.to_thread(self.rollouts.close, self.shutdown_grace_s)
            return
        async with self._agents_lifespan(app) as state:
            try:
                yield state
            finally:  # before the agent's own resources are closed under its rollouts
                await asyncio.to_thread(self.rollouts.close, self.shutdown_grace_s)

    def rollout_entrypoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make ``function(payload)`` or ``function(payload, context)``, sync or async, the agent of this app.

        An invocation is answered at once with ``{"status": "processing", "s3_bucket", "result_key"}``. The function
        runs in the background, and the dict it returns is saved at ``{exp_id}/{input_id}/{session_id}.json`` with
        these keys added: ``status_code`` (200) and ``stop_reason`` ("end_turn") unless the function gave its own, and
        always ``input_id``, ``s3_bucket``, ``result_key`` and ``payload`` (without the keys in ``_rollout``). An error
        is saved with status_code 500, stop_reason and traceback; a cancellation with stop_reason "cancelled".

        The payload is handed over as it came: check it with a pydantic model before an agent sees it.

        Raises:
            TypeError: a generator, or parameters that nothing would fill.
        """
        handler = handler_of(function)
        self.rollout_handler = handler

        async def start(payload: Any, context: Any) -> dict[str, Any]:
            return self.rollouts.start(handler, payload, context).receipt

        functools.update_wrapper(start, function)
        del start.__wrapped__  # type: ignore[attr-defined] # the base class reads the signature: it must see (payload, context)
        entry: Callable[..., Any] = self.entrypoint(start)
        return entry

    def run(self, port: int = 8080, host: str | None = None, **kwargs: Any) -> None:
        """Serve. The environment's ``PORT`` and ``HOST`` win, so that a runtime can give each session its own port.

        Exits with status 2 when one of them is not usable.
        """
        kwargs.setdefault("timeout_graceful_shutdown", 5)
        super().run(_port(port), _host(host), **kwargs)


AgentCoreRLApp = RolloutApp


def _port(default: int) -> int:
    given = os.environ.get("PORT")
    if not given:
        return default
    if not given.isdecimal() or int(given) > 65535:
        _refuse(f"PORT must be a port number from 0 to 65535, got {given!r}")
    return int(given)


def _host(default: str | None) -> str | None:
    given = os.environ.get("HOST")
    if not given or given == "localhost":
        return given or default
    try:
        ipaddress.ip_address(given)
    except ValueError:
        _refuse(f"HOST must be an IP address or localhost, got {given!r}; unset it to listen where the app says")
    return given


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"refusing to start: {why}\n")
    raise SystemExit(2)
