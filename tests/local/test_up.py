"""`rollway up`: all four services healthy or a clear refusal; however it ends, nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import boto3
import pytest

from rollway_local.listening import answers
from rollway_local.stack import free_port
from tests.kit.deadlines import until
from tests.local.running_stack import ARN, END_S, START_S, RunningStack, invoke, parent_of

pytestmark = pytest.mark.timeout(900)

NAMES = ("s3", "emulator", "gateway", "dispatcher")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RunningStack]:
    made = RunningStack(tmp_path / "stack")
    yield made
    made.end()


def nothing_left(stack: RunningStack) -> None:
    until(lambda: not stack.alive(), f"no process of the stack alive: {stack.alive()}", END_S)


def test_ctrl_c_after_real_work_ends_everything_in_reverse_order(stack: RunningStack) -> None:
    told = stack.start()
    assert set(told["pids"]) == {"up", *NAMES}
    assert told["emulator"]["agent_runtime_arn"] == ARN
    for url, path in ((told["gateway"]["url"], "/health"), (told["dispatcher"]["url"], "/health"),
                      (told["emulator"]["endpoint_url"], "/health")):  # fmt: skip
        assert answers(url, path)
    with closing(boto3.client("s3", endpoint_url=told["s3"]["endpoint_url"], region_name=told["s3"]["region"])) as s3:
        s3.head_bucket(Bucket=told["s3"]["bucket"])
    agent = invoke(told)
    assert agent["s3"] == told["s3"]["endpoint_url"]
    assert {os.getpgid(told["pids"][name]) for name in NAMES} == {told["pids"][name] for name in NAMES}

    stack.signal(signal.SIGINT)

    assert stack.status() == 0
    assert not stack.state_file.exists()
    nothing_left(stack)
    ends = [last_timestamp(stack, name) for name in ("dispatcher", "gateway", "emulator")]
    assert ends == sorted(ends)


def last_timestamp(stack: RunningStack, name: str) -> str:
    lines = (stack.folder / "logs" / f"{name}.log").read_text().splitlines()
    return str(json.loads(lines[-1])["timestamp"])


def test_sigterm_ends_it_too_and_fixed_ports_and_the_log_tail_are_as_asked(stack: RunningStack) -> None:
    ports = {name: free_port() for name in NAMES}
    told = stack.start("--tail", *(part for name, port in ports.items() for part in (f"--{name}-port", str(port))))
    assert told["gateway"]["url"] == f"http://127.0.0.1:{ports['gateway']}"
    assert told["dispatcher"]["url"] == f"http://127.0.0.1:{ports['dispatcher']}"
    assert told["s3"]["endpoint_url"] == f"http://127.0.0.1:{ports['s3']}"
    assert told["emulator"]["endpoint_url"] == f"http://127.0.0.1:{ports['emulator']}"
    stack.signal(signal.SIGTERM)
    assert stack.status() == 0
    nothing_left(stack)
    for name in NAMES:
        assert re.search(rf"^{name} +\| {{.*listening", stack.said, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["emulator", *(pytest.param(n, marks=pytest.mark.heavy) for n in NAMES if n != "emulator")]
)
def test_a_killed_service_takes_the_rest_down_and_is_named(stack: RunningStack, name: str) -> None:
    told = stack.start()
    invoke(told)
    os.kill(told["pids"][name], signal.SIGKILL)
    assert stack.status() == 1
    assert f"rollway up: {name} was killed by SIGKILL; its log ends:" in stack.said
    assert "listening" in stack.said
    assert not stack.state_file.exists()
    nothing_left(stack)


def test_sigkill_of_rollway_up_leaves_no_orphan_not_even_an_agents(stack: RunningStack) -> None:
    agent = invoke(stack.start())
    assert Path(f"/proc/{agent['escaped']}").exists()
    stack.signal(signal.SIGKILL)
    assert stack.status() == -signal.SIGKILL
    nothing_left(stack)
    assert stack.state_file.exists()


def test_sigkill_of_a_leash_takes_its_service_and_then_the_rest(stack: RunningStack) -> None:
    told = stack.start()
    os.kill(parent_of(told["pids"]["gateway"]), signal.SIGKILL)
    assert stack.status() == 1
    assert "rollway up: gateway" in stack.said
    nothing_left(stack)


def test_one_folder_holds_one_stack_and_after_a_kill_a_fresh_one(stack: RunningStack) -> None:
    first = stack.start()
    second = RunningStack(stack.folder, output_name="second.txt")
    second.spawn()
    assert second.status() == 2
    assert "a stack already runs in" in second.said
    assert json.loads(stack.state_file.read_text()) == first

    stack.signal(signal.SIGKILL)
    stack.status()
    nothing_left(stack)
    (stack.folder / "dispatcher.sqlite3").write_text("what an earlier run left")
    (stack.folder / "dispatcher.sqlite3.agents").mkdir()
    (stack.folder / "dispatcher.sqlite3.agents" / "session.log").touch()
    stack.state_file.unlink()
    told = stack.start()
    assert told["pids"]["up"] != first["pids"]["up"]
    assert answers(told["dispatcher"]["url"], "/health")


def test_ctrl_c_while_it_starts_leaves_nothing(stack: RunningStack) -> None:
    stack.spawn()
    until(lambda: (stack.folder / "logs" / "emulator.pid").exists(), "the second service to be on its way", START_S)
    stack.signal(signal.SIGINT)
    assert stack.status() == 0
    assert not stack.state_file.exists()
    nothing_left(stack)


def test_a_service_that_cannot_start_is_named_with_its_reason(stack: RunningStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack.spawn("--gateway-port", str(port))
        assert stack.status() == 1
    assert "rollway up: gateway did not start: it exited with status 2; its log ends:" in stack.said
    assert f"cannot bind 127.0.0.1:{port}: Address already in use" in stack.said
    assert not stack.state_file.exists()
    nothing_left(stack)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--agents", "nowhere.json"], "--agents nowhere.json: no such file"),
        (["--agents", os.devnull], "--agents /dev/null: no such file"),
        (["--gateway-port", "70000"], "70000 is not a port"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_a_wrong_command_line_is_refused_at_once(stack: RunningStack, arguments: list[str], reason: str) -> None:
    stack.spawn(*arguments, agents=False)
    assert stack.status() == 2
    assert reason in stack.said


def test_without_an_agent_to_run_it_says_what_to_give(stack: RunningStack) -> None:
    stack.spawn(agents=False, env={"ROLLWAY_AGENT_PYTHON": "/no/such/python"})
    assert stack.status() == 2
    assert "--agents FILE" in stack.said


def test_a_port_that_is_bound_later_is_none_that_the_kernel_gives_away_meanwhile() -> None:
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert first > 1024
    assert all(1024 <= free_port() < first for _ in range(20))
