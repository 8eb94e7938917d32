"""The state in one SQLite file (WAL, fsync on commit). One connection writes, one reads: a long read delays no step."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiosqlite

from rollway_dispatcher.database import Row, StoreTrouble, Writing


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
