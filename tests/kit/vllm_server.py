"""Real vLLM servers (its CPU build) for the heavy tests: per test session one with the tiny model and one with a real.

Use the fixtures ``vllm_server`` and ``smollm2_server``. The trainer's environment is named by ROLLWAY_TRAINER_PYTHON
(default ``.venv-trainer/bin/python`` of this checkout); the models by ROLLWAY_TEST_MODEL and ROLLWAY_TEST_SMOLLM2
(default: made once per test session by ``python -m rollway_local.models``). A server runs in a process group of its
own, which is killed whole.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from rollway_local.stack import free_port
from tests.kit.engine_brake import ARGUMENTS as BRAKED
from tests.kit.engine_brake import EngineBrake

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 420.0
_NAMED_BY = {"tiny": "ROLLWAY_TEST_MODEL", "smollm2": "ROLLWAY_TEST_SMOLLM2"}
_CONTEXT = {"tiny": 2048, "smollm2": 4096}
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a bound engine core starves what shares its core for seconds
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /pause, /reset_prefix_cache and their kind
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
_ARGUMENTS = [
    "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--generation-config", "vllm",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *BRAKED,
]  # fmt: skip


@dataclass(frozen=True)
class VllmServer:
    url: str
    model: str
    """As served."""
    model_path: Path
    log: Path
    pid: int
    """Of the API process, which leads the server's process group."""
    brake: EngineBrake

    def kill(self) -> None:
        """SIGKILL every process of the server at once, as a machine that goes away does."""
        os.killpg(self.pid, signal.SIGKILL)


def trainer_python() -> Path:
    """The trainer environment's interpreter.

    Raises:
        FileNotFoundError: saying how to make it.
    """
    found = Path(os.environ.get("ROLLWAY_TRAINER_PYTHON", ROOT / ".venv-trainer" / "bin" / "python"))
    if not found.exists():
        raise FileNotFoundError(f"{found}: run `make setup-trainer`, or name another with ROLLWAY_TRAINER_PYTHON")
    return found


def made_model(name: str, folder: Path) -> Path:
    """The folder of the model ``tiny`` or ``smollm2``: the one its variable names, else made under ``folder``."""
    if named := os.environ.get(_NAMED_BY[name]):
        return Path(named)
    out = folder / name
    subprocess.run(
        [trainer_python(), "-m", "rollway_local.models", name, "--out", out],
        check=True, timeout=START_DEADLINE_S, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / d) for d in ("deploy", "shared", "services"))},
    )  # fmt: skip
    return out


def tiny_model(folder: Path) -> Path:
    return made_model("tiny", folder)


@contextmanager
def running_vllm(folder: Path, *extra: str, model: str = "tiny", path: Path | None = None) -> Iterator[VllmServer]:
    """A healthy server; ``extra`` arguments go to vLLM. Logs and the model lie in ``folder``.

    Args:
        model: ``tiny`` or ``smollm2``, and its name as served.
        path: another model's folder to serve under that name.

    Raises:
        RuntimeError: it ended or was not healthy in time; the message ends with its log.
    """
    path = path or made_model(model, folder)
    port = free_port()
    log, brake = folder / "vllm.log", EngineBrake(folder)
    command = [
        str(trainer_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), "--port", str(port),
        "--served-model-name", model, "--max-model-len", str(_CONTEXT[model]), *_ARGUMENTS, *extra,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **_ENVIRONMENT, **brake.environment},
        )  # fmt: skip
    try:
        _wait_healthy(process, port, log)
        yield VllmServer(f"http://127.0.0.1:{port}", model, path, log, process.pid, brake)
    finally:
        _end(process)


def _wait_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while not _healthy(port):
        if process.poll() is not None or time.monotonic() > deadline:
            why = f"ended with status {process.returncode}" if process.returncode is not None else "is not healthy"
            raise RuntimeError(f"vLLM {why}\n{log.read_text(errors='replace')[-8000:]}")
        time.sleep(0.5)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, then SIGKILL to what is left of it (the engine's processes outlive a killed server)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def engine_client(timeout_s: float = 600) -> httpx.AsyncClient:
    """A client for an engine under test, a connection per request: vLLM closes idle ones after 5 s without a word."""
    return httpx.AsyncClient(timeout=timeout_s, limits=httpx.Limits(max_keepalive_connections=0))
