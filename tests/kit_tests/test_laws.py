"""The laws of tests/conftest.py bite: each of these little modules breaks one and must fail, or keeps it and passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import *\n"

BROKEN = {
    "a task left running": (
        "import asyncio\nasync def test_x():\n    global t\n    t = asyncio.create_task(asyncio.sleep(60))\n",
        "tasks left running after the test",
    ),
    "a socket left open": (
        "import socket\ndef test_x():\n    socket.socket()\n",
        "ResourceWarning",
    ),
    "our code blocking the loop": (
        "from rollway_kit import serve\n"
        "import rollway_kit.serve as s, time\n"
        "exec(compile('def nap(): time.sleep(0.01)', s.__file__, 'exec'), vars(s) | {'time': time}, globals())\n"
        "async def test_x():\n    nap()\n",
        "Blocking call to time.sleep",
    ),
    "a warning": ("import warnings\ndef test_x():\n    warnings.warn('old')\n", "UserWarning: old"),
    "an unknown marker": ("import pytest\n@pytest.mark.hevy\ndef test_x(): pass\n", "hevy"),
}
KEPT = (
    "import asyncio, os, socket\n"
    "async def test_x(s3):\n"
    "    async with asyncio.TaskGroup() as tasks:\n"
    "        tasks.create_task(asyncio.sleep(0))\n"
    "    assert 'ROLLWAY_STRAY' not in os.environ and 'AWS_PROFILE' not in os.environ\n"
    "    assert os.environ['AWS_EC2_METADATA_DISABLED'] == 'true'\n"
    "    s3.put('k', {'x': 1})\n"
    "    assert s3.get_json('k') == {'x': 1} and s3.keys() == ['k']\n"
)
FAILS_WITH_LOG = (
    "def test_x(services):\n    services.spawn('talker', ['-c', 'print(\"last words\")']).wait()\n    assert False\n"
)


pytestmark = pytest.mark.timeout(300)
MODULES = {"kept": KEPT, "fails with a log": FAILS_WITH_LOG} | {what: text for what, (text, _) in BROKEN.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Outcome and report of each little module, all run by one pytest of its own."""
    folder = tmp_path_factory.mktemp("laws")
    (folder / "conftest.py").write_text(CONFTEST)
    files = {}
    for number, (what, text) in enumerate(MODULES.items()):
        files[what] = folder / f"test_{number}.py"
        files[what].write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p",
         "no:cacheprovider", "--continue-on-collection-errors", str(folder)],
        capture_output=True, text=True, timeout=280, cwd=ROOT, check=False,
        env={**os.environ, "ROLLWAY_STRAY": "1", "AWS_PROFILE": "someone", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    outcomes = {}
    for what, path in files.items():
        broken = re.findall(rf"^(?:FAILED|ERROR) \S*/{path.name}", ended.stdout, re.MULTILINE)
        outcomes[what] = ("failed" if broken else "passed", ended.stdout)
    return outcomes


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_test_that_breaks_a_law_fails_and_says_which(what: str, results: dict[str, tuple[str, str]]) -> None:
    outcome, said = results[what]
    assert outcome == "failed", said
    assert BROKEN[what][1] in said


def test_a_test_that_keeps_them_passes(results: dict[str, tuple[str, str]]) -> None:
    outcome, said = results["kept"]
    assert outcome == "passed", said


def test_a_services_log_is_shown_when_its_test_fails(results: dict[str, tuple[str, str]]) -> None:
    outcome, said = results["fails with a log"]
    assert outcome == "failed"
    assert "log of talker" in said
    assert "last words" in said
