"""An agent of the standard library alone that keeps the AgentCore contract, as a toolkit-built image does.

What it does is scripted by its payload: ``reward``, ``act`` (ok, raise, die, die_once, hang, no_turn, spawn, burn,
hoard), ``wait_for`` / ``linger_for`` (a file, before / after the model call), ``obeys`` (a folder: wait for a file
named as the session, which says what to ``act``), ``reports`` (push, as the shim does; default no). Each run adds a
line to ``runs``/<session id>, and ``spawn`` writes the child's pid to ``runs``/.child-<session id>, both before its
receipt is given; each push that was taken adds to ``runs``/.reported-<session id>. An
agent that dies by itself does so once the receipt is out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SEEN: set[str] = set()
SEEING = threading.Lock()
ANSWERED = threading.Event()
"""A receipt is out."""


def send(method: str, url: str, body: object, key: str = "") -> bytes:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def report(config: dict, session: str, event: str, **more: object) -> None:
    target = config["report"]
    send("POST", target["url"], {"session_id": session, "event": event, **more}, target["key"])


def beat(config: dict, session: str, folder: Path, over: threading.Event) -> None:
    event = "started"
    while not over.is_set():
        with contextlib.suppress(OSError):  # the dispatcher may be away for a while
            report(config, session, event)
            event = "heartbeat"
            with (folder / f".reported-{session}").open("a") as f:
                f.write("x")
        over.wait(config["report"]["interval_s"])


def agent(payload: dict, config: dict) -> dict:
    act = payload.get("act", "ok")
    if wait_for := payload.get("wait_for"):
        while not Path(wait_for).exists():
            time.sleep(0.02)
    marker = Path(payload["runs"]) / f"died-{config['input_id']}"
    if act == "die" or (act == "die_once" and not marker.exists()):
        marker.touch()
        ANSWERED.wait()
        print("dying as told", flush=True)
        os._exit(17)
    if act in ("hang", "spawn"):
        time.sleep(600)
    if act == "burn":
        while True:
            pass
    if act == "hoard":
        hoard = bytearray(1 << 32)
        return {"rewards": len(hoard)}
    if act == "raise":
        raise ZeroDivisionError("told to raise")
    if act != "no_turn" and config.get("base_url"):
        message = {"messages": [{"role": "user", "content": payload.get("prompt", "hi")}]}
        send("POST", f"{config['base_url']}/chat/completions", message, config.get("api_key", ""))
    if linger_for := payload.get("linger_for"):
        while not Path(linger_for).exists():
            time.sleep(0.02)
    return {"rewards": payload["reward"]} if "reward" in payload else {"answer": 42}


def told(order: Path) -> str:
    while not order.exists():
        time.sleep(0.02)
    return order.read_text()


def run(payload: dict, session: str) -> None:
    config = payload["_rollout"]
    over = threading.Event()
    pushes = payload.get("reports") and config.get("report")
    if pushes:
        threading.Thread(target=beat, args=(config, session, Path(payload["runs"]), over), daemon=True).start()
    try:
        if obeys := payload.get("obeys"):
            payload = payload | {"act": told(Path(obeys) / session)}
        result = {"status_code": 200, "stop_reason": "end_turn", **agent(payload, config)}
    except Exception as e:  # noqa: BLE001 - whatever the agent raises is saved
        result = {"status_code": 500, "stop_reason": str(e), "traceback": f"ZeroDivisionError: {e}"}
    key = f"{config['exp_id']}/{config['input_id']}/{session}.json"
    result |= {"input_id": config["input_id"], "s3_bucket": config["s3_bucket"], "result_key": key, "payload": payload}
    send("PUT", f"{os.environ['AWS_ENDPOINT_URL_S3']}/{config['s3_bucket']}/{key}", result)
    over.set()
    if pushes:
        report(config, session, "done", status_code=result["status_code"], result_key=key)


def begin(payload: dict, session: str) -> None:
    folder = Path(payload["runs"])
    with (folder / session).open("a") as f:
        f.write("run\n")
    if payload.get("act") == "spawn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / f".child-{session}").write_text(str(child.pid))
    threading.Thread(target=run, args=(payload, session), daemon=True).start()


class Contract(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        said = Path(os.environ.get("PING_SAYS", "/nothing"))
        self.answer({"status": said.read_text() if said.exists() else "Healthy", "time_of_last_update": 0})

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session = self.headers["X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"]
        config = payload["_rollout"]
        if payload.get("act") == "no_receipt":
            self.answer({"hello": "world"})
            return
        with SEEING:
            if session not in SEEN:
                SEEN.add(session)
                begin(payload, session)
        key = f"{config['exp_id']}/{config['input_id']}/{session}.json"
        self.answer({"status": "processing", "s3_bucket": config["s3_bucket"], "result_key": key})
        ANSWERED.set()

    def answer(self, value: object) -> None:
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    address = (os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8080")))
    ThreadingHTTPServer(address, Contract).serve_forever()
