"""A stand-in agent of the standard library alone, scripted by its payload, that keeps a diary. Started thousands of
times, so it imports little.

Payload: ``diary`` (a folder: a line per event in <session id>), ``kind`` (ok, raise, hang, poison), ``sleep_s``,
``dies`` (probability, drawn by session), ``pushes``, ``reward``. Its pushes may be lost; its result is saved however
often it takes.
"""

import contextlib
import json
import os
import random
import threading
import time

from benchmarks.dispatcher.sleeping_agent import call, serve

SAVING_PATIENCE_S = 60.0


def note(payload: dict, session: str, what: str) -> None:
    line = json.dumps({"what": what, "at": time.time(), "pushes": payload["pushes"]}) + "\n"
    with open(f"{payload['diary']}/{session}", "a") as f:  # noqa: PTH123 - pathlib takes as long to import as all the rest
        f.write(line)


def push(config: dict, session: str, event: str, **more: object) -> None:
    target = config["report"]
    with contextlib.suppress(OSError, RuntimeError):
        call("POST", target["url"], {"session_id": session, "event": event, **more}, target["key"])


def beat(config: dict, session: str, over: threading.Event) -> None:
    event = "started"
    while not over.is_set():
        push(config, session, event)
        event = "heartbeat"
        over.wait(config["report"]["interval_s"])


def end_by_itself(payload: dict, session: str) -> None:
    note(payload, session, "died")
    os._exit(17)


def persist(work: object, *args: object) -> None:
    """Until it is done: S3 or the gateway may be in trouble for a while."""
    until = time.monotonic() + SAVING_PATIENCE_S
    while True:
        try:
            work(*args)  # type: ignore[operator]
        except (OSError, RuntimeError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return


def do(payload: dict, session: str) -> dict:
    config = payload["_rollout"]
    dice = random.Random(f"{payload['seed']} {session}")
    dies = payload["kind"] == "poison" or dice.random() < payload["dies"]
    time.sleep(payload["sleep_s"] * (dice.random() if dies else 1.0))
    if dies:
        end_by_itself(payload, session)
    if payload["kind"] == "hang":
        time.sleep(3600)
    if payload["kind"] == "raise":
        return {"status_code": 500, "stop_reason": "told to raise", "traceback": "RuntimeError: told to raise"}
    message = {"messages": [{"role": "user", "content": "hi"}]}
    persist(call, "POST", f"{config['base_url']}/chat/completions", message, config["api_key"])
    return {"status_code": 200, "stop_reason": "end_turn", "rewards": payload["reward"]}


def rollout(payload: dict, session: str, key: str) -> None:
    note(payload, session, "began")
    config = payload["_rollout"]
    over = threading.Event()
    if payload["pushes"]:
        threading.Thread(target=beat, args=(config, session, over), daemon=True).start()
    result = do(payload, session)
    result |= {"input_id": config["input_id"], "s3_bucket": config["s3_bucket"], "result_key": key}
    persist(call, "PUT", f"{os.environ['AWS_ENDPOINT_URL_S3']}/{config['s3_bucket']}/{key}", result)
    note(payload, session, "saved")
    over.set()
    if payload["pushes"]:
        push(config, session, "done", status_code=result["status_code"], result_key=key)


if __name__ == "__main__":
    serve(rollout)
