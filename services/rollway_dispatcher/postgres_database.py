"""The state on a PostgreSQL server, for several dispatchers: a pool of connections.

Failures are told in two kinds: what goes away by itself (the server is away, starting, out of connections, a deadlock
that chose us) is `StoreTrouble`; anything else is a bug and stays what it is.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from rollway_dispatcher.database import Row, StoreTrouble, Writing

PASSING = (
    OSError,  # TimeoutError among them
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # the server is being stopped or started
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.InterfaceError,  # the connection is closed
    asyncpg.InternalClientError,
)


@contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except PASSING as e:
        raise StoreTrouble(f"PostgreSQL: {type(e).__name__}: {e}") from e


@functools.cache
def numbered(query: str) -> str:
    """``?`` as PostgreSQL's $1, $2, …"""
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", query)


class _Connection:
    def __init__(self, db: Any) -> None:
        self._db = db

    async def one(self, query: str, args: Sequence[Any] = ()) -> Row | None:
        with told():
            found: Row | None = await self._db.fetchrow(numbered(query), *args)
            return found

    async def every(self, query: str, args: Sequence[Any] = ()) -> list[Row]:
        with told():
            return list(await self._db.fetch(numbered(query), *args))

    async def execute(self, query: str, args: Sequence[Any] = ()) -> int:
        with told():
            said: str = await self._db.execute(numbered(query), *args)
        count = said.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        with told():
            await self._db.executemany(numbered(query), rows)

    async def insert_many(self, into: str, rows: Sequence[Sequence[Any]], then: str = "") -> None:
        if rows:
            await self.execute_many(f"INSERT INTO {into} VALUES ({', '.join('?' * len(rows[0]))}) {then}", rows)

    async def delete_many(self, table: str, column: str, values: Sequence[str]) -> None:
        if values:
            await self.execute(f"DELETE FROM {table} WHERE {column} = ANY(?)", (list(values),))


class PostgresDatabase(_Connection):
    failure_type = "convert_from(failure, 'UTF8')::json ->> 'type'"

    def __init__(self, pool: asyncpg.Pool) -> None:
        super().__init__(pool)
        self._pool = pool

    async def rows(self, query: str, args: Sequence[Any] = ()) -> AsyncGenerator[Row, None]:
        with told():
            async with self._pool.acquire() as db, db.transaction(readonly=True):
                async for row in db.cursor(numbered(query), *args, prefetch=8):
                    yield row

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Writing]:
        with told():
            async with self._pool.acquire() as db, db.transaction():
                yield _Connection(db)
