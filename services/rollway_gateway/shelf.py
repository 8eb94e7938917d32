"""Sessions that are not in memory: told again from the journal, or from the object store once they are archived."""

from __future__ import annotations

import asyncio

from rollway_gateway.journal.entries import Entry
from rollway_gateway.journal.frames import Frame
from rollway_gateway.journal.journal import Journal
from rollway_gateway.journal.replay import Limits, rebuild
from rollway_gateway.journal.session_log import SessionLog
from rollway_gateway.session import Session
from rollway_gateway.store import SessionStore

TRIES = 8


class Shelf:
    """Of one gateway. `fetch` is the only place where a session enters memory but for being opened."""

    def __init__(self, store: SessionStore, log: SessionLog, limits: Limits) -> None:
        self._store, self._log, self._limits = store, log, limits

    async def fetch(self, session_id: str) -> Session | None:
        """The session, from now on in memory; None: it is not known, or it is archived.

        Raises:
            JournalDown: its records cannot be read.
        """
        for _ in range(TRIES):
            if (found := self._store.find(session_id)) is not None:
                return found
            entry = self._store.entry(session_id)
            if entry is None or entry.object_key is not None:
                return None
            as_of = entry.last_sequence
            made = await self.read(entry)
            # Meanwhile it may have been fetched, gone on, and been put away again.
            same = self._store.entry(session_id) is entry and entry.last_sequence == as_of
            if same and self._store.find(session_id) is None:
                self._store.take(made)
                return made
        raise RuntimeError(f"session {session_id!r} does not hold still")

    async def read(self, entry: Entry) -> Session:
        """The session as it is in the journal, not taken into memory: for a look."""
        frames = await self._journal.read(entry.places())
        return await asyncio.to_thread(self._rebuild, entry, frames)

    def _rebuild(self, entry: Entry, frames: list[Frame]) -> Session:
        return rebuild(entry, frames, self._log.standings, self._limits)

    @property
    def _journal(self) -> Journal:
        return self._log.journal
