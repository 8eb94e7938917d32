"""The gateways that are measured: how each is started, and how a session is opened and called.

A new way of ours (another mode, a durable journal) is one more entry in `SUBJECTS`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from benchmarks.gateway.environments import ROOT, Unavailable, interpreter, tokenizer
from benchmarks.load_client import Call

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Launch:
    """What a subject needs to know to start."""

    port: int
    engine: str
    """URL of the engine."""
    folder: Path
    """Its own, for what it writes."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    name: str
    label: str
    command: Callable[[Launch], list[str]]
    """Raises Unavailable."""
    environment: dict[str, str] = field(default_factory=dict)
    health: str = "/health"
    ready: tuple[str, bytes] | None = None
    """A path, and what its answer holds once calls are served; None: healthy is ready."""
    opens: Callable[[str], Call] | None = None
    """The request that opens a session; None: a call does."""
    path: Callable[[str], str] = lambda session: f"/sessions/{session}{CHAT}"
    headers: Callable[[str], tuple[tuple[str, str], ...]] = lambda session: ()
    captures: bool = True
    """Keeps tokens; the floors do not."""
    python: bool = True
    """Can be told to collect its garbage."""
    renders: bool = False
    """The engine must tell where its tokenizer lies."""
    ours: bool = False
    processes: int = 1
    streams: bool = True
    """Passes events on as they come; otherwise a streamed call is one answer in the stream's clothes."""


def _relay(at: Launch) -> list[str]:
    to = urlsplit(at.engine).netloc
    return [sys.executable, "-m", "benchmarks.gateway.relay", "--port", str(at.port), "--to", to]


def _nginx(at: Launch) -> list[str]:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Unavailable("nginx is not installed")
    config = at.folder / "nginx.conf"
    config.write_text(NGINX % {"folder": at.folder, "port": at.port, "engine": urlsplit(at.engine).netloc})
    return [found, "-p", str(at.folder), "-c", str(config), "-e", str(at.folder / "error.log")]


NGINX = """\
daemon off; master_process off; pid %(folder)s/nginx.pid;
events { worker_connections 8192; }
http {
  access_log off; client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy;
  fastcgi_temp_path %(folder)s/f; uwsgi_temp_path %(folder)s/u; scgi_temp_path %(folder)s/s;
  client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  upstream engine { server %(engine)s; keepalive 2048; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:%(port)s backlog=4096;
    location ~ ^/sessions/[^/]+(/v1/.*)$ {
      proxy_pass http://engine$1; proxy_http_version 1.1; proxy_set_header connection ""; proxy_buffering off;
      proxy_read_timeout 900s;
    }
    location = /health { return 200 "{}"; }
  }
}
"""


def _rollway(at: Launch) -> list[str]:
    return [sys.executable, "-m", "rollway_gateway", "--port", str(at.port), "--worker", at.engine]


def _ours(durability: str, mode: str = "mirror") -> dict[str, str]:
    said = {"log_level": "warning", "mode": mode, "durability": durability}
    return {f"ROLLWAY_GATEWAY_{name.upper()}": value for name, value in said.items()}


def _journaled(at: Launch) -> list[str]:
    return [*_rollway(at), "--journal-dir", str(at.folder / "journal")]


def _two(at: Launch) -> list[str]:
    """The known port is that of the admin routes, which answer for both; tickets name the agents' ports."""
    command = [*_rollway(at), "--processes", "2", "--admin-port", str(at.port)]
    command[command.index("--port") + 1] = "0"
    return command


READY = ("/v1/pools/default", b'"healthy":true')


def _rllm(store: str) -> Callable[[Launch], list[str]]:
    def command(at: Launch) -> list[str]:
        python = interpreter("rllm")
        return [
            str(python), "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(at.port), "--store", store,
            "--worker", at.engine + "/v1", "--log-level", "WARNING", "--db-path", str(at.folder / "traces.db"),
        ]  # fmt: skip

    return command


def _agentcore(at: Launch) -> list[str]:
    python, folder = interpreter("agentcore"), tokenizer()
    script = Path(__file__).with_name("agentcore_server.py")
    return [str(python), str(script), "--port", str(at.port), "--engine", at.engine, "--tokenizer", str(folder)]


def _posts(path: str, key: str) -> Callable[[str], Call]:
    return lambda session: Call(path, orjson.dumps({key: session}))


SUBJECTS = (
    Subject(
        name="relay", label="bytes passed on (Python, uvloop): the floor", command=_relay, health="/health",
        captures=False,
    ),
    Subject(name="nginx", label="bytes passed on (nginx)", command=_nginx, captures=False, python=False),
    Subject(
        name="rollway", label="Rollway, mirror mode", command=_rollway, opens=_posts("/v1/sessions", "session_id"),
        environment=_ours("memory"), ours=True, ready=READY,
    ),
    Subject(
        name="rollway-journal", label="Rollway, mirror mode, journal", command=_journaled,
        opens=_posts("/v1/sessions", "session_id"), environment=_ours("journal"), ours=True, ready=READY,
    ),
    Subject(
        name="rollway-fsync", label="Rollway, mirror mode, journal with fsync", command=_journaled,
        opens=_posts("/v1/sessions", "session_id"), environment=_ours("fsync"), ours=True, ready=READY,
    ),
    Subject(
        name="rollway-exact", label="Rollway, exact mode", command=_rollway, opens=_posts("/v1/sessions", "session_id"),
        environment=_ours("memory", "exact"), ours=True, ready=READY, renders=True,
    ),
    Subject(
        name="rollway-exact-journal", label="Rollway, exact mode, journal", command=_journaled,
        opens=_posts("/v1/sessions", "session_id"), environment=_ours("journal", "exact"), ours=True, ready=READY,
        renders=True,
    ),
    Subject(
        name="rollway-two", label="Rollway, mirror mode, two processes", command=_two,
        opens=_posts("/v1/sessions", "session_id"), environment=_ours("memory"), ours=True, ready=READY, processes=2,
    ),
    Subject(
        name="rllm-memory", label="rllm-model-gateway 0.1.0, in memory", command=_rllm("memory"),
        opens=_posts("/sessions", "session_id"),
    ),
    Subject(
        name="rllm-sqlite", label="rllm-model-gateway 0.1.0, SQLite", command=_rllm("sqlite"),
        opens=_posts("/sessions", "session_id"),
    ),
    Subject(
        name="agentcore-linear", label="agentcore-rl-toolkit 0.2.0, linear", command=_agentcore, health="/healthz",
        opens=_posts("/bench/open", "sid"), path=lambda session: CHAT,
        headers=lambda session: (("authorization", f"Bearer {session}"),), environment={"HF_HUB_OFFLINE": "1"},
        streams=False,
    ),
)  # fmt: skip
FLOOR = "relay"


def named(names: str | None) -> list[Subject]:
    """Subjects of a comma-separated list; None: all.

    Raises:
        ValueError: an unknown name.
    """
    if names is None:
        return list(SUBJECTS)
    known = {s.name: s for s in SUBJECTS}
    wanted = [n.strip() for n in names.split(",")]
    if unknown := [n for n in wanted if n not in known]:
        raise ValueError(f"unknown subject {unknown[0]!r}: choose from {', '.join(known)}")
    return [known[n] for n in wanted]


__all__ = ["CHAT", "FLOOR", "ROOT", "SUBJECTS", "Launch", "Subject", "named"]
