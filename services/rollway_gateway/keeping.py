"""Where sessions are kept: the store, and the journal behind it. Opened and closed with the gateway.

`durability` memory: the store alone. journal: each call is in the operating system's hands before the last bytes of its
answer go out, so it outlives the process. fsync: it is on the disk, so it outlives the machine.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from rollway_gateway.archive import Archive, open_archive
from rollway_gateway.journal.entries import Entry
from rollway_gateway.journal.found import Found
from rollway_gateway.journal.journal import Journal, open_journal
from rollway_gateway.journal.problems import JournalDown
from rollway_gateway.journal.records import Kind
from rollway_gateway.journal.replay import Limits
from rollway_gateway.journal.session_log import SessionLog
from rollway_gateway.session import Session
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.shelf import Shelf
from rollway_gateway.store import SessionStore
from rollway_wire.problems import RollwayError
from rollway_wire.tokens import Trajectory

log = structlog.get_logger()

TIDY_LOOKS = 10_000
"""Sessions that may be looked at to come down to the memory budget: those that were busy when a call's end looked."""
SECRET = "secret"
"""File with the secret that signs agents' keys, where no setting gives one."""


class Keeping:
    """Made by `open_keeping`."""

    def __init__(
        self, settings: GatewaySettings, *, journal: Journal | None, found: Found, archive: Archive | None,
        secret: bytes | None,
    ) -> None:  # fmt: skip
        limits = Limits(int(settings.kept_messages_mib * 2**20), int(settings.kept_responses_mib * 2**20))
        self._log = None if journal is None else SessionLog(journal, dict(found.standings))
        self.store = SessionStore(
            limits=limits, log=self._log, stored=found.entries, stored_calls=found.calls, gone=found.gone,
            memory_bytes=int(settings.session_memory_mib * 2**20),
        )  # fmt: skip
        self.journal = journal
        self.pools = found.pools
        """As they were when the last process ended."""
        self.secret = secret
        self._shelf = None if self._log is None else Shelf(self.store, self._log, limits)
        self._archive = archive
        self._sealed_keep_s = settings.sealed_keep_s
        self._work = asyncio.Event()

    @property
    def problem(self) -> str | None:
        """Why nothing can be kept now."""
        return None if self.journal is None else self.journal.problem

    def globals(self, pools: list[dict[str, Any]]) -> dict[str, Any]:
        """What is no session's, as each segment begins with it."""
        standings = {} if self._log is None else {str(number): said for number, said in self._log.standings.items()}
        return {"pools": pools, "gone": self.store.gone, "standings": standings}

    async def keep_pools(self, pools: list[dict[str, Any]]) -> None:
        """Raises:
        JournalDown: it could not be written now; it will be when writing works again."""
        if self.journal is not None:
            self.journal.append_tree(None, Kind.POOLS, {"pools": pools})
            await self.journal.committed()

    async def committed(self) -> None:
        """Until all that happened so far is written down.

        Raises:
            JournalDown: it cannot be now.
        """
        if self.journal is not None:
            await self.journal.committed()

    async def written(self) -> None:
        """`committed`, or as far as that can be now: what is not stays in line."""
        try:
            await self.committed()
        except JournalDown as e:
            log.warning("journal_lags", detail=e.detail)

    # -- sessions that are not in memory

    async def find(self, session_id: str) -> Session | None:
        found = self.store.find(session_id)
        if found is None and self._shelf is not None:
            return await self._shelf.fetch(session_id)
        return found

    async def look(self, session_id: str) -> Session | None:
        """To read only: it need not stay in memory."""
        found, entry = self.store.find(session_id), self.store.entry(session_id)
        if found is not None or self._shelf is None or entry is None or entry.object_key is not None:
            return found
        return await self._shelf.read(entry)

    async def archived(self, session_id: str) -> Trajectory | None:
        """The trajectory of a session that is in the object store alone."""
        entry = self.store.entry(session_id)
        if entry is None or entry.object_key is None or self._archive is None:
            return None
        return await self._archive.get(entry.object_key)

    def where(self, entry: Entry) -> str | None:
        """URL of an archived session's trajectory; None: it is not archived. Without the archive, the key alone."""
        if entry.object_key is None or self._archive is None:
            return entry.object_key
        return self._archive.url(entry.object_key)

    def sealed(self, session: Session) -> None:
        """Its trajectory was handed out: memory is not needed, and the journal not once it is in the object store."""
        self.store.put_away(session)
        self._work.set()

    # -- housekeeping

    async def run(self, interval_s: float = 5.0) -> None:
        """Archive what is sealed, forget what was sealed long ago, reclaim segments; while the gateway lives."""
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._work.wait()
            except TimeoutError:
                pass
            self._work.clear()
            try:
                await self._tidy(time.time())
            except (RollwayError, OSError) as e:
                log.warning("journal_not_tidied", detail=str(e))
                await asyncio.sleep(interval_s)

    async def _tidy(self, now: float) -> None:
        for session in [s for s in self.store if s.state == "sealed"]:
            self.store.put_away(session)
        self.store.spill(TIDY_LOOKS)
        for entry in self.store.entries():
            if entry.sealed_at is not None and now - entry.sealed_at > self._sealed_keep_s:
                self._forget(entry.session_id)
            elif entry.state == "sealed" and entry.object_key is None:
                await self._put_in_archive(entry.session_id)
        if self.journal is not None:
            while self.journal.wants_compaction and self.journal.problem is None:
                await self.journal.compact(self.store.entries())

    def _forget(self, session_id: str) -> None:
        session, entry = self.store.find(session_id), self.store.entry(session_id)
        if session is not None:
            self.store.forget(session)
        elif entry is not None:
            self.store.forget_stored(entry)

    async def _put_in_archive(self, session_id: str) -> None:
        entry = self.store.entry(session_id)
        if self._archive is None or self._log is None or entry is None:
            return
        session = await self.look(session_id)
        if session is None or session.state != "sealed":
            return
        key = await self._archive.put(self.store.seal(session))
        if self.store.entry(session_id) is entry and entry.object_key is None:
            self._log.archived(entry, key)


