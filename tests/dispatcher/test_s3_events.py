"""What a message of S3's or EventBridge's says was made, and which messages say nothing that can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_dispatcher.event_queue import place_of
from rollway_dispatcher.s3_events import Made, Unreadable, objects_made


def record(key: str = "e/b/g/s.json", event: str = "ObjectCreated:Put", **more: Any) -> dict[str, Any]:
    return {"eventName": event, "s3": {"bucket": {"name": "bucket"}, "object": {"key": key, "size": 3}}} | more


def bridge(kind: str = "Object Created", **detail: Any) -> dict[str, Any]:
    found = {"bucket": {"name": "bucket"}, "object": {"key": "e/b/g+1/s.json", "size": 3}, **detail}
    return {"version": "0", "source": "aws.s3", "detail-type": kind, "detail": found}


@pytest.mark.parametrize(
    ("event", "keys"),
    [
        ({"Records": [record()]}, ["e/b/g/s.json"]),
        ({"Records": [record("e/b/a%2Bb%3D%27%28%21%29+c/s.json")]}, ["e/b/a+b='(!) c/s.json"]),
        ({"Records": [record("1"), record("2")]}, ["1", "2"]),
        ({"Records": [record(event="ObjectCreated:CompleteMultipartUpload")]}, ["e/b/g/s.json"]),
        ({"Records": [record(event="s3:ObjectCreated:Put")]}, ["e/b/g/s.json"]),
        ({"Records": [record(event="ObjectRemoved:Delete"), record("2")]}, ["2"]),
        ({"Records": []}, []),
        ({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "bucket"}, []),
        (bridge(), ["e/b/g+1/s.json"]),
        (bridge("Object Deleted"), []),
    ],
)
def test_what_was_made(event: dict[str, Any], keys: list[str]) -> None:
    assert objects_made(json.dumps(event)) == [Made("bucket", key) for key in keys]


@pytest.mark.parametrize(
    "body",
    ["", "hello", "[]", "{}", "null", '"x"', "1", *map(json.dumps, [
        {"Records": {}, "x": 1} | {"Records": 3},
        {"Records": [{}]},
        {"Records": ["x"]},
        {"Records": [record(event=None)]},  # type: ignore[arg-type]
        {"Records": [record(s3={"bucket": {"name": "b"}})]},
        {"Records": [record(s3={"bucket": {"name": "b"}, "object": {"key": 3}})]},
        bridge(object={}),
        bridge(bucket="b"),
        {"source": "aws.s3"},
        {"source": "aws.ec2", "detail-type": "Object Created"},
        {"Type": "Notification", "Message": json.dumps({"Records": [record()]})},
    ])],
)  # fmt: skip
def test_anything_else_is_unreadable(body: str) -> None:
    with pytest.raises(Unreadable):
        objects_made(body)


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
names = st.sampled_from(["Records", "s3", "bucket", "name", "object", "key", "eventName", "source", "detail"])


@given(st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)))
def test_whatever_comes_is_read_or_refused(event: Any) -> None:
    try:
        made = objects_made(json.dumps(event))
    except Unreadable:
        return
    assert all(isinstance(m.bucket, str) and isinstance(m.key, str) for m in made)


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/1/q", "eu-central-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1"),
        ("https://vpce-1.sqs.us-east-1.vpce.amazonaws.com/1/q", "us-east-1"),
        ("https://sqs-fips.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1"),
        ("http://127.0.0.1:5000/1/q", "here"),
        ("http://sqs.local.example:9324/1/q", "here"),
    ],
)
def test_where_a_queue_is(url: str, region: str) -> None:
    assert place_of(url, "here") == (url.removesuffix("/1/q"), region)
