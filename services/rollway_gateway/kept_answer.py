"""A call as the original of its retries: what it sends, to whom, and for how long a request may still be its retry.

    sending ──► ended ──► waiting for a retry ──► dropped        nobody took it, or nobody asked again in time
       └─ nobody listens any more, and no retry came ──► aborted

A client that leaves does not end the call at once: for ``grace_s`` it goes on, and its answer waits.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog
import xxhash
from starlette.types import Message, Receive, Send

from rollway_gateway.delivery import Delivery
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.record import CallRecord
from rollway_gateway.session import Session
from rollway_gateway.store import SessionStore

log = structlog.get_logger()

Asked = tuple[str, bytes]
"""Kind and body of a request."""


class KeptAnswer:
    """Of one call, from its admission on. An `Original` of its session."""

    def __init__(
        self, asked: Asked, call_id: str, session: Session, send: Send, *, store: SessionStore, grace_s: float,
        abort: Callable[[], None],
    ) -> None:  # fmt: skip
        """
        Args:
            abort: end the call, for which nobody waits any more.
        """
        self.asked = asked
        self._call_id, self._session, self._grace_s = call_id, session, grace_s
        self._store = store
        self._abort: Callable[[], None] | None = abort
        """None: the call has ended."""
        self._delivery = Delivery(send, grace_s=grace_s, on_silence=self._unheard)
        self._record: CallRecord | None = None
        self._ended_at: float | None = None
        self._size: int | None = None
        session.originals.add(self)

    # -- sending

    @property
    def heard(self) -> bool:
        """Somebody listens."""
        return self._delivery.heard

    def send(self, message: Message) -> Awaitable[None]:
        return self._delivery.send(message)

    @property
    def piece(self) -> Callable[[bytes], Awaitable[None] | None]:
        """See `Delivery.piece`."""
        return self._delivery.piece

    def lose_client(self) -> None:
        self._delivery.lose_client()

    @property
    def sent(self) -> list[Message]:
        """Everything so far."""
        return self._delivery.sent

    def end(self, record: CallRecord | None, *, journaled: bool) -> None:
        """Nothing more is sent. A whole answer waits for a retry: ``journaled`` ones in the journal, once delivered."""
        heard = self._delivery.heard
        self._record, self._abort, self._ended_at = record, None, time.monotonic()
        self._delivery.end()
        if record is None or not record.answered or self._session.state != "open":
            self._session.originals.drop(self)
        else:
            self._store.outcome(self._session, record, delivered=heard)
            if heard and journaled:
                self._session.originals.drop(self)
            else:
                self._delivery.await_silence()

    @property
    def size(self) -> int:
        """Bytes kept: of the request, and of the answer once it has ended."""
        if self._size is not None or self._ended_at is None:
            return self._size or len(self.asked[1])
        self._size = len(self.asked[1]) + sum(len(message.get("body", b"")) for message in self.sent)
        return self._size

    # -- retries

    @property
    def delivered(self) -> bool:
        return self._record is not None and self._record.answered and self._record.delivered

    def answers_retry(self, *, said: bool) -> bool:
        if self._grace_s == 0:
            return False
        if self._ended_at is None or not self.delivered:
            return said or not self._delivery.heard
        return said and time.monotonic() - self._ended_at < self._grace_s

    async def rejoin(self, receive: Receive, send: Send) -> None:
        """Serve a retry: everything the call sends, from its start.

        Raises:
            AgentError: 503, the call ended without an answer.
        """
        log.info("call_rejoined", session_id=self._session.session_id, call_id=self._call_id)
        self._store.rejoined(self._session)
        if await self._delivery.rejoin(receive, send, self._taken) is False:
            raise AgentError(503, "the call ended without an answer: try again", retry_after_s=1)

    def _taken(self) -> None:
        """A retry has all of it. Said at once: its agent may be done, and its session sealed, right after."""
        if self._record is not None:
            self._store.outcome(self._session, self._record, delivered=True)

    def forget(self) -> None:
        self._delivery.forget()

    def _unheard(self) -> None:
        """Nobody listens, and no retry came."""
        if self._abort is not None:
            self._abort()
            return
        self._session.originals.drop(self)
        if self._record is not None and self._record.answered and not self._record.delivered:
            self._session.unread[digest(self.asked)] = self._record


def digest(asked: Asked) -> bytes:
    """16 bytes that name a request. Not cryptographic: they are compared within one session, and bodies are long."""
    hashed = xxhash.xxh3_128(asked[0].encode() + b"\0")
    hashed.update(asked[1])
    return hashed.digest()