@asynccontextmanager
async def open_keeping(settings: GatewaySettings, pools: Callable[[], list[dict[str, Any]]]) -> AsyncIterator[Keeping]:
    """Opens the folder, reads what is there, and cuts off a torn end. `Journal.start` is the caller's, once the pools
    found are taken.

    Args:
        pools: what to write down of them.

    Raises:
        JournalRefused: the folder is in use, cannot be written, or is damaged.
    """
    async with open_archive(settings) as archive:
        folder = settings.journal_folder
        if folder is None:
            log.info("no_journal", detail="sessions are in memory alone and end with this process")
            yield Keeping(settings, journal=None, found=Found(), archive=None, secret=None)
            return
        kept: list[Keeping] = []
        journal, found = await open_journal(
            folder, fsync=settings.durability == "fsync", segment_bytes=int(settings.journal_segment_mib * 2**20),
            globals_of=lambda: kept[0].globals(pools()),
        )  # fmt: skip
        try:
            secret = await asyncio.to_thread(_secret, folder)
            kept.append(Keeping(settings, journal=journal, found=found, archive=archive, secret=secret))
            log.info(
                "journal_open", folder=str(journal.folder), durability=settings.durability or "journal",
                sessions=len(found.entries), bytes=sum(found.sizes.values()),
            )  # fmt: skip
            yield kept[0]
        finally:
            await journal.close()


def _secret(folder: Path) -> bytes:
    """Made once per folder, so that keys made before a restart are good after it."""
    path = folder / SECRET
    try:
        return bytes.fromhex(path.read_text())
    except FileNotFoundError:
        made = secrets.token_bytes(32)
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(made.hex())
        new.replace(path)
        return made
