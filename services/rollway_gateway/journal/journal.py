"""The journal as the event loop sees it: append, wait until it is written, read back, release.

A frame's place is known when it is appended; the writer thread puts it there. What is appended without being waited for
rides along with the next group, after `RIDE_S` at the latest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog

from rollway_gateway.journal import frames, packing, records
from rollway_gateway.journal.disk import Disk
from rollway_gateway.journal.entries import Answered, Entry, Place
from rollway_gateway.journal.found import Found, scan
from rollway_gateway.journal.frames import Frame
from rollway_gateway.journal.problems import JournalDown
from rollway_gateway.journal.records import Kind
from rollway_gateway.journal.writer import Waiting, Writer

log = structlog.get_logger()

RIDE_S = 0.05
AT_ONCE = 256
"""So many sessions are looked at, and so many records copied, before others have their turn."""


class Journal:
    """One process's. Made by `open_journal`; every method but the coroutines is quick and does no I/O."""

    def __init__(
        self, disk: Disk, found: Found, *, segment_bytes: int, globals_of: Callable[[], dict[str, Any]]
    ) -> None:
        """
        Args:
            found: what the folder held.
            globals_of: what is no session's, for the beginning of a segment.
        """
        self._disk, self._loop = disk, asyncio.get_running_loop()
        self._segment_bytes, self._globals_of = segment_bytes, globals_of
        self.problem: str | None = None
        """Why nothing can be written now."""
        self._next_session, self._next_sequence = found.next_session, found.next_sequence
        self._segment, self._offset = found.next_segment, 0
        self._sizes: Counter[int] = Counter(found.sizes)
        """Bytes of each segment."""
        self._live: Counter[int] = Counter(found.live)
        """Of these, still needed."""
        self._waiting: list[Waiting] = []
        self._due: asyncio.TimerHandle | asyncio.Handle | None = None
        self._hurried = False
        self._written = self._next_sequence - 1
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._writer = Writer(disk, written=self._tell(self._on_written), failed=self._tell(self._on_failed))
        self._released: deque[tuple[int, Place]] = deque()
        """Frames that are not needed once the record with this sequence number is written."""
        self._reading: Counter[int] = Counter()
        """Segments that are being read from: they stay, whatever becomes of what is in them meanwhile."""
        self._reclaiming: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def folder(self) -> Path:
        return self._disk.folder

    def start(self) -> None:
        """Begin to write, once what is no session's has been taken from what was found."""
        self._begin_segment()
        self._writer.start()

    # -- writing

    def open_session(self, session_id: str, pool: str, *, keeps_messages: bool, opened_at: float) -> Entry:
        """An entry for a new session; its first record is the caller's to append."""
        number, self._next_session = self._next_session, self._next_session + 1
        return Entry(number, session_id, pool, keeps_messages, opened_at)

    def append(self, entry: Entry | None, kind: Kind, payload: bytes) -> Place:
        """Put a record in line to be written."""
        size = frames.size_of(len(payload))
        if self._offset + size > self._segment_bytes and self._offset > frames.SEGMENT_HEADER:
            self._segment += 1
            self._begin_segment()
        place = self._put(0 if entry is None else entry.number, kind, payload)
        if entry is not None:
            entry.last_sequence = self._next_sequence - 1
            self._live[place.segment] += place.size
            if kind is not Kind.ANSWER:
                entry.add(place)
        if self._due is None:
            self._due = self._loop.call_later(RIDE_S, self._hand_over)
        return place

    def append_tree(self, entry: Entry | None, kind: Kind, tree: Any) -> Place:
        return self.append(entry, kind, packing.pack(tree))

    def append_answer(self, entry: Entry, answer: records.KeptAnswerBytes) -> None:
        place = self.append(entry, Kind.ANSWER, records.pack_answer(answer))
        self._drop(entry.keep_answer(answer.digest, Answered(place, answer.call_id, answer.ended_at)))

    async def committed(self) -> None:
        """Until all that was appended so far is written, and synced where that is asked for.

        Raises:
            JournalDown: it cannot be written now. It stays in line, so it may be later.
        """
        if self.problem is not None:
            raise JournalDown(self.problem)
        sequence = self._next_sequence - 1
        if sequence <= self._written:
            return
        future = self._loop.create_future()
        self._waiters.append((sequence, future))
        if not self._hurried:  # once an iteration of the loop: what comes in the same one goes along
            self._hurried = True
            self._loop.call_soon(self._hand_over)
        await future

    def has_written(self, entry: Entry) -> bool:
        """All that was appended of it is on disk."""
        return entry.last_sequence <= self._written

    def _begin_segment(self) -> None:
        self._offset = frames.SEGMENT_HEADER
        self._put(0, Kind.GLOBALS, packing.pack(self._globals_of()))

    def _put(self, session: int, kind: Kind, payload: bytes) -> Place:
        place = Place(self._segment, self._offset, frames.size_of(len(payload)))
        head = frames.head(session, self._next_sequence, kind, payload)
        self._waiting.append(Waiting(self._segment, self._next_sequence, head, payload))
        self._next_sequence += 1
        self._offset += place.size
        self._sizes[self._segment] += place.size
        return place

    def _hand_over(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due, self._hurried = None, False
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._writer.hand_over(waiting)

    def _tell(self, heard: Callable[[Any], None]) -> Callable[[Any], None]:
        def tell(news: Any) -> None:
            self._loop.call_soon_threadsafe(heard, news)

        return tell

    def _on_written(self, sequence: int) -> None:
        self._written = max(sequence, self._written)
        while self._waiters and self._waiters[0][0] <= self._written:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
        if self.problem is not None:
            log.warning("journal_writes_again", folder=str(self._disk.folder))
            self.problem = None
        while self._released and self._released[0][0] <= self._written:
            place = self._released.popleft()[1]
            self._live[place.segment] -= place.size
        self._reclaim()

    def _on_failed(self, error: OSError) -> None:
        if self.problem is None:
            log.error("journal_cannot_be_written", folder=str(self._disk.folder), detail=str(error))
        self.problem = f"the journal cannot be written: {error.strerror or error}"
        while self._waiters:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_exception(JournalDown(self.problem))

    # -- reading

    async def read(self, places: Iterable[Place]) -> list[Frame]:
        """The records at these places, in order.

        Raises:
            JournalDown: they cannot be read, or are damaged.
        """
        return [frame for frame, _ in await self._read_whole(places)]

    async def _read_whole(self, places: Iterable[Place]) -> list[tuple[Frame, bytes]]:
        """With the bytes that they are."""
        wanted = list(places)
        segments = {place.segment for place in wanted}
        self._reading.update(segments)
        try:
            return await asyncio.to_thread(self._read, wanted)
        finally:
            self._reading.subtract(segments)
            self._reclaim()

    def _read(self, places: list[Place]) -> list[tuple[Frame, bytes]]:
        try:
            raw = self._disk.read(places)
        except OSError as e:
            raise JournalDown(f"the journal cannot be read: {e}") from e
        out = []
        for place, data in zip(places, raw, strict=True):
            frame = frames.read(data)
            if frame is None:
                raise JournalDown(f"the journal is damaged: no record at byte {place.offset} of {place.segment}")
            out.append((frame, data))
        return out

    # -- reclaiming

    def release(self, entry: Entry) -> None:
        """Its records are not needed any more."""
        self._drop(entry.all_places())
        entry.clear()

    def release_inner(self, entry: Entry) -> None:
        """Its records are not needed any more but for the first and the last, which say what became of it."""
        inner = entry.take_inner()
        self._drop(inner)

    @property
    def segments(self) -> int:
        return len(self._sizes)

    @property
    def disk_bytes(self) -> int:
        return sum(self._sizes.values())

    def _drop(self, places: Iterable[Place]) -> None:
        """Not needed once all that was appended before is written."""
        self._released.extend((self._next_sequence - 1, place) for place in places)

    @property
    def oldest_is_dead(self) -> bool:
        oldest = min(self._sizes)
        return oldest < self._segment and self._live[oldest] <= 0 and not self._reading[oldest]

    @property
    def wants_compaction(self) -> bool:
        """More than half of what is on disk is not needed, and the oldest segment pins it."""
        oldest, room = min(self._sizes), 2 * sum(self._live.values()) + 2 * self._segment_bytes
        return oldest < self._segment and self._live[oldest] > 0 and self.disk_bytes > room

    def _reclaim(self) -> None:
        if self._reclaiming is None and not self._closed and self.oldest_is_dead:
            self._reclaiming = self._loop.create_task(self._delete_dead(), name="journal-reclaim")
            self._reclaiming.add_done_callback(self._reclaimed)

    def _reclaimed(self, task: asyncio.Task[None]) -> None:
        self._reclaiming = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("journal_reclaim_failed", exc_info=error)

    async def _delete_dead(self) -> None:
        while self.oldest_is_dead:
            oldest = min(self._sizes)
            await asyncio.to_thread(self._disk.delete, oldest)
            del self._sizes[oldest], self._live[oldest], self._reading[oldest]

    async def compact(self, entries: Iterable[Entry]) -> None:
        """Copy what is still needed of the oldest segment to the newest, so that the oldest can go.

        A frame keeps its sequence number: should the process end between copy and deletion, the next start finds it
        twice and takes it once.
        """
        oldest = min(self._sizes)
        if oldest == self._segment:
            return
        held: list[tuple[Entry, Place]] = []
        for k, entry in enumerate(entries):
            held += [(entry, place) for place in entry.all_places() if place.segment == oldest]
            if k % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        if oldest not in self._sizes:  # its last sessions went meanwhile, and it with them
            return
        for begin in range(0, len(held), AT_ONCE):
            await self._copy([(entry, place) for entry, place in held[begin : begin + AT_ONCE] if entry.holds(place)])
        self._put(0, Kind.GLOBALS, packing.pack(self._globals_of()))
        await self.committed()  # by which the old places are given up
        log.info("journal_compacted", segment=oldest, copied=len(held))

    async def _copy(self, some: list[tuple[Entry, Place]]) -> None:
        """A copy is an entry's once it is on disk, so that whoever reads the entry meanwhile finds the old one. It lies
        before whatever says that its session is over: a record that is not an entry's any more is not copied."""
        copies: list[tuple[Entry, Place, Place]] = []
        for (entry, place), (frame, raw) in zip(some, await self._read_whole(p for _, p in some), strict=True):
            if not entry.holds(place):
                continue
            if self._offset + place.size > self._segment_bytes:
                self._segment += 1
                self._begin_segment()
            copies.append((entry, place, Place(self._segment, self._offset, place.size)))
            self._waiting.append(Waiting(self._segment, frame.sequence, raw, b""))
            self._offset += place.size
            self._sizes[self._segment] += place.size
        self._put(0, Kind.GLOBALS, packing.pack(self._globals_of()))  # has a new number, which can be waited for
        await self.committed()
        for entry, old, new in copies:
            if entry.move(old, new):
                self._live[new.segment] += new.size
                self._drop([old])

    # -- the end

    async def close(self) -> None:
        """Write what waits, and let go of the folder."""
        self._hand_over()
        left = await asyncio.to_thread(self._writer.close)
        self._closed = True
        if self._reclaiming is not None:  # also by what was written last
            await asyncio.wait([self._reclaiming])
        if left:
            log.error("journal_lost_at_the_end", records=left, detail=self.problem)
        self._disk.close()


async def open_journal(
    folder: Path, *, fsync: bool, segment_bytes: int, globals_of: Callable[[], dict[str, Any]]
) -> tuple[Journal, Found]:
    """A journal in a folder, not yet started, and what the folder holds from before.

    Raises:
        JournalRefused: the folder is in use, cannot be written, or is damaged.
    """
    disk, found = await asyncio.to_thread(_open, folder, fsync)
    return Journal(disk, found, segment_bytes=segment_bytes, globals_of=globals_of), found


def _open(folder: Path, fsync: bool) -> tuple[Disk, Found]:
    disk = Disk(folder, fsync=fsync)
    try:
        return disk, scan(disk)
    except BaseException:
        disk.close()
        raise
