"""The journal's files: segments of frames in one folder. Blocking; called from threads only.

lock            held by the process that writes
00000001.rwj    segments, the highest number is being written; only the lowest is ever deleted, so that what says
00000002.rwj    that a session is over outlives the session's records
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from rollway_gateway.journal import frames
from rollway_gateway.journal.entries import Place
from rollway_gateway.journal.frames import Damaged, Found
from rollway_gateway.journal.lock import lock_folder
from rollway_gateway.journal.problems import JournalRefused

log = structlog.get_logger()

SUFFIX = ".rwj"
PARTS_AT_ONCE = 1024
"""What one system call takes (IOV_MAX)."""


class Disk:
    """One folder, locked."""

    def __init__(self, folder: Path, *, fsync: bool) -> None:
        """
        Raises:
            JournalRefused: another process has the folder, or it cannot be written.
        """
        self.folder = folder.absolute()
        self._fsync = fsync
        self._lock: int | None = lock_folder(folder)
        self._fd: int | None = None
        self._number = 0
        self._end = 0
        """Of what is known to be whole in the segment being written."""

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08}{SUFFIX}"

    def numbers(self) -> list[int]:
        """Of the segments there are, rising."""
        return sorted(int(p.stem) for p in self.folder.glob(f"*{SUFFIX}") if p.stem.isdigit())

    # -- at the start

    def scan(self, number: int, *, last: bool) -> Iterator[Found]:
        """The frames of a segment. What the end of a process left half-written at the end of the last one is cut off.

        Raises:
            JournalRefused: the segment is damaged elsewhere, or of another version.
        """
        path = self.path(number)
        data = path.read_bytes()
        try:
            if last and len(data) < frames.SEGMENT_HEADER:
                log.warning("journal_torn", segment=str(path), kept_bytes=0, dropped_bytes=len(data))
                path.unlink()
                return
            frames.check_segment_header(data, number)
            yield from frames.scan(data)
        except Damaged as e:
            if not last or e.later is not None:
                raise JournalRefused(_damage(path, e, len(data))) from e
            log.warning("journal_torn", segment=str(path), kept_bytes=e.offset, dropped_bytes=len(data) - e.offset)
            os.truncate(path, e.offset)
        except ValueError as e:
            raise JournalRefused(f"{path} {e}") from e

    # -- writing

    def write(self, number: int, parts: Sequence[bytes]) -> None:
        """Append to a segment; a new number begins one. All parts, or an error and the file as it was.

        Raises:
            OSError: it could not be written. The same call again may succeed.
        """
        if number != self._number:
            self._begin(number)
        assert self._fd is not None
        try:
            at = self._end
            for begin in range(0, len(parts), PARTS_AT_ONCE):
                at = self._put(self._fd, parts[begin : begin + PARTS_AT_ONCE], at)
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end = at

    @staticmethod
    def _put(fd: int, parts: Sequence[bytes], at: int) -> int:
        """Where they end."""
        done, size = os.pwritev(fd, parts, at), sum(map(len, parts))
        rest = memoryview(b"".join(parts))[done:] if done < size else None
        while rest:  # it was interrupted, or the disk is full
            more = os.pwrite(fd, rest, at + done)
            done, rest = done + more, rest[more:]
        return at + size

    def _begin(self, number: int) -> None:
        fd = os.open(self.path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, 0)
            header = frames.segment_header(number)
            if os.pwrite(fd, header, 0) != len(header):
                raise OSError(28, "No space left on device")
            if self._fsync:
                os.fdatasync(fd)
                self._sync_folder()
        except OSError:
            os.close(fd)
            raise
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._number, self._end = fd, number, frames.SEGMENT_HEADER

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # -- reading and ending

    def read(self, places: Iterable[Place]) -> list[bytes]:
        """The frames at these places, headers and all.

        Raises:
            OSError: they cannot be read.
        """
        opened: dict[int, int] = {}
        out = []
        try:
            for place in places:
                fd = opened.get(place.segment)
                if fd is None:
                    fd = opened[place.segment] = os.open(self.path(place.segment), os.O_RDONLY | os.O_CLOEXEC)
                out.append(os.pread(fd, place.size, place.offset))
        finally:
            for fd in opened.values():
                os.close(fd)
        return out

    def delete(self, number: int) -> None:
        self.path(number).unlink(missing_ok=True)

    def close(self) -> None:
        for fd in (self._fd, self._lock):
            if fd is not None:
                os.close(fd)
        self._fd = self._lock = None


def _damage(path: Path, e: Damaged, size: int) -> str:
    behind = "records behind it are whole" if e.later is not None else "later segments follow it"
    return (
        f"{path} is damaged at byte {e.offset} of {size}, and {behind}: this is no torn end but lost evidence. "
        f"`python -m rollway_gateway.journal mend {path.parent}` cuts the damage out and marks every session that may "
        "have had records there as incomplete; or move the folder away, and its sessions are unknown from then on"
    )
