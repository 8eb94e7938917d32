"""The object store against a real S3 API: bytes come back, lists are whole, failures are ours and say what failed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from rollway_kit.object_store import ListedObject, ObjectStore, open_object_store
from rollway_wire.problems import NotFound, Unavailable
from tests.kit.object_storage import Bucket


@pytest.fixture
async def store(s3: Bucket) -> AsyncIterator[ObjectStore]:
    async with open_object_store(endpoint_url=s3.endpoint_url, region=s3.region) as opened:
        yield opened


async def test_what_is_put_is_got_and_listed_with_its_size(store: ObjectStore, s3: Bucket) -> None:
    await store.put(s3.name, "exp/b1/g1/s.json", b'{"rewards": 1}')
    assert await store.get(s3.name, "exp/b1/g1/s.json") == b'{"rewards": 1}'
    assert await store.list(s3.name, "exp/b1/") == [ListedObject("exp/b1/g1/s.json", 14)]
    head = s3.client.head_object(Bucket=s3.name, Key="exp/b1/g1/s.json")
    assert head["ContentType"] == "application/json"


async def test_a_second_put_replaces_the_first(store: ObjectStore, s3: Bucket) -> None:
    await store.put(s3.name, "k", b"1")
    await store.put(s3.name, "k", b"")
    assert await store.get(s3.name, "k") == b""


async def test_a_prefix_without_objects_lists_nothing(store: ObjectStore, s3: Bucket) -> None:
    assert await store.list(s3.name, "none/") == []


async def test_more_than_a_page_of_keys_is_listed_whole(store: ObjectStore, s3: Bucket) -> None:
    keys = [f"exp/b1/g/{n:04}.json" for n in range(1001)]
    async with asyncio.TaskGroup() as tasks:
        for part in range(16):
            tasks.create_task(put_all(store, s3, keys[part::16]))
    assert [o.key for o in await store.list(s3.name, "exp/b1/")] == keys


async def put_all(store: ObjectStore, s3: Bucket, keys: list[str]) -> None:
    for key in keys:
        await store.put(s3.name, key, b"{}")


async def test_a_missing_key_is_not_found_and_named(store: ObjectStore, s3: Bucket) -> None:
    with pytest.raises(NotFound, match=f"get s3://{s3.name}/absent: NoSuchKey"):
        await store.get(s3.name, "absent")


async def test_a_missing_bucket_is_not_found_in_every_operation(store: ObjectStore) -> None:
    for operation in (
        store.get("no-such-bucket-x", "k"), store.put("no-such-bucket-x", "k", b""),
        store.list("no-such-bucket-x", "p"), store.check_bucket("no-such-bucket-x"),
    ):  # fmt: skip
        with pytest.raises(NotFound, match="no-such-bucket-x"):
            await operation


async def test_a_usable_bucket_passes_the_check(store: ObjectStore, s3: Bucket) -> None:
    await store.check_bucket(s3.name)


async def test_a_store_that_cannot_be_reached_is_unavailable_in_every_operation() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses connections
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with open_object_store(endpoint_url=url, region="us-west-2") as store, asyncio.TaskGroup() as tasks:
            for operation in (
                store.get("b", "k"),
                store.put("b", "k", b""),
                store.list("b", "p"),
                store.check_bucket("b"),
            ):
                tasks.create_task(expect_unavailable(operation))


async def expect_unavailable(operation: object) -> None:
    with pytest.raises(Unavailable, match="S3 cannot be reached"):
        await operation  # type: ignore[misc]


async def test_an_answer_cut_short_is_unavailable_not_data() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\netag: "x"\r\n\r\n{')
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as scripted_s3:
        url = f"http://127.0.0.1:{scripted_s3.sockets[0].getsockname()[1]}"
        async with open_object_store(endpoint_url=url, region="us-west-2") as store:
            with pytest.raises(Unavailable, match="get s3://b/k"):
                await store.get("b", "k")


async def test_an_answer_of_its_own_error_is_unavailable_with_its_code() -> None:
    async def deny(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        writer.write(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(deny, "127.0.0.1", 0) as scripted_s3:
        url = f"http://127.0.0.1:{scripted_s3.sockets[0].getsockname()[1]}"
        async with open_object_store(endpoint_url=url, region="us-west-2") as store:
            with pytest.raises(Unavailable, match="S3 answered AccessDenied: no"):
                await store.get("b", "k")
