"""Cutting damage out of a journal, loudly: what is left is marked for what may be missing. Blocking."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from rollway_gateway.journal import frames, packing
from rollway_gateway.journal.disk import SUFFIX
from rollway_gateway.journal.frames import Damaged, Frame
from rollway_gateway.journal.lock import lock_folder
from rollway_gateway.journal.problems import JournalRefused
from rollway_gateway.journal.records import Kind


class Mended(NamedTuple):
    """What was done."""

    dropped_bytes: int
    marked: int
    """Sessions that may miss records: they may not train as a whole."""


def mend(folder: Path) -> Mended:
    """Rewrite damaged segments without what cannot be read, the old ones kept as ``.damaged``, and mark every session
    that was not over before the damage.

    Raises:
        JournalRefused: the folder is in use, or a segment is of another version.
    """
    lock = lock_folder(folder)
    try:
        return _mend(folder)
    finally:
        os.close(lock)


def _mend(folder: Path) -> Mended:
    dropped, last = 0, 0
    over: set[int] = set()
    kept: list[Frame] = []
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    for path in paths:
        whole, lost = _readable(path)
        if not dropped and not lost:
            over |= {frame.session for frame in whole if frame.kind == Kind.SEALED}
        kept += whole
        dropped += lost
        last = max((frame.sequence for frame in kept), default=0)
        if lost:
            _rewrite(path, whole)
    marked = _marked(kept, over) if dropped else []
    if marked:
        number = int(paths[-1].stem) + 1
        said = packing.pack({"reason": f"{dropped} bytes of the journal were damaged and cut out"})
        spoiled = [Frame(session, last + 1 + n, Kind.SPOILED, said) for n, session in enumerate(marked)]
        _write(folder / f"{number:08}{SUFFIX}", number, spoiled)
    return Mended(dropped, len(marked))


def _readable(path: Path) -> tuple[list[Frame], int]:
    data = path.read_bytes()
    try:
        frames.check_segment_header(data, int(path.stem))
    except ValueError as e:
        raise JournalRefused(f"{path} {e}: move it away, and its sessions are unknown") from e
    whole: list[Frame] = []
    at, lost = frames.SEGMENT_HEADER, 0
    while at < len(data):
        try:
            for found in frames.scan(data, at):
                whole.append(found.frame)
            return whole, lost
        except Damaged as e:
            later = len(data) if e.later is None else e.later
            lost += later - e.offset
            at = later
    return whole, lost


def _marked(kept: list[Frame], over: set[int]) -> list[int]:
    """Sessions with a beginning, and no end in a segment before the damage."""
    opened = {frame.session for frame in kept if frame.kind == Kind.OPENED}
    forgotten = {frame.session for frame in kept if frame.kind == Kind.FORGOTTEN}
    return sorted(opened - over - forgotten)


def _rewrite(path: Path, whole: list[Frame]) -> None:
    new = path.with_suffix(".new")
    _write(new, int(path.stem), whole)
    path.rename(path.with_suffix(".damaged"))
    new.rename(path)


def _write(path: Path, number: int, whole: list[Frame]) -> None:
    path.write_bytes(frames.segment_header(number) + b"".join(frames.pack(*frame) for frame in whole))
