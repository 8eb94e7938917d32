"""rollway sessions: what may still run at any runtime in a dispatcher's name, and ending it.

A session is listed until its runtime has confirmed its end, over crashes of the dispatcher. `stop` cancels the rollouts
of the sessions named, or with --all every batch, and waits until the runtimes have confirmed each.

Exit status: 0 when it was done, 1 when some sessions were still there at the end of --wait-s, 2 when the dispatcher
could not be asked. A dispatcher that asks for a key is given ROLLWAY_DISPATCHER_API_KEY.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from rollway_driver.client import DispatcherClient, RetryPolicy
from rollway_driver.evaluation.services import DISPATCHER_URL, Services, named_services, read_stack
from rollway_wire.batch import SessionView
from rollway_wire.problems import RollwayError

STACK = Path(".work/stack/stack.json")
LOOK_AGAIN_S = 0.5


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "rollway sessions", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("action", nargs="?", choices=("list", "stop"), default="list", help="(default: list)")
    made.add_argument("session_ids", nargs="*", metavar="SESSION", help="ids to stop")
    made.add_argument("--all", action="store_true", help="stop every session and cancel every batch")
    made.add_argument("--wait-s", type=float, default=120.0, help="for the runtimes to confirm (%(default)g)")
    made.add_argument(
        "--dispatcher", default=os.environ.get(DISPATCHER_URL), help=f"its URL (default: {DISPATCHER_URL}, or {STACK})"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    chosen = made.parse_args(arguments)
    if (chosen.action == "stop") != bool(chosen.session_ids or chosen.all) or (chosen.session_ids and chosen.all):
        made.error("stop takes sessions or --all; list takes neither")
    try:
        services = _services(chosen.dispatcher)
        with DispatcherClient(
            services.dispatcher_url, api_key=services.dispatcher_key, retry=RetryPolicy(deadline_s=10.0)
        ) as client:
            if chosen.action == "stop":
                return stop(client, None if chosen.all else chosen.session_ids, chosen.wait_s)
            show(client.sessions())
            return 0
    except (RollwayError, OSError, ValueError, KeyError) as e:
        sys.stderr.write(f"rollway sessions: {e}\n")
        return 2


def _services(url: str | None) -> Services:
    if url is None and not STACK.is_file():
        raise ValueError(f"no dispatcher: give --dispatcher URL or set {DISPATCHER_URL}")
    return read_stack(STACK, owned=False) if url is None else named_services(url, None)


def stop(client: DispatcherClient, session_ids: list[str] | None, wait_s: float) -> int:
    """Stop them and wait; the exit status."""
    asked = None if session_ids is None else frozenset(session_ids)
    before = {s.session_id for s in client.sessions() if asked is None or s.session_id in asked}
    left = client.stop_sessions(session_ids)
    deadline = time.monotonic() + wait_s
    while left and time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN_S)
        left = [s for s in client.sessions() if asked is None or s.session_id in asked]
    gone = before - {s.session_id for s in left}
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(gone)} stopped, {len(left)} not confirmed")
    for session_id in sorted((asked or frozenset()) - before):
        console.print(f"{session_id} is not listed: it never was, or its runtime has confirmed its end")
    if left:
        show(left)
    return 1 if left else 0


def show(sessions: Sequence[SessionView]) -> None:
    """One line each, the oldest first."""
    table = Table(Column("session", no_wrap=True), "state", "age", "runtime", "rollout")  # ids are for copying
    now = time.time()
    for s in sessions:
        rollout = s.batch_id if s.group_id is None else f"{s.batch_id}/{s.group_id}/{s.index}"
        table.add_row(s.session_id, s.state, f"{now - s.since:.0f} s", s.runtime, rollout)
    console = Console()
    console.print(table if sessions else "no sessions")


if __name__ == "__main__":
    raise SystemExit(main())
