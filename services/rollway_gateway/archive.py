"""Sealed trajectories in the object store, packed, under `rollway_wire.ids.trajectory_key`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from rollway_gateway.settings import GatewaySettings
from rollway_wire.codec import MEDIA_TYPE, dump_packed, load_packed, load_trajectory, trajectory_tree
from rollway_wire.ids import trajectory_key
from rollway_wire.tokens import Trajectory


class Objects(Protocol):
    """What is needed of an object store."""

    async def get(self, bucket: str, key: str) -> bytes: ...

    async def put(self, bucket: str, key: str, data: bytes, content_type: str = ...) -> None: ...


class Archive:
    """One bucket."""

    def __init__(self, objects: Objects, bucket: str, prefix: str) -> None:
        self._objects, self._bucket, self._prefix = objects, bucket, prefix

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    async def put(self, trajectory: Trajectory) -> str:
        """Returns its key. The same trajectory again overwrites itself.

        Raises:
            NotFound, Unavailable: no such bucket, or it cannot be reached.
        """
        key = trajectory_key(self._prefix, trajectory.session_id)
        packed = await asyncio.to_thread(lambda: dump_packed(trajectory_tree(trajectory)))
        await self._objects.put(self._bucket, key, packed, MEDIA_TYPE)
        return key

    async def get(self, key: str) -> Trajectory:
        """Raises:
        NotFound, Unavailable: it is not there, or cannot be reached.
        BadRequest: what is there is no trajectory."""
        packed = await self._objects.get(self._bucket, key)
        return await asyncio.to_thread(lambda: load_trajectory(load_packed(packed)))


@asynccontextmanager
async def open_archive(settings: GatewaySettings) -> AsyncIterator[Archive | None]:
    """None where no bucket is set.

    Raises:
        NotFound, Unavailable: the bucket cannot be used.
    """
    if settings.archive_bucket is None:
        yield None
        return
    from rollway_kit.object_store import open_object_store  # its extra is installed where the setting is used

    async with open_object_store(endpoint_url=settings.s3_endpoint_url, region=settings.s3_region) as objects:
        await objects.check_bucket(settings.archive_bucket)
        yield Archive(objects, settings.archive_bucket, settings.archive_prefix)
