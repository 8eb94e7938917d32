"""The messages that tell of objects made in S3, as S3 sends them to a queue or EventBridge does. Pure.

Forms: docs.aws.amazon.com/AmazonS3/latest/userguide, "Event message structure" (``Records``, keys encoded as in a
query), "EventBridge event message structure" (``detail``, keys as they are), and the test event of a new configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import orjson


@dataclass(frozen=True, slots=True)
class Made:
    """An object that was made, or made again."""

    bucket: str
    key: str


class Unreadable(Exception):
    """Not one of the forms above."""


def objects_made(body: str) -> list[Made]:
    """What a message says was made; nothing for a test event and for events of other kinds.

    Raises:
        Unreadable: it is no event of S3's.
    """
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise Unreadable(f"not JSON: {e}") from e
    if not isinstance(event, dict):
        raise Unreadable("not a JSON object")
    try:
        return _of(event)
    except (KeyError, TypeError, AttributeError) as e:
        raise Unreadable(f"an event without what it should have: {type(e).__name__}: {e}") from e


def _of(event: dict[str, Any]) -> list[Made]:
    if "Records" in event:
        return [
            _made(r["s3"], unquote_plus)
            for r in event["Records"]
            if r["eventName"].removeprefix("s3:").startswith("ObjectCreated:")
        ]
    if event.get("source") == "aws.s3":
        return [_made(event["detail"], str)] if event["detail-type"] == "Object Created" else []
    if event.get("Event") == "s3:TestEvent":
        return []
    raise Unreadable("neither S3's form of an event nor EventBridge's")


def _made(where: dict[str, Any], decoded: Any) -> Made:
    bucket, key = where["bucket"]["name"], where["object"]["key"]
    if not (isinstance(bucket, str) and isinstance(key, str)):
        raise TypeError("bucket and key must be strings")
    return Made(bucket, decoded(key))
