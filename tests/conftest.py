"""Laws every test keeps: no setting of the machine leaks in, nothing blocks the loop, nothing is left running or open.

The environment is cleaned when this file is imported, before any SDK can read it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from blockbuster import BlockBuster

from tests.kit.object_storage import Bucket, new_bucket, s3_client, s3_server
from tests.kit.services import Services
from tests.kit.vllm_server import VllmServer, running_vllm

# How long an example takes says something of the machine, and nothing of the code.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

REGION = "us-west-2"
CLEAN_PREFIXES = ("AWS_", "ROLLWAY_", "OPENAI_", "ANTHROPIC_", "VLLM_", "VERL_")
KEPT = frozenset({"ROLLWAY_AGENT_PYTHON", "ROLLWAY_TRAINER_PYTHON", "ROLLWAY_TEST_MODEL", "ROLLWAY_TEST_SMOLLM2"})
"""Where the heavy tests find the trainer's environment and the models."""
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}

for _name in [n for n in os.environ if n.startswith(CLEAN_PREFIXES) and n not in KEPT]:
    del os.environ[_name]
os.environ.update(ENVIRONMENT)

ROOT = Path(__file__).parents[1]
WATCHED = [f for source in ("shared", "services") for f in (ROOT / source).iterdir()] + [
    ROOT / "deploy/rollway_emulator"
]
_SERVICES = pytest.StashKey[Services]()


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM (a time limit, a cancelled job) ends the run as Ctrl-C does: fixtures end the processes they started."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As a shell's background jobs have it; processes of tests would inherit it, and those are to see Ctrl-C.
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _folder(path: Path) -> ModuleType:
    """What BlockBuster takes for a package at ``path``, without importing it."""
    package = ModuleType(path.name)
    package.__path__ = [str(path)]
    return package


@pytest.fixture(scope="session", autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """A blocking call made on an event loop by our own code raises BlockingError."""
    guard = BlockBuster([_folder(path) for path in WATCHED])
    # The SDK reads its service models from disk when a client is made, once, at a service's start.
    for function in guard.functions.values():
        function.can_block_in("botocore/session.py", {"get_component", "get_service_model", "create_client"})
        function.can_block_in("botocore/loaders.py", {"load_file", "exists", "list_available_services"})
        function.can_block_in("aiobotocore/session.py", {"_create_client"})
        function.can_block_in("asyncpg/connect_utils.py", {"_parse_connect_arguments"})  # .pgpass, certificates
        function.can_block_in("structlog/_output.py", {"msg"})
        function.can_block_in("logging/__init__.py", {"emit"})
        function.can_block_in("tests/shim/servers.py", {"block_the_loop"})  # as agents do, on a loop of their own
    guard.activate()
    yield
    guard.deactivate()


@pytest.fixture(autouse=True)
def tasks_are_owned(request: pytest.FixtureRequest) -> None:
    """Set up before a test's other fixtures, so torn down after them: by then every task must have ended."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("task_census")


@pytest.fixture
async def task_census() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(1000):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail("tasks left running after the test: " + ", ".join(sorted(repr(t.get_coro()) for t in left)))


@pytest.fixture(scope="module", autouse=True)
def sockets_are_closed() -> Iterator[None]:
    """Collect garbage at the end of each module, so that a leaked socket or file fails there as a ResourceWarning."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The test session's S3 server."""
    with s3_server() as url:
        yield url


@pytest.fixture(scope="session")
def s3_session_client(s3_endpoint: str) -> Iterator[Any]:
    with s3_client(s3_endpoint, REGION) as client:
        yield client


@pytest.fixture
def s3(s3_endpoint: str, s3_session_client: Any) -> Bucket:
    """A fresh bucket of its own for this test."""
    return new_bucket(s3_session_client, s3_endpoint, REGION)


@pytest.fixture
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    """Starts real service processes; their logs are shown when the test fails."""
    log_dir = tmp_path / "service-logs"
    log_dir.mkdir()
    made = Services(log_dir)
    request.node.stash[_SERVICES] = made
    yield made
    made.close()


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """The test session's vLLM server, for heavy tests; give them a time limit that covers its start (420 s)."""
    with running_vllm(tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """The same with a real model, which takes ten times the time a token: where the tiny one's noise proves less."""
    with running_vllm(tmp_path_factory.mktemp("smollm2"), model="smollm2") as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    made = item.stash.get(_SERVICES, None)
    if report.failed and made is not None:
        report.sections += [(f"log of {s.name} (pid {s.pid})", s.logs()[-16_000:]) for s in made.started]
    return report
