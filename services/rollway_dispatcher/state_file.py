"""Opening the state file: one dispatcher per file, one schema per version.

A lock file beside it says who has it, and the lock dies with its holder.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import aiosqlite

from rollway_dispatcher import schema
from rollway_dispatcher.sqlite_database import SqliteDatabase, open_writer
from rollway_dispatcher.store import Store
from rollway_wire.problems import RollwayError


class StateUnusable(RollwayError):
    """The state file cannot be opened: held by another dispatcher, or written by another version."""


def _lock(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        lock.close()
        raise StateUnusable("in use by another dispatcher: give each its own") from e
    return lock


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[Store]:
    """Open or make the state file.

    Raises:
        StateUnusable: held by another dispatcher, or written by another version.
        StoreTrouble, OSError, sqlite3.Error: cannot be read or written.
    """
    lock = await asyncio.to_thread(_lock, path)
    try:
        async with open_writer(path) as writer, aiosqlite.connect(path) as reader:
            await writer.run(_make_tables)
            await reader.executescript("PRAGMA query_only = ON; PRAGMA busy_timeout = 10000;")
            version = await _meta(reader, "version")
            if version != str(schema.VERSION):
                raise StateUnusable(f"it has schema version {version}; this build writes {schema.VERSION}")
            yield Store(SqliteDatabase(writer, reader), bytes.fromhex(await _meta(reader, "secret")))
    finally:
        await asyncio.to_thread(lock.close)


def _make_tables(db: sqlite3.Connection) -> None:
    db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + schema.SCHEMA)
    db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", schema.first_meta())
    db.commit()


async def _meta(db: aiosqlite.Connection, key: str) -> str:
    async with db.execute("SELECT value FROM meta WHERE key = ?", (key,)) as rows:
        row = await rows.fetchone()
    if row is None:
        raise StateUnusable(f"it holds no {key}: the file is damaged")
    return str(row[0])
