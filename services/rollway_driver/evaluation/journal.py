"""What of an evaluation is done: a folder with ``run.json`` and ``results.jsonl``, good after any kill.

A result is a line, on disk before the next is asked for; the line holds its batch and cursor, so where to go on is read
from the lines themselves. A batch is written down, with the key it will be posted under, before it is posted.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from pathlib import Path
from typing import IO, Any

import orjson

from rollway_driver.evaluation.data_set import EvaluationError


class Journal:
    """Made by `open_journal`. Close it."""

    def __init__(self, folder: Path, lock: IO[str], about: dict[str, Any], samples: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.samples = samples
        """Lines of results.jsonl."""
        self._lock = lock
        self._about = about
        self._lines = (folder / "results.jsonl").open("ab")

    @property
    def batch(self) -> dict[str, Any] | None:
        """The batch under way: ``key``, ``dispatcher``, ``batch_id`` (None: perhaps not posted), ``wanted``."""
        found: dict[str, Any] | None = self._about["batch"]
        return found

    def cursor(self, batch_id: str) -> int:
        """Of the last result of a batch that is here."""
        return max((s["cursor"] for s in self.samples if s["batch_id"] == batch_id), default=0)

    def done(self) -> Counter[str]:
        """Samples by input."""
        return Counter(s["input_id"] for s in self.samples)

    def set_batch(self, batch: dict[str, Any] | None) -> None:
        self._about["batch"] = batch
        _write(self.folder / "run.json", self._about)

    def add(self, sample: dict[str, Any]) -> None:
        """Keep one result; it is on disk when this returns."""
        self._lines.write(orjson.dumps(sample) + b"\n")
        self._lines.flush()
        os.fsync(self._lines.fileno())
        self.samples.append(sample)

    def kept(self) -> int:
        """How many results are on disk, also where an interruption came between the disk and `samples`."""
        self._lines.flush()
        return len(_whole_lines(self.folder / "results.jsonl"))

    def close(self) -> None:
        self._lines.close()
        self._lock.close()


def open_journal(folder: Path, identity: dict[str, Any], *, resume: bool) -> Journal:
    """Begin a run, or with ``resume`` go on with the one that is there.

    Args:
        identity: what must be the same for results to belong together.

    Raises:
        EvaluationError: a run is there and is not to be resumed, or is of something else, or is under way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        about = _about(folder, identity, resume=resume)
        return Journal(folder, lock, about, _whole_lines(folder / "results.jsonl"))
    except BlockingIOError as e:
        lock.close()
        raise EvaluationError(f"{folder} is in use by another evaluation") from e
    except BaseException:
        lock.close()
        raise


def _about(folder: Path, identity: dict[str, Any], *, resume: bool) -> dict[str, Any]:
    path = folder / "run.json"
    if not path.exists():
        about: dict[str, Any] = {"identity": identity, "batch": None}
        _write(path, about)
        return about
    if not resume:
        raise EvaluationError(f"{folder} holds a run: go on with --resume, or delete it, or choose another --out")
    about = orjson.loads(path.read_bytes())
    changed = [k for k in identity if about["identity"].get(k) != identity[k]]
    if changed:
        raise EvaluationError(f"{folder} holds a run with another {', '.join(changed)}: choose another --out")
    return about


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines there are; one that a kill cut short is removed."""
    raw = path.read_bytes() if path.exists() else b""
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        with path.open("rb+") as file:
            file.truncate(len(whole))
    return [orjson.loads(line) for line in whole.splitlines()]


def _write(path: Path, document: dict[str, Any]) -> None:
    draft = path.with_name(path.name + ".draft")
    with draft.open("wb") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
