"""``python -m rollway_dispatcher``: serve until SIGINT or SIGTERM. Exit 2: refused to start; 1: crashed."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Sequence

from rollway_dispatcher.app import create
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.state import open_state
from rollway_kit import logs, serve
from rollway_kit.settings import load


def parser() -> argparse.ArgumentParser:
    """One flag per setting, from the settings class itself."""
    made = argparse.ArgumentParser(
        prog="python -m rollway_dispatcher",
        description="Rollway's dispatcher: admits, starts, watches, retries and collects rollouts.",
        epilog="Every flag is also an environment variable: ROLLWAY_DISPATCHER_ and its name in capitals.",
    )
    for name, field in DispatcherSettings.model_fields.items():
        about = " ".join((field.description or "").split()).replace("%", "%%")
        default = "" if field.default is None else f" (default {field.default})"
        made.add_argument(f"--{name.replace('_', '-')}", metavar="…", help=f"{about}{default}")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    settings = load(DispatcherSettings, **vars(parser().parse_args(arguments)))
    try:
        logs.configure("dispatcher", settings.log_level, settings.log_json)
    except ValueError as e:
        sys.stderr.write(f"refusing to start: ROLLWAY_DISPATCHER_LOG_LEVEL: {e}\n")
        raise SystemExit(2) from e
    asyncio.run(_check_state(settings))
    sock = serve.bind_or_refuse(settings.host, settings.port)
    if settings.port == 0:  # agents must be told the port that was taken
        settings = settings.model_copy(update={"port": sock.getsockname()[1]})
    crashed: list[bool] = []

    def on_crash() -> None:
        crashed.append(True)
        signal.raise_signal(signal.SIGTERM)  # uvicorn drains and closes the lifespan

    # A short drain: what is in flight is mostly long-polls, and a client asks again with the same cursor.
    app = create(settings, on_crash, on_open=_spare_what_stays)
    serve.run(app, settings, service="dispatcher", drain_s=2, sock=sock, lifespan="on")
    if crashed:
        raise SystemExit(1)


def _spare_what_stays() -> None:
    """Modules and the SDK's models live as long as the process: the garbage collector need not walk them again and
    again, which held the loop for a tenth of a second each time."""
    gc.collect()
    gc.freeze()


async def _check_state(settings: DispatcherSettings) -> None:
    """Exit with status 2 where the state cannot be used, before an address is taken."""
    try:
        async with open_state(settings):
            return
    except Exception as e:
        where = f"STATE_PATH: {settings.state_path}" if settings.database_url is None else "DATABASE_URL"
        sys.stderr.write(f"refusing to start: ROLLWAY_DISPATCHER_{where}: {e}\n")
        raise SystemExit(2) from e


if __name__ == "__main__":
    main()
