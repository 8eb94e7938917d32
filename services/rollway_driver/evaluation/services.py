"""The dispatcher and gateway of an evaluation: those named, or a stack of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollway_driver.evaluation.data_set import EvaluationError

START_S = 180.0
STOP_S = 60.0
DISPATCHER_URL, GATEWAY_URL = "ROLLWAY_DISPATCHER_URL", "ROLLWAY_GATEWAY_URL"


@dataclass(frozen=True, slots=True)
class Services:
    dispatcher_url: str
    dispatcher_key: str | None
    """None, as for the gateway's: what the clients find in the environment."""
    gateway_url: str | None
    """Where inference servers are registered; several, comma-separated; None: not known."""
    gateway_key: str | None
    owned: bool
    """Ends with the evaluation, and what runs there with it."""


def named_services(dispatcher_url: str, gateway_url: str | None) -> Services:
    """Services that run elsewhere."""
    return Services(dispatcher_url, None, gateway_url or os.environ.get(GATEWAY_URL), None, owned=False)


def read_stack(path: Path, *, owned: bool) -> Services:
    """Services by the stack.json of a running `rollway up`."""
    said: dict[str, Any] = json.loads(path.read_text())
    dispatcher, gateway = said["dispatcher"], said["gateway"]
    return Services(dispatcher["url"], dispatcher["api_key"], gateway["admin_url"], gateway["admin_key"], owned=owned)


@contextmanager
def own_stack(folder: Path) -> Iterator[Services]:
    """A `rollway up` for as long as the block; nothing of it is left after.

    Raises:
        EvaluationError: it does not start; the message has the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    leash = importlib.util.find_spec("rollway_local.leash")
    if leash is None or leash.origin is None:
        raise EvaluationError("without --dispatcher it needs the local stack: pip install 'rollway[local]'")
    # No agent is started through the emulator here, but the stack wants to know one.
    agents = folder / "no-agents.json"
    arn = "arn:aws:bedrock-agentcore:us-west-2:000000000000:runtime/none"
    agents.write_text(json.dumps({"agents": [{"arn": arn, "command": ["{python}", "-c", "raise SystemExit(1)"]}]}))
    log, state = folder / "up.log", folder / "stack.json"
    state.unlink(missing_ok=True)
    up = [sys.executable, "-m", "rollway_local", "up", "--dir", str(folder), "--agents", str(agents)]
    # On the stack's own leash, so that it ends even when this process is killed.
    held = [sys.executable, "-I", "-S", leash.origin, str(os.getpid()), str(folder / "up.pid")]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*held, *up, "--allow-process-runtime"], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            start_new_session=True,  # Ctrl-C is the evaluation's to take
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while not state.is_file():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise EvaluationError(f"the local stack did not start; its log ends:\n{tail}")
            time.sleep(0.05)
        yield read_stack(state, owned=True)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
