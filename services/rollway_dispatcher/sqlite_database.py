"""The state in one SQLite file (WAL, fsync on commit). One connection writes, one reads: a long read delays no step.

What only writes is gathered and goes to the writer's thread at once, with the commit: each way there and back waits for
an event loop that has much to do, and statement by statement that would be most of a commit's time.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from rollway_dispatcher.database import Row, StoreTrouble, Writing

T = TypeVar("T")

ROWS_AT_ONCE = (64, 16, 4, 1)
"""Rows in one statement, since each gives the interpreter's lock away and waits to have it back. Few sizes, so that the
statements stay prepared."""


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    at = 0
    while at < len(rows):
        count = next(n for n in ROWS_AT_ONCE if n <= len(rows) - at)
        yield rows[at : at + count]
        at += count


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as e:
        raise StoreTrouble(str(e)) from e


class Writer:
    """The connection that writes, on a thread of its own. Made by `open_writer`."""

    def __init__(self, path: Path) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._path = path
        self._db: sqlite3.Connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with _told():
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self._db))

    async def open(self) -> None:
        def connect() -> None:
            self._db = sqlite3.connect(self._path)

        await asyncio.get_running_loop().run_in_executor(self._thread, connect)

    async def close(self) -> None:
        await self.run(sqlite3.Connection.close)
        self._thread.shutdown(wait=False)  # it has nothing left to do


@asynccontextmanager
async def open_writer(path: Path) -> AsyncIterator[Writer]:
    """Raises:
    sqlite3.Error: cannot be opened."""
    writer = Writer(path)
    await writer.open()
    try:
        yield writer
    finally:
        await writer.close()


Work = Callable[[sqlite3.Connection], object]


class _Transaction:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._gathered: list[Work] = []

    def _and_then(self, work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
        gathered, self._gathered = self._gathered, []

        def all_of_it(db: sqlite3.Connection) -> T:
            for first in gathered:
                first(db)
            return work(db)

        return all_of_it

    async def one(self, query: str, args: Sequence[Any] = ()) -> Row | None:
        found: Row | None = await self._writer.run(self._and_then(lambda db: db.execute(query, args).fetchone()))
        return found

    async def every(self, query: str, args: Sequence[Any] = ()) -> list[Row]:
        return await self._writer.run(self._and_then(lambda db: db.execute(query, args).fetchall()))

    async def execute(self, query: str, args: Sequence[Any] = ()) -> int:
        return await self._writer.run(self._and_then(lambda db: db.execute(query, args).rowcount))

    async def execute_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        self._gathered.append(lambda db: db.executemany(query, rows))

    async def insert_many(self, into: str, rows: Sequence[Sequence[Any]], then: str = "") -> None:
        for chunk in _chunks(rows):
            marks = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
            self._statement(f"INSERT INTO {into} VALUES {marks} {then}", list(chain.from_iterable(chunk)))

    async def delete_many(self, table: str, column: str, values: Sequence[str]) -> None:
        for chunk in _chunks(values):
            self._statement(f"DELETE FROM {table} WHERE {column} IN ({', '.join('?' * len(chunk))})", chunk)

    def _statement(self, query: str, args: Sequence[Any]) -> None:
        self._gathered.append(lambda db: db.execute(query, args))

    async def commit(self) -> None:
        await self._writer.run(self._and_then(sqlite3.Connection.commit))


class SqliteDatabase:
    failure_type = "json_extract(failure, '$.type')"

    def __init__(self, writer: Writer, reader: aiosqlite.Connection) -> None:
        self._writer, self._reader = writer, reader
        self._lock = asyncio.Lock()

    async def one(self, query: str, args: Sequence[Any] = ()) -> Row | None:
        with _told():
            async with self._reader.execute(query, args) as found:
                return await found.fetchone()

    async def every(self, query: str, args: Sequence[Any] = ()) -> list[Row]:
        with _told():
            return list(await self._reader.execute_fetchall(query, args))

    async def rows(self, query: str, args: Sequence[Any] = ()) -> AsyncGenerator[Row, None]:
        with _told():
            async with self._reader.execute(query, args) as found:
                async for row in found:
                    yield row

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Writing]:
        async with self._lock:
            transaction = _Transaction(self._writer)
            try:
                yield transaction
                await transaction.commit()
            except BaseException:
                await self._writer.run(sqlite3.Connection.rollback)
                raise
