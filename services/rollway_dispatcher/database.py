"""A database as the store needs it: one SQL text, in SQLite's and PostgreSQL's common tongue, with ``?`` for values.

Two make one: `sqlite_database` (a file, embedded) and `postgres_database` (a server, for several dispatchers).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Row = Sequence[Any]


class StoreTrouble(Exception):
    """The database cannot be read or written now: a full disk, a lock held too long, a server that is away. What was
    to be written may have been, where the answer was lost; the store's writes can be repeated."""


class LeaseLost(Exception):
    """Another dispatcher has taken these batches over. Nothing was written."""

    def __init__(self, batch_ids: Iterable[str]) -> None:
        self.batch_ids = frozenset(batch_ids)
        super().__init__(", ".join(sorted(self.batch_ids)))


class Reading(Protocol):
    """Every method raises `StoreTrouble`."""

    async def one(self, query: str, args: Sequence[Any] = ()) -> Row | None: ...

    async def every(self, query: str, args: Sequence[Any] = ()) -> list[Row]: ...


class Writing(Reading, Protocol):
    """A transaction: all of it or nothing, ended by the block that it was opened for."""

    async def execute(self, query: str, args: Sequence[Any] = ()) -> int:
        """How many rows it touched."""
        ...

    async def execute_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None: ...

    async def insert_many(self, into: str, rows: Sequence[Sequence[Any]], then: str = "") -> None:
        """``INSERT INTO {into} VALUES`` rows of one length, then ``ON CONFLICT …`` or nothing."""
        ...

    async def delete_many(self, table: str, column: str, values: Sequence[str]) -> None: ...


class Database(Reading, Protocol):
    failure_type: str
    """SQL for the type in a rollout's ``failure``."""

    def rows(self, query: str, args: Sequence[Any] = ()) -> AsyncGenerator[Row, None]:
        """One by one, so that a reader that stops has not read the rest. Close it (``aclose``) when it stops early."""
        ...

    def writing(self) -> AbstractAsyncContextManager[Writing]:
        """A transaction, committed at the end of the block and rolled back when it raises."""
        ...
