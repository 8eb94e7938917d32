"""One rollout: the agent runs once, its outcome is settled once, its document is saved once.

Settling is the one state change: the agent's return or error, or a cancellation, whichever claims it first. What comes
later (a sync agent cannot be interrupted) is dropped with a line in the log.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from rollway_shim.agent_loop import AgentLoop
from rollway_shim.document import Raised, Returned, error_document, result_document
from rollway_shim.handler import Handler
from rollway_shim.invocation import Invocation
from rollway_shim.reporter import Reporter
from rollway_shim.result_store import ResultStore, SaveFailed

log = logging.getLogger("bedrock_agentcore.app.rollway_shim")


@dataclass(frozen=True, slots=True)
class Finished:
    document: dict[str, Any]
    """What was saved, or would have been."""
    saved: bool
    """False: not asked for, or S3 failed for good."""
    failure: str | None = None
    """Why it is not saved although asked for."""


class Rollout:
    """A rollout from its start to its saved document."""

    def __init__(
        self, invocation: Invocation, handler: Handler, context: Any, *, store: ResultStore, savers: Executor
    ) -> None:
        self.invocation = invocation
        self.finished: Future[Finished] = Future()
        """Set when the document is saved (or cannot be); `done` is pushed after that."""
        self.reporter = Reporter(invocation.session_id, invocation.report) if invocation.report else None
        self._handler = handler
        self._context = context
        self._store = store
        self._savers = savers
        self._echo: dict[str, Any] | None = None
        self._claim = threading.Lock()
        self._settled = False
        self._thread: threading.Thread | None = None
        self._cancel_task: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        return self._handler.name

    def start(self, loop: AgentLoop) -> None:
        """Set the agent off in the caller's context variables. Returns at once."""
        with self._claim:
            if self._settled:  # the server was shut down in between
                return
        if self.reporter:
            self.reporter.start()
        variables = contextvars.copy_context()
        if self._handler.is_async:
            self._cancel_task = loop.start(self._run_async, variables, self._ended)
            return
        self._thread = threading.Thread(
            target=variables.run, args=(self._run_sync,), name=f"rollout-{self.invocation.session_id[:8]}", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Ask an async agent to unwind (it settles itself); settle for a sync one, which cannot be interrupted."""
        if self._cancel_task:
            self._cancel_task()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Settle as cancelled, whatever the agent does."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread else None
        stack = f"\nThe agent was at:\n{''.join(traceback.format_stack(frame))}" if frame else None
        self._settle(Raised(asyncio.CancelledError("cancelled while the agent ran"), stack), late_is_expected=True)

    def _run_sync(self) -> None:
        try:
            self._echo = self.invocation.echo()
            outcome: Returned | Raised = Returned(self._handler(self.invocation.payload, self._context))
        except BaseException as e:  # noqa: BLE001 - SystemExit too: whatever ends an agent is its result
            outcome = Raised(e)
        self._settle(outcome)

    async def _run_async(self) -> None:
        try:
            self._echo = self.invocation.echo()
            outcome: Returned | Raised = Returned(await self._handler(self.invocation.payload, self._context))
        except asyncio.CancelledError as e:
            self._settle(Raised(e))
            raise
        except BaseException as e:  # noqa: BLE001 - SystemExit too, which would end every other agent's loop
            outcome = Raised(e)
        self._settle(outcome)

    def _ended(self) -> None:
        self._settle(Raised(asyncio.CancelledError("cancelled before the agent ran")), late_is_expected=True)

    def _settle(self, outcome: Returned | Raised, *, late_is_expected: bool = False) -> None:
        with self._claim:
            late, self._settled = self._settled, True
        if not late:
            self._savers.submit(self._finish, outcome)
        elif not late_is_expected:
            log.warning("session %s: the agent ended after it was cancelled", self.invocation.session_id)

    def _finish(self, outcome: Returned | Raised) -> None:
        """Save, then say so. Runs on a saver's thread."""
        try:
            finished = self._save(outcome)
        except BaseException as e:
            log.exception("session %s: the result could not be made", self.invocation.session_id)
            self.finished.set_exception(e)
            if self.reporter:
                self.reporter.done(500, None)
            raise
        if self.reporter:
            status = 500 if finished.failure else int(finished.document["status_code"])
            self.reporter.done(status, self.invocation.result_key if finished.saved else None)
        self.finished.set_result(finished)

    def _save(self, outcome: Returned | Raised) -> Finished:
        invocation = self.invocation
        document = self._document(outcome)
        if invocation.config is None or invocation.result_key is None:
            return Finished(document, saved=False)
        try:
            self._store.put(invocation.config.s3_bucket, invocation.result_key, document)
        except SaveFailed as e:
            log.error("session %s: THE RESULT IS LOST: %s", invocation.session_id, e, exc_info=True)
            return Finished(document, saved=False, failure=str(e))
        log.info("session %s: saved %s", invocation.session_id, invocation.result_key)
        return Finished(document, saved=True)

    def _document(self, outcome: Returned | Raised) -> dict[str, Any]:
        echo = self._echo if self._echo is not None else self.invocation.echo()
        if isinstance(outcome, Returned):
            try:
                return result_document(outcome.value, self.invocation, echo)
            except (TypeError, ValueError) as e:
                outcome = Raised(e)
        document = error_document(outcome, self.invocation, echo)
        log.error(
            "session %s failed: %s\n%s", self.invocation.session_id, document["stop_reason"], document["traceback"]
        )
        return document
