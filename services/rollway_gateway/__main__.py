"""``python -m rollway_gateway``: the gateway as a process. Exit status: 0 after a clean stop (SIGTERM, SIGINT), 1 when
start-up fails, 2 for a wrong setting or an address that cannot be bound.

``python -m rollway_gateway certify MODEL_FOLDER``: what a chat template promises. Exit status: 0 exact, 1 mirror, 2 no
such folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType
from typing import Any

from rollway_gateway import garbage
from rollway_gateway.app import GatewayApp
from rollway_gateway.processes.folder import claim
from rollway_gateway.processes.supervisor import Supervisor, inherited
from rollway_gateway.render.certify import main as certify
from rollway_gateway.settings import GatewaySettings
from rollway_kit import logs, serve, settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollway-gateway",
        description="OpenAI-compatible gateway that records the tokens inference servers sample, per session. "
        "`certify MODEL_FOLDER` says what a chat template promises instead.",
        epilog="Every setting is also an environment variable: "
        + ", ".join(f"ROLLWAY_GATEWAY_{name.upper()}" for name in GatewaySettings.model_fields),
    )
    parser.add_argument("--host", help="interface to bind (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to bind (8700); 0 takes a free one and logs it")
    parser.add_argument("--admin-port", type=int, help="port of the admin routes' own listener; 0 takes a free one")
    parser.add_argument("--admin-host", help="interface of that listener (as --host)")
    parser.add_argument(
        "--processes", "--workers", type=_processes, metavar="N",
        help="gateway processes, on --port and the ports after it (1); --workers as servers commonly call it",
    )  # fmt: skip
    parser.add_argument("--public-url", help="base URL put into session tickets")
    parser.add_argument(
        "--worker", action="append", dest="workers", metavar="URL", help="an inference server of the pool 'default'"
    )
    parser.add_argument("--durability", help="memory, journal or fsync")
    parser.add_argument("--journal-dir", help="folder of the journal (rollway-journal/PORT)")
    parser.add_argument("--mode", help="auto, exact or mirror")
    parser.add_argument("--tokenizer", help="folder of tokenizer and chat template, where workers do not name it")
    parser.add_argument("--log-level", help="debug, info, warning or error")
    return parser


def _processes(said: str) -> int:
    try:
        return int(said)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{said!r} is no number of processes; --worker names an inference server"
        ) from None


def _stopped(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


SWITCH_S = 0.001
"""So long the event loop waits for the interpreter's lock while a thread renders; Python's own 5 ms are half of what
it may be late."""


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["certify"]:
        sys.exit(certify(arguments[1:]))
    given = vars(_parser().parse_args(arguments))
    chosen = settings.load(GatewaySettings, **given)
    logs.configure("gateway", chosen.log_level, chosen.log_json)
    # The server raises the signal that stopped it once more when it is done; a clean stop is not a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    if chosen.processes > 1 and chosen.process is None:
        Supervisor(chosen, given).run()
        return
    admin, told = None, list[dict[str, Any]]()
    if chosen.process is not None:
        sock, admin, told = inherited(chosen)
    else:
        claim(chosen.journal_folder, 1)
        sock = serve.bind_or_refuse(chosen.host, chosen.port)
    if admin is None and chosen.admin_port is not None:
        admin = serve.bind_or_refuse(chosen.admin_interface, chosen.admin_port), chosen.admin_interface
        ports = {"port": sock.getsockname()[1], "admin_port": admin[0].getsockname()[1]}
        chosen = chosen.model_copy(update=ports)
    app = GatewayApp(chosen, told, collects=True)
    garbage.collect_by_hand()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time: a pool of threads costs a hop each
    sys.setswitchinterval(SWITCH_S)
    serve.run(app, chosen, service="gateway", drain_s=chosen.drain_s, sock=sock, admin=admin)


if __name__ == "__main__":
    main()
