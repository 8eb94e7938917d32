"""The shim alone: ``rollway[shim]`` in a clean environment, on the newest bedrock-agentcore, as in an agent's image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.shim.environments import ROOT, bare_python, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

UNWELCOME = (
    "fastapi",
    "torch",
    "aioboto3",
    "aiobotocore",
    "aiohttp",
    "orjson",
    "structlog",
    "pydantic_settings",
    "verl",
)
PROBE = """
import importlib.util, json, sys
from importlib.metadata import requires, version
import rollway_shim
print(json.dumps({
    "installed": [n for n in sys.argv[1:] if importlib.util.find_spec(n)],
    "imported_from": rollway_shim.__file__,
    "needs": sorted(r for r in requires("rollway") if "extra ==" not in r or "'shim'" in r.replace(chr(34), "'")),
    "bedrock": version("bedrock-agentcore"),
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("alone"))


def test_it_brings_nothing_that_an_agents_container_would_quarrel_with(python: Path, tmp_path: Path) -> None:
    """pydantic and bedrock-agentcore are all that rollway[shim] asks for, without upper bounds; none of ours comes."""
    found = json.loads(run(python, "-c", PROBE, *UNWELCOME, cwd=tmp_path).stdout.splitlines()[-1])
    assert found["installed"] == []
    assert not Path(found["imported_from"]).is_relative_to(ROOT / "services")
    names = [need.split(";")[0].strip() for need in found["needs"]]
    assert [n.split(">")[0] for n in names] == ["bedrock-agentcore", "pydantic"]
    assert not any("<" in n or "==" in n or "~" in n for n in names)
    assert int(found["bedrock"].split(".")[1]) > 3, "the newest bedrock-agentcore is meant, not the pinned one"


def test_every_promise_holds_there_too(python: Path) -> None:
    """The shim's own tests, run by that interpreter against that bedrock-agentcore and that boto3."""
    tools = ["pytest", "pytest-asyncio", "pytest-timeout", "moto[s3,server]"]
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *tools)
    ended = run(
        python, "-m", "pytest", "tests/shim", "--confcutdir", "tests/shim", "--ignore", "tests/shim/test_demo_agent.py",
        "-m", "not heavy", "-q", "-p", "no:cacheprovider", cwd=ROOT,
    )  # fmt: skip
    assert " passed" in ended.stdout and "skipped" not in ended.stdout
