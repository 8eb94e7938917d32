"""A real S3 API on a free port: moto's server, one per test session, with a fresh bucket for each test."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class Bucket:
    """One bucket of the test session's S3 server."""

    endpoint_url: str
    name: str
    region: str
    client: Any
    """A boto3 client on it."""

    def put(self, key: str, body: bytes | dict[str, Any]) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.client.put_object(Bucket=self.name, Key=key, Body=raw)

    def get(self, key: str) -> bytes:
        with self.client.get_object(Bucket=self.name, Key=key)["Body"] as body:
            raw: bytes = body.read()
        return raw

    def get_json(self, key: str) -> Any:
        return json.loads(self.get(key))

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [o["Key"] for page in pages for o in page.get("Contents", [])]


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint URL of an S3 server in a thread of this process."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        assert server._server is not None
        server._server.server_close()


@contextmanager
def s3_client(endpoint_url: str, region: str) -> Iterator[Any]:
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2})
    client = boto3.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    try:
        yield client
    finally:
        client.close()


def new_bucket(client: Any, endpoint_url: str, region: str) -> Bucket:
    """A bucket with a random name."""
    name = f"test-{uuid.uuid4().hex[:16]}"
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
    return Bucket(endpoint_url, name, region, client)
