"""`python -m rollway_shim run`: the result on standard output, everything else on standard error, an honest status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.ports import HeldPort
from tests.shim.conftest import Bucket
from tests.shim.servers import DEADLINE_S

AGENTS = Path(__file__).parent / "agents"
ADDING = str(AGENTS / "adding_agent.py")
TWO = str(AGENTS / "two_apps.py")


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollway_shim", *args], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S
    )


def test_it_prints_the_result_and_nothing_else(tmp_path: Path) -> None:
    """Payload as an argument, from standard input or a file; --session-id and --model-id reach the agent."""
    file = tmp_path / "payload.json"
    file.write_text('{"a": 1, "b": 2}')
    for args, stdin in ((['{"a": 1, "b": 2}'], ""), (["-"], '{"a": 1, "b": 2}'), ([f"@{file}"], "")):
        ended = run("run", ADDING, *args, "--session-id", "s1", "--model-id", "m1", stdin=stdin)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == {
            "rewards": 3, "session": "s1", "model": "m1", "status_code": 200, "stop_reason": "end_turn",
        }  # fmt: skip
        assert "imported" in ended.stderr and "chatter" in ended.stderr


def test_it_saves_when_the_payload_says_where(bucket: Bucket) -> None:
    ended = run("run", ADDING, json.dumps({"a": 1, "b": 2, "_rollout": bucket.rollout()}), "--session-id", "s1")
    assert ended.returncode == 0, ended.stderr
    assert bucket.read("exp/b1/g1/s1.json") == json.loads(ended.stdout)


def test_an_agents_error_is_printed_and_is_status_1() -> None:
    ended = run("run", ADDING, '{"a": 1}')
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["status_code"], document["stop_reason"]) == (1, 500, "'b'")
    assert "KeyError" in document["traceback"]


def test_a_result_that_s3_refuses_is_status_1(bucket: Bucket) -> None:
    config = bucket.rollout() | {"s3_bucket": "no-such-" + bucket.name}
    ended = run("run", ADDING, json.dumps({"a": 1, "b": 2, "_rollout": config}))
    assert ended.returncode == 1 and json.loads(ended.stdout)["rewards"] == 3
    assert "NoSuchBucket" in ended.stderr


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([ADDING, "{a: 1}"], "the payload is not JSON"),
        ([ADDING, "[1]"], "must be a JSON object, got list"),
        ([ADDING, "@/nowhere/p.json"], "cannot read the payload"),
        ([ADDING, '{"_rollout": {"exp_id": "e"}}'], "_rollout.input_id and _rollout.s3_bucket missing"),
        (["nowhere.py", "{}"], "no such file: nowhere.py"),
        ([str(AGENTS / "__init__.py"), "{}"], "makes no RolloutApp"),
        ([TWO, "{}"], "several RolloutApps; choose one with --app: bare, other"),
        ([TWO, "{}", "--app", "third"], "no RolloutApp named 'third' (it has: bare, other)"),
        ([TWO, "{}", "--app", "bare"], "no function decorated"),
    ],
)
def test_wrong_usage_is_status_2_and_says_the_fix(args: list[str], named: str) -> None:
    ended = run("run", *args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert named in ended.stderr and "Traceback" not in ended.stderr


def test_help_and_the_choice_of_app() -> None:
    assert run("run", TWO, "{}", "--app", "other").returncode == 0
    ended = run("run", "--help")
    assert ended.returncode == 0 and "Exit status" in ended.stdout
    assert run().returncode == 2


def interrupted(payload: str, **env: str) -> tuple[int, str, str]:
    """Status, output and errors of a run of the waiting agent that is sent SIGINT while it waits."""
    agent = subprocess.Popen(
        [sys.executable, "-m", "rollway_shim", "run", str(AGENTS / "waiting_agent.py"), payload],
        env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert agent.stderr
    try:
        while "waiting" not in agent.stderr.readline():
            assert agent.poll() is None
        agent.send_signal(signal.SIGINT)
        out, err = agent.communicate(timeout=DEADLINE_S)
    finally:
        agent.kill()
        agent.wait()
    return agent.returncode, out, err


def test_ctrl_c_prints_the_cancelled_result() -> None:
    """SIGINT cancels the agent, prints what would have been saved, and exits with 130."""
    status, out, err = interrupted("{}")
    assert (status, json.loads(out)["stop_reason"]) == (130, "cancelled"), err


def test_ctrl_c_while_s3_is_away_says_so() -> None:
    """Past the grace time nothing is printed as the result, and nobody sees a traceback."""
    config = {"exp_id": "e", "input_id": "i", "s3_bucket": "b"}
    with HeldPort() as away:
        payload = json.dumps({"_rollout": config})
        status, out, err = interrupted(payload, GRACE_S="1", AWS_ENDPOINT_URL_S3=away.url)
    assert (status, out) == (130, ""), err
    assert "1 rollouts unsaved" in err and "\ninterrupted\n" in err and "TimeoutError" not in err


def test_ctrl_c_before_anybody_waits_prints_the_cancelled_result(tmp_path: Path) -> None:
    """The agent runs on a thread of its own, so SIGINT can come when `begin` has started it and not yet returned."""
    agent = tmp_path / "agent.py"
    agent.write_text(
        f"import os, runpy, signal\n"
        f"app = runpy.run_path({str(AGENTS / 'waiting_agent.py')!r})['app']\n"
        f"begin = app.rollouts.begin\n"
        f"def interrupted(*args):\n"
        f"    rollout = begin(*args)\n"
        f"    os.kill(os.getpid(), signal.SIGINT)\n"
        f"    return rollout\n"
        f"app.rollouts.begin = interrupted\n"
    )
    ended = run("run", str(agent), "{}")
    assert (ended.returncode, json.loads(ended.stdout)["stop_reason"]) == (130, "cancelled"), ended.stderr
