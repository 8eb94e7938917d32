"""A stand-in for S3 under load: the five operations of a batch at some microseconds each: ``python -m … PORT``.

PutObject, GetObject, ListObjectsV2, HeadBucket, CreateBucket, path style, everything in memory, no signature checked.
moto, which takes milliseconds a request, would be what is measured at thousands of results a minute; a test holds this
one to moto's answers through the AWS SDK. GET /_counts answers ``{"<method> <agent|dispatcher>": n}``; whoever calls
itself ``sleepers`` is an agent.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import sys
import time
from collections import Counter
from email.utils import formatdate
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import httptools
import orjson
import uvloop

PAGE = 1000
_REASONS = {200: b"OK", 404: b"Not Found", 405: b"Method Not Allowed"}


class Bucket:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._keys: list[str] = []

    def put(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            bisect.insort(self._keys, key)
        self.objects[key] = data

    def page(self, prefix: str, after: str, most: int) -> tuple[list[str], bool]:
        """The first keys with ``prefix`` that come after ``after``, and whether there are more."""
        at = bisect.bisect_right(self._keys, after) if after > prefix else bisect.bisect_left(self._keys, prefix)
        found = self._keys[at : at + most + 1]
        found = found[: next((i for i, key in enumerate(found) if not key.startswith(prefix)), len(found))]
        return found[:most], len(found) > most


class LoadS3:
    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._counts: Counter[str] = Counter()

    def answer(self, method: str, url: str, agent: bool, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(url)
        if parts.path == "/_counts":
            return 200, {"content-type": "application/json"}, orjson.dumps(self._counts)
        name, _, key = unquote(parts.path)[1:].partition("/")
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        kind = "LIST" if method == "GET" and not key else method
        self._counts[f"{kind} {'agent' if agent else 'dispatcher'}"] += 1
        if method == "PUT" and not key:
            self._buckets.setdefault(name, Bucket())
            return 200, {"location": f"/{name}"}, b""
        bucket = self._buckets.get(name)
        if bucket is None:
            return _missing("NoSuchBucket", method)
        if method == "HEAD" and not key:
            return 200, {}, b""
        if method == "PUT":
            bucket.put(key, body)
            return 200, {"etag": _etag(body)}, b""
        if kind == "LIST":
            return 200, {"content-type": "application/xml"}, _listing(name, bucket, query)
        if method != "GET":
            return 405, {}, b""
        if key not in bucket.objects:
            return _missing("NoSuchKey", method)
        found = bucket.objects[key]
        headers = {"etag": _etag(found), "last-modified": formatdate(usegmt=True), "content-type": "application/json"}
        return 200, headers, found


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _missing(code: str, method: str) -> tuple[int, dict[str, str], bytes]:
    text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>there is none</Message></Error>"
    return 404, {"content-type": "application/xml"}, b"" if method == "HEAD" else text.encode()


def _listing(name: str, bucket: Bucket, query: dict[str, str]) -> bytes:
    most = min(PAGE, int(query.get("max-keys", PAGE)))
    after = query.get("continuation-token") or query.get("start-after", "")
    keys, more = bucket.page(query.get("prefix", ""), after, most)
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{now}</LastModified><ETag>&quot;0&quot;</ETag>"
        f"<Size>{len(bucket.objects[key])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key in keys
    )
    following = f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if more else ""
    return (
        "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
        f"<Name>{name}</Name><Prefix>{escape(query.get('prefix', ''))}</Prefix><KeyCount>{len(keys)}</KeyCount>"
        f"<MaxKeys>{most}</MaxKeys><IsTruncated>{'true' if more else 'false'}</IsTruncated>{following}{entries}"
        "</ListBucketResult>"
    ).encode()


class Connection(asyncio.Protocol):
    def __init__(self, s3: LoadS3) -> None:
        self._s3 = s3
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        self._url, self._body, self._agent = b"", bytearray(), False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"user-agent":
            self._agent = b"sleepers" in value
        elif name.lower() == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        status, headers, body = self._s3.answer(method, self._url.decode(), self._agent, bytes(self._body))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        end = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        self._transport.write(b"HTTP/1.1 %d %b\r\n%b%b" % (status, _REASONS[status], head.encode(), end))
        if not self._parser.should_keep_alive():
            self._transport.close()


async def main(port: int) -> None:
    s3 = LoadS3()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(s3), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
