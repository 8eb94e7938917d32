"""A stand-in agent for the emulator: keeps the AgentCore contract, sleeps, saves a result. Started a few hundred times,
so it imports as little as it can and serves one connection at a time.

Payload: ``sleep_s``. The result's ``done_at`` is when it began to save it (Unix seconds). It pushes where asked to.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable


def call(method: str, url: str, body: object, key: str = "") -> None:
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    raw = json.dumps(body).encode()
    head = f"{method} /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sleepers\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    head += f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((name, int(port)), timeout=60) as s:
        s.sendall(head.encode() + raw)
        answer = b""
        while data := s.recv(65536):
            answer += data
    if answer[9:10] != b"2":
        raise RuntimeError(answer[:300])


def rollout(payload: dict, session: str, key: str) -> None:
    config = payload["_rollout"]
    report = config.get("report")
    until, event = time.monotonic() + payload["sleep_s"], "started"
    while (left := until - time.monotonic()) > 0:
        if report:
            call("POST", report["url"], {"session_id": session, "event": event}, report["key"])
            event = "heartbeat"
        time.sleep(min(left, report["interval_s"] if report else left))
    result = {
        "status_code": 200, "stop_reason": "end_turn", "input_id": config["input_id"],
        "s3_bucket": config["s3_bucket"], "result_key": key, "payload": {}, "rewards": 1.0, "done_at": time.time(),
    }  # fmt: skip
    call("PUT", f"{os.environ['AWS_ENDPOINT_URL_S3']}/{config['s3_bucket']}/{key}", result)
    if report:
        done = {"session_id": session, "event": "done", "status_code": 200, "result_key": key}
        call("POST", report["url"], done, report["key"])


def answer(connection: socket.socket, busy: list[threading.Thread], work: Callable[[dict, str, str], None]) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        if not (more := connection.recv(65536)):
            return
        body += more
    if first.startswith("GET"):
        said: dict = {"status": "HealthyBusy" if busy and busy[0].is_alive() else "Healthy"}
    else:
        payload = json.loads(body)
        session = headers["x-amzn-bedrock-agentcore-runtime-session-id"]
        config = payload["_rollout"]
        key = f"{config['exp_id']}/{config['input_id']}/{session}.json"
        if not busy:
            busy.append(threading.Thread(target=work, args=(payload, session, key), daemon=True))
            busy[0].start()
        said = {"status": "processing", "s3_bucket": config["s3_bucket"], "result_key": key}
    raw = json.dumps(said).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
    )
    connection.sendall(head.encode() + raw)


def serve(work: Callable[[dict, str, str], None]) -> None:
    """Take invocations for ever; ``work`` gets the first one's payload, session id and result key, in a thread."""
    busy: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64) as server:
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionError):  # a caller may be killed while it waits
                answer(connection, busy, work)


if __name__ == "__main__":
    serve(rollout)
