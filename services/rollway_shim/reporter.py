"""The reporter: pushes started, heartbeat and done for one rollout, from a thread that nothing the agent does can stop.

A push only makes the dispatcher notice sooner; the object in S3 is the truth. So every failure here ends in the log.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Literal

from rollway_wire.rollout import Report, ReportTarget

log = logging.getLogger("bedrock_agentcore.app.rollway_shim")

_TIMEOUT_S = 3.0
_DONE_ATTEMPTS = 5
_DONE_BACKOFF_S = 0.2
_COME_BACK = (408, 425, 429)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the bearer key to an address nobody named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_open = urllib.request.build_opener(_NoRedirect).open


class Reporter:
    """One rollout's pushes, in order: started, heartbeat every ``interval_s`` seconds, done once."""

    def __init__(self, session_id: str, target: ReportTarget) -> None:
        self._session_id = session_id
        self._target = target
        self._final: Report | None = None
        self._finished = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name=f"report-{session_id[:8]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self, status_code: int, result_key: str | None) -> None:
        """Say that the result is in S3 (``result_key`` None: it is not, and will not be). Does not block."""
        self._final = Report(session_id=self._session_id, event="done", status_code=status_code, result_key=result_key)
        self._finished.set()

    @property
    def ended(self) -> bool:
        """Started, and nothing more will be pushed."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the last push; False when it is still under way."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        event: Literal["started", "heartbeat"] = "started"
        while not self._finished.is_set():
            if self._push(Report(session_id=self._session_id, event=event)) == "refused":
                return
            event = "heartbeat"
            self._finished.wait(self._target.interval_s)
        assert self._final is not None  # set before the event
        for attempt in range(_DONE_ATTEMPTS):
            if attempt:
                time.sleep(_DONE_BACKOFF_S * 2 ** (attempt - 1))
            if self._push(self._final) != "failed":
                return

    def _push(self, report: Report) -> Literal["taken", "refused", "failed"]:
        request = urllib.request.Request(
            self._target.url,
            data=report.model_dump_json(exclude_none=True).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._target.key}"},
            method="POST",
        )
        try:
            with _open(request, timeout=_TIMEOUT_S) as answer:
                answer.read()
            return "taken"
        except urllib.error.HTTPError as e:
            with e:
                if 300 <= e.code < 500 and e.code not in _COME_BACK:
                    self._warn(f"{report.event} was refused with {e.code}; no more is pushed for this rollout")
                    return "refused"
                self._warn(f"{report.event} was answered {e.code}")
        except (OSError, http.client.HTTPException, ValueError) as e:
            self._warn(f"{report.event} could not be pushed: {e}")
        return "failed"

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("session %s: %s (%s). The rollout goes on.", self._session_id, what, self._target.url)
