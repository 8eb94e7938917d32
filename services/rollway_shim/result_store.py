"""The result store: one S3 put per rollout, tried hard, always on a thread of its own."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import boto3  # type: ignore[import-untyped]
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
)

log = logging.getLogger("bedrock_agentcore.app.rollway_shim")

ATTEMPTS = 5
"""Outer attempts; the SDK makes up to three requests in each."""
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.5, 8.0
_TRANSIENT_CODES = {
    "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout", "RequestTimeTooSkewed",
    "InternalError", "ServiceUnavailable", "ExpiredToken",
}  # fmt: skip


class SaveFailed(Exception):
    """The result could not be written, for good."""


def _s3_client() -> Any:
    # A session of its own: boto3's default one is not safe to create clients from in several threads.
    return boto3.session.Session().client(
        "s3",
        config=Config(
            retries={"max_attempts": 3, "mode": "standard"},
            connect_timeout=5,
            read_timeout=20,
            max_pool_connections=32,
        ),
    )


def is_transient(error: Exception) -> bool:
    """Whether trying again can help: the network, a 5xx, a throttle, credentials in renewal."""
    if isinstance(error, ClientError):
        answer = error.response
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or status == 429 or answer.get("Error", {}).get("Code") in _TRANSIENT_CODES
    return isinstance(error, HTTPClientError | ConnectionError | CredentialRetrievalError)


class ResultStore:
    """Writes documents to S3 by the SDK's own configuration (credentials, region, AWS_ENDPOINT_URL_S3).

    The client is made at the first put: an agent that saves nothing needs no AWS set-up. Safe for concurrent use.
    """

    def __init__(self, make_client: Callable[[], Any] = _s3_client) -> None:
        self._make_client = make_client
        self._client: Any = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def put(self, bucket: str, key: str, document: dict[str, Any]) -> None:
        """Write ``document`` as JSON. Blocks for up to some minutes while S3 cannot be reached.

        Raises:
            SaveFailed: S3 refused it, or could not be reached in any attempt, or `stop` was called meanwhile.
        """
        body = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._s3().put_object(Bucket=bucket, Key=key, Body=body, ContentType="application/json")
                return
            except ValueError as e:
                raise SaveFailed(f"cannot save s3://{bucket}/{key}: S3 is not set up rightly: {e}") from e
            except (ClientError, BotoCoreError) as e:
                where = f"s3://{bucket}/{key} ({len(body)} bytes)"
                if not is_transient(e) or attempt == ATTEMPTS:
                    raise SaveFailed(f"cannot save {where} after attempt {attempt}: {e}") from e
                log.warning("saving %s failed, attempt %d of %d: %s", where, attempt, ATTEMPTS, e)
                longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (attempt - 1))
                if self._stopped.wait(random.uniform(longest / 2, longest)):
                    raise SaveFailed(f"gave up saving {where} at shutdown: {e}") from e

    def stop(self) -> None:
        """End the waits between attempts, at shutdown."""
        self._stopped.set()

    def _s3(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._make_client()
            return self._client
