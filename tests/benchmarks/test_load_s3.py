"""The stand-in for S3 under load answers the SDK as moto does, in everything that a batch asks of S3."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.dispatcher.load_s3 import Connection, LoadS3
from rollway_kit.object_store import ObjectStore, open_object_store
from rollway_wire.problems import RollwayError
from tests.kit.object_storage import Bucket

KEYS = ["exp/b1/g0/s.json", "exp/b1/g 1/s.json", "exp/b1/g&<2>/s.json", "exp/b1/gü/s+s.json", "exp/b10/g0/s.json", "z"]


async def told(call: Any) -> Any:
    """What it gives, or the name of what it raises."""
    try:
        return await call
    except RollwayError as e:
        return type(e).__name__


async def script(store: ObjectStore, bucket: str) -> list[Any]:
    found = [await told(store.check_bucket(name)) for name in (bucket, "missing-bucket")]
    for i, key in enumerate(KEYS):
        await store.put(bucket, key, b"%d" % i * (i + 1))
    await store.put(bucket, KEYS[0], b"again")
    found += [await told(store.get(bucket, key)) for key in (*KEYS, "exp/b1/none")]
    found += [await told(store.get("missing-bucket", "k")), await told(store.list("missing-bucket", ""))]
    found += [
        await store.list(bucket, prefix) for prefix in ("", "exp/", "exp/b1/", "exp/b1", "zz", "exp/b1/g0/s.json")
    ]
    for after in ({}, {"StartAfter": "exp/b1/g0/s.json"}):
        token: dict[str, Any] = dict(after)
        while token is not None:
            page = await store._s3.list_objects_v2(Bucket=bucket, Prefix="exp/", MaxKeys=2, **token)
            found.append(([o["Key"] for o in page["Contents"]], page["IsTruncated"], page["KeyCount"]))
            more = page["IsTruncated"]
            token = {"ContinuationToken": page["NextContinuationToken"]} if more else None  # type: ignore[assignment]
    return found


async def test_it_answers_the_sdk_as_moto_does(s3: Bucket) -> None:
    s3_under_load = LoadS3()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(s3_under_load), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with (
            open_object_store(endpoint_url=s3.endpoint_url, region=s3.region) as moto,
            open_object_store(endpoint_url=url, region=s3.region) as ours,
        ):
            await ours._s3.create_bucket(Bucket=s3.name)
            expected = await script(moto, s3.name)
            assert await script(ours, s3.name) == expected
            assert "NotFound" in expected
