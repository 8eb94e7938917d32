"""Saving: S3 away for a moment, away for good, refusing; never on an event loop."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest
from botocore.config import Config

from rollway_shim import RolloutApp, result_store
from rollway_shim.result_store import ResultStore, SaveFailed
from tests.kit.ports import HeldPort
from tests.shim.conftest import Bucket
from tests.shim.servers import DEADLINE_S, Listener, serving, wait_for


def _client(endpoint: str) -> Any:
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=DEADLINE_S, read_timeout=DEADLINE_S)
    return boto3.session.Session().client("s3", endpoint_url=endpoint, config=config)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_store, "_FIRST_BACKOFF_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_a_put_survives_an_s3_that_fails_for_a_while() -> None:
    """Three 503 SlowDown, then 200: written, once more than it failed."""
    seen: list[bytes] = []

    class ScriptedS3(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            ok = len(seen) > 3
            body = b"" if ok else b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"
            self.send_response(200 if ok else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedS3)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        client = _client(f"http://127.0.0.1:{server.server_port}")
        ResultStore(lambda: client).put("bucket", "a/b.json", {"rewards": 1})
        client.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen == [b'{"rewards":1}'] * 4


@pytest.mark.usefixtures("quick")
def test_an_s3_that_never_answers_is_given_up_after_every_attempt() -> None:
    with HeldPort() as nobody:
        client = _client(nobody.url)
        with pytest.raises(SaveFailed, match=rf"a/b\.json.*after attempt {result_store.ATTEMPTS}"):
            ResultStore(lambda: client).put("bucket", "a/b.json", {})
        client.close()


def test_a_refusal_is_not_tried_again(bucket: Bucket) -> None:
    """No such bucket will still be no such bucket."""
    with pytest.raises(SaveFailed, match=r"after attempt 1.*NoSuchBucket"):
        ResultStore(lambda: bucket.s3).put("no-such-" + bucket.name, "k", {})


def test_an_s3_endpoint_that_is_no_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(SaveFailed, match=r"not set up rightly.*not a url"):
        ResultStore().put("bucket", "k", {})


def test_stop_ends_the_waiting() -> None:
    with HeldPort() as nobody:
        client = _client(nobody.url)
        store = ResultStore(lambda: client)
        store.stop()
        with pytest.raises(SaveFailed, match="gave up"):
            store.put("bucket", "k", {})
        client.close()


def test_a_result_that_cannot_be_saved_is_loud_and_pushed_as_500(
    bucket: Bucket, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the log that says where, done with status_code 500 and no key, and the container idle again."""
    app = RolloutApp()
    app.rollout_entrypoint(lambda payload: {"rewards": 1})
    config = bucket.rollout(report=listener.target()) | {"s3_bucket": "no-such-" + bucket.name}
    with caplog.at_level(logging.INFO), serving(app) as client:
        status, receipt = client.invoke({"_rollout": config})
        assert status == 200
        done = wait_for("done", lambda: [p for p in listener.pushes if p.report["event"] == "done"])[0]
        wait_for("Healthy again", lambda: client.ping() == "Healthy")
    assert done.report["status_code"] == 500 and "result_key" not in done.report
    [lost] = [r for r in caplog.records if "THE RESULT IS LOST" in r.getMessage()]
    assert lost.levelno == logging.ERROR
    assert receipt["result_key"] in lost.getMessage() and "NoSuchBucket" in lost.getMessage()


def test_s3_is_never_called_from_an_event_loop(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every put, for sync and async agents, is made on a saver's thread."""
    threads: list[str] = []
    put = ResultStore.put

    def noted(self: ResultStore, *args: Any) -> None:
        threads.append(threading.current_thread().name)
        put(self, *args)

    monkeypatch.setattr(ResultStore, "put", noted)

    async def agent(payload: dict[str, Any]) -> dict[str, Any]:
        return {"rewards": 1}

    for function in (agent, lambda payload: {"rewards": 1}):
        app = RolloutApp()
        app.rollout_entrypoint(function)
        with serving(app) as client:
            bucket.saved(client.invoke({"_rollout": bucket.rollout()})[1])
    assert len(threads) == 2 and all(name.startswith("rollout-save") for name in threads)


def test_an_app_that_saves_nothing_makes_no_aws_client() -> None:
    """Neither the constructor nor a rollout without S3 fields touches the SDK."""

    def refuse() -> Any:
        raise AssertionError("a client was made")

    app = RolloutApp()
    app.rollouts._store._make_client = refuse
    app.rollout_entrypoint(lambda payload: {"rewards": 1})
    with serving(app) as client:
        assert client.invoke({})[0] == 200
        wait_for("Healthy again", lambda: client.ping() == "Healthy")
