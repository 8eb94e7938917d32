"""One S3 API (moto's server) for the session, a fresh bucket for each test, no AWS setting from outside."""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

with warnings.catch_warnings():  # bedrock-agentcore's own models use a pydantic form that pydantic deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import bedrock_agentcore.runtime  # noqa: F401

from tests.shim.servers import Listener, listening, wait_for


@dataclass
class Bucket:
    name: str
    s3: Any

    def read(self, key: str) -> dict[str, Any] | None:
        try:
            body = self.s3.get_object(Bucket=self.name, Key=key)["Body"]
        except ClientError as e:
            assert e.response["Error"]["Code"] == "NoSuchKey"
            return None
        with body:
            document: dict[str, Any] = json.loads(body.read(), parse_constant=lambda c: pytest.fail(f"{c} in JSON"))
            return document

    def saved(self, receipt: dict[str, Any]) -> dict[str, Any]:
        """The document that ``receipt`` promised, as soon as it is there."""
        assert receipt["s3_bucket"] == self.name
        document = wait_for(f"an object at {receipt['result_key']}", lambda: self.read(receipt["result_key"]))
        assert document is not None
        return document

    def rollout(self, **more: Any) -> dict[str, Any]:
        return {"exp_id": "exp/b1", "input_id": "g1", "s3_bucket": self.name, **more}


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, s3_url: str) -> None:
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("PORT", "HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def _s3(s3_url: str) -> Iterator[Any]:
    s3 = boto3.session.Session().client(
        "s3", endpoint_url=s3_url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    yield s3
    s3.close()


@pytest.fixture
def bucket(_s3: Any) -> Bucket:
    name = f"shim-{uuid.uuid4().hex}"
    _s3.create_bucket(Bucket=name)
    return Bucket(name, _s3)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as it:
        yield it


@pytest.fixture
def session_id() -> str:
    return str(uuid.uuid4())
