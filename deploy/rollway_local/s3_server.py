"""The stack's S3: moto's server with one bucket, objects in memory. ``python -m rollway_local.s3_server``.

Settings: ROLLWAY_S3_PORT (0: a free one), ROLLWAY_S3_BUCKET.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import boto3  # type: ignore[import-untyped]
import structlog
from botocore.config import Config
from moto.server import ThreadedMotoServer

from rollway_kit import logs
from rollway_kit.serve import bind

HEALTH = "/moto-api/"


def make_bucket(endpoint_url: str, bucket: str) -> None:
    config = Config(s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=endpoint_url, region_name="us-east-1", config=config)
    client.create_bucket(Bucket=bucket)
    client.close()


def main() -> None:
    logs.configure("s3", as_json=True)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    port = int(os.environ.get("ROLLWAY_S3_PORT", "0"))
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=_checked(port), verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    make_bucket(url, os.environ["ROLLWAY_S3_BUCKET"])
    structlog.get_logger().info("listening", url=url)
    over.wait()
    server.stop()


def _checked(port: int) -> int:
    """``port``, if it can be bound: the server binds in a thread of its own, whose failure no one would see."""
    try:
        bind("127.0.0.1", port).close()
    except OSError as e:
        sys.stderr.write(f"refusing to start: cannot bind 127.0.0.1:{port}: {e.strerror}\n")
        raise SystemExit(2) from e
    return port


if __name__ == "__main__":
    main()
