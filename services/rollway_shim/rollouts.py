"""The rollouts of this process: each started once, owned while it runs, cancelled and saved at shutdown."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from rollway_shim.agent_loop import AgentLoop
from rollway_shim.handler import Handler
from rollway_shim.invocation import Invocation, Refused, read_invocation
from rollway_shim.reporter import Reporter
from rollway_shim.result_store import ResultStore
from rollway_shim.rollout import Finished, Rollout

log = logging.getLogger("bedrock_agentcore.app.rollway_shim")

REMEMBERED = 16_384
"""Finished rollouts whose repeated invocation is still recognised; the oldest are forgotten first."""
_SAVERS = 8
_LOOP_END_S = 1.0  # an agent that blocks the loop would keep it for ever
_UNWIND_SHARE = 0.5  # of the grace time an async agent may take to unwind; the rest is for saving


class Rollouts:
    """Starts rollouts and keeps hold of them."""

    def __init__(self, store: ResultStore, *, on_start: Callable[[str], int], on_end: Callable[[int], Any]) -> None:
        """``on_start(name)`` gives a token that ``on_end`` gets when the document is saved: busy, then idle."""
        self._store = store
        self._on_start = on_start
        self._on_end = on_end
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], Rollout] = {}
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._reporters: set[Reporter] = set()
        self._loop = AgentLoop()
        self._savers = ThreadPoolExecutor(_SAVERS, thread_name_prefix="rollout-save")
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self, handler: Handler, payload: Any, context: Any) -> Invocation:
        """Start the rollout that ``payload`` asks for, unless this process runs or ran it already. Does not block.

        Raises:
            Refused: 400 for a payload that cannot be run, 503 while shutting down.
        """
        invocation = read_invocation(payload, getattr(context, "session_id", None))
        self.begin(invocation, handler, context)
        return invocation

    def begin(self, invocation: Invocation, handler: Handler, context: Any) -> Rollout | None:
        """Start ``invocation``; None when it is known already. Raises as `start`."""
        identity = _identity(invocation)
        rollout = Rollout(invocation, handler, context, store=self._store, savers=self._savers)
        with self._lock:
            if self._closed:
                raise Refused(503, "shutting down: this container takes no more rollouts")
            if identity in self._running or identity in self._known:
                log.info("session %s: invoked again; it runs or ran already", invocation.session_id)
                return None
            self._running[identity] = rollout
            if rollout.reporter:
                self._reporters = {r for r in self._reporters if not r.ended} | {rollout.reporter}
        token = self._on_start(rollout.name)

        def end(_: Future[Finished]) -> None:
            self._on_end(token)
            with self._lock:
                del self._running[identity]
                self._known[identity] = None
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)

        rollout.finished.add_done_callback(end)
        rollout.start(self._loop)
        return rollout

    def close(self, grace_s: float) -> None:
        """Cancel what runs, save it as cancelled, push what is to be pushed: all within ``grace_s`` seconds. Blocks."""
        begin = time.monotonic()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = list(self._running.values())
            reporters = list(self._reporters)

        def left(share: float = 1.0) -> float:
            return max(0.0, begin + grace_s * share - time.monotonic())

        if running:
            log.warning("shutting down: cancelling %d rollouts", len(running))
        for rollout in running:
            rollout.cancel()
        _, stuck = wait([r.finished for r in running], left(_UNWIND_SHARE))
        for rollout in running:
            if rollout.finished in stuck:
                rollout.abandon()
        _, unsaved = wait([r.finished for r in running], left())
        self._store.stop()
        if unsaved:
            log.error("shut down with %d rollouts unsaved: S3 did not answer in %.1f s", len(unsaved), grace_s)
        for reporter in reporters:
            reporter.join(left())
        self._loop.close(min(left(), _LOOP_END_S))
        self._savers.shutdown(wait=False, cancel_futures=True)


def _identity(invocation: Invocation) -> tuple[str, str]:
    """What makes two invocations the same rollout: the object they would write, else the session."""
    if invocation.config and invocation.result_key:
        return invocation.config.s3_bucket, invocation.result_key
    return "", invocation.session_id
