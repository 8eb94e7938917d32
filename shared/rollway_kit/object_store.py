"""The object store: the four S3 operations Rollway uses, through aioboto3, errors translated once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import parse_timestamp

from rollway_wire.problems import NotFound, RollwayError, Unavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


# An answer that breaks off while its body is read is aiohttp's own error, not the SDK's.
_FAILURES = (ClientError, BotoCoreError, aiohttp.ClientError, TimeoutError)


@dataclass(frozen=True, slots=True)
class ListedObject:
    key: str
    size: int


def _translate(e: Exception, what: str) -> RollwayError:
    if isinstance(e, ClientError):
        code = e.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "404", "NoSuchBucket"):
            return NotFound(f"{what}: {code}")
        return Unavailable(f"{what}: S3 answered {code}: {e.response.get('Error', {}).get('Message', '')}")
    return Unavailable(f"{what}: S3 cannot be reached: {e}")


class ObjectStore:
    """S3 by bucket and key. One client, one connection pool, safe for concurrent use on one event loop.

    Every method raises `NotFound` when the bucket or key does not exist and `Unavailable` when S3 fails or cannot be
    reached after the SDK's own retries.
    """

    def __init__(self, client: S3Client) -> None:
        self._s3 = client

    async def get(self, bucket: str, key: str) -> bytes:
        try:
            answer = await self._s3.get_object(Bucket=bucket, Key=key)
            async with answer["Body"] as body:
                return await body.read()
        except _FAILURES as e:
            raise _translate(e, f"get s3://{bucket}/{key}") from e

    async def put(self, bucket: str, key: str, data: bytes, content_type: str = "application/json") -> None:
        try:
            await self._s3.put_object(Bucket=bucket, Key=key, Body=data, ContentType=content_type)
        except _FAILURES as e:
            raise _translate(e, f"put s3://{bucket}/{key}") from e

    async def list(self, bucket: str, prefix: str) -> list[ListedObject]:
        """Every object under ``prefix``: one request per 1,000 keys."""
        found: list[ListedObject] = []
        token: dict[str, Any] = {}
        try:
            while True:
                page = await self._s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **token)
                found += [ListedObject(o["Key"], o["Size"]) for o in page.get("Contents", [])]
                if not page.get("IsTruncated"):
                    return found
                token = {"ContinuationToken": page["NextContinuationToken"]}
        except _FAILURES as e:
            raise _translate(e, f"list s3://{bucket}/{prefix}") from e

    async def check_bucket(self, bucket: str) -> None:
        """Raise `NotFound` or `Unavailable` unless the bucket can be used."""
        try:
            await self._s3.head_bucket(Bucket=bucket)
        except _FAILURES as e:
            raise _translate(e, f"bucket {bucket}") from e


def _timestamp(value: Any) -> datetime:
    """As S3 writes it, in listings and in heads. The SDK's own parser takes most of a listing's time."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return read(value)
        except (TypeError, ValueError):
            continue
    return parse_timestamp(value)


@asynccontextmanager
async def open_object_store(
    *, endpoint_url: str | None = None, region: str | None = None, max_connections: int = 64
) -> AsyncIterator[ObjectStore]:
    """An `ObjectStore` on the SDK's own credential chain; ``endpoint_url`` for an S3-compatible store."""
    config = AioConfig(
        retries={"max_attempts": 4, "mode": "standard"},
        max_pool_connections=max_connections,
        connect_timeout=5,
        read_timeout=30,
        # Without these a request takes half as much CPU again: a user agent put together anew for each, arguments
        # checked against the model, checksums beside those that TLS and the ETag are.
        user_agent="rollway",
        parameter_validation=False,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if endpoint_url else {},
    )
    core = get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    session = aioboto3.Session(botocore_session=core)
    async with session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config) as client:
        yield ObjectStore(client)
