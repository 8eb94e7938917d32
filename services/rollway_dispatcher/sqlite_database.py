"""The state in one SQLite file (WAL, fsync on commit). One connection writes, one reads: a long read delays no step."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import Any, TypeVar

import aiosqlite

from rollway_dispatcher.database import Row, StoreTrouble, Writing

T = TypeVar("T")

ROWS_AT_ONCE = (64, 16, 4, 1)
"""Rows in one statement. A statement gives the interpreter's lock away while it runs and waits to have it back, behind
an event loop that has much to do: row by row that would be most of a commit's time. Few sizes, so that the statements
stay prepared."""


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


class _Connection:
    def __init__(self, db: aiosqlite.Connection) -> None:
        self._db = db

    async def one(self, query: str, args: Sequence[Any] = ()) -> Row | None:
        with _told():
            async with self._db.execute(query, args) as found:
                return await found.fetchone()

    async def every(self, query: str, args: Sequence[Any] = ()) -> list[Row]:
        with _told():
            async with self._db.execute(query, args) as found:
                return list(await found.fetchall())

    async def execute(self, query: str, args: Sequence[Any] = ()) -> int:
        with _told():
            async with self._db.execute(query, args) as done:
                return done.rowcount

    async def execute_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        with _told():
            await self._db.executemany(query, rows)

    async def insert_many(self, into: str, rows: Sequence[Sequence[Any]], then: str = "") -> None:
        for chunk in _chunks(rows):
            marks = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
            with _told():
                await self._db.execute(f"INSERT INTO {into} VALUES {marks} {then}", list(chain.from_iterable(chunk)))

    async def delete_many(self, table: str, column: str, values: Sequence[str]) -> None:
        for chunk in _chunks(values):
            with _told():
                await self._db.execute(f"DELETE FROM {table} WHERE {column} IN ({', '.join('?' * len(chunk))})", chunk)


class SqliteDatabase(_Connection):
    failure_type = "json_extract(failure, '$.type')"

    def __init__(self, writer: aiosqlite.Connection, reader: aiosqlite.Connection) -> None:
        super().__init__(reader)
        self._writer = writer
        self._lock = asyncio.Lock()

    async def rows(self, query: str, args: Sequence[Any] = ()) -> AsyncGenerator[Row, None]:
        with _told():
            async with self._db.execute(query, args) as found:
                async for row in found:
                    yield row

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Writing]:
        async with self._lock:
            try:
                yield _Connection(self._writer)
                with _told():
                    await self._writer.commit()
            except BaseException:
                await self._writer.rollback()
                raise
