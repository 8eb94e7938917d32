"""``rollway up``: the local stack in the foreground until Ctrl-C, SIGTERM, or the end of one of its services.

Exit status: 0 after Ctrl-C or SIGTERM, 1 when a service failed, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rollway_local.agents_file import AgentsFileMissing, chosen_agents_file, first_arn
from rollway_local.child import ChildFailed
from rollway_local.log_tail import follow
from rollway_local.stack import Stack, StackOptions, claimed

DEFAULT_FOLDER = Path(".work/stack")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("rollway up", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--dir", type=Path, default=DEFAULT_FOLDER, help="stack.json, logs, state (default %(default)s)")
    made.add_argument("--agents", type=Path, help="agents file for the emulator (default: the demo's agent)")
    made.add_argument("--bucket", default="rollway", help="S3 bucket to make (default %(default)s)")
    for name in ("s3", "emulator", "gateway", "dispatcher"):
        made.add_argument(f"--{name}-port", type=_port, default=0, help="default: a free one")
    made.add_argument("--allow-process-runtime", action="store_true", help="let batches start local processes")
    made.add_argument("--start-timeout-s", type=float, default=90.0, help="for each service (default %(default)g)")
    made.add_argument("--tail", action="store_true", help="show every service's log lines as they come")
    return made


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is not a port (0 to 65535)")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    folder: Path = chosen.dir.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        agents = chosen_agents_file(chosen.agents, folder)
        first_arn(agents)
    except (AgentsFileMissing, OSError) as e:
        print(f"rollway up: {e}", file=sys.stderr)
        return 2
    options = StackOptions(
        folder=folder, agents=agents, bucket=chosen.bucket, s3_port=chosen.s3_port,
        emulator_port=chosen.emulator_port, gateway_port=chosen.gateway_port, dispatcher_port=chosen.dispatcher_port,
        allow_process_runtime=chosen.allow_process_runtime, start_timeout_s=chosen.start_timeout_s,
    )  # fmt: skip
    try:
        with claimed(options):
            return asyncio.run(run(options, tail=chosen.tail))
    except BlockingIOError:
        print(f"rollway up: a stack already runs in {folder}; choose another --dir", file=sys.stderr)
        return 2


async def run(options: StackOptions, *, tail: bool = False) -> int:
    """Start the stack, hold it until it is over, end it; the exit status."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    stack = Stack(options)
    async with asyncio.TaskGroup() as tasks:
        tailing = tasks.create_task(follow(options.logs)) if tail else None
        try:
            status = await _hold(stack, asked)
        finally:
            asked.clear()
            await _end(stack, asked)
            if tailing:
                tailing.cancel()
    return status


async def _hold(stack: Stack, asked: asyncio.Event) -> int:
    stop = asyncio.create_task(asked.wait())
    life = asyncio.create_task(_live(stack))
    try:
        await asyncio.wait((stop, life), return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        return 0
    except ChildFailed as e:
        print(f"rollway up: {e}", file=sys.stderr, flush=True)
        return 1
    finally:
        for task in (stop, life):
            task.cancel()
        await asyncio.gather(stop, life, return_exceptions=True)


async def _live(stack: Stack) -> None:
    await stack.start(lambda line: print(line, flush=True))
    print(f"ready       {stack.options.state_file}  (Ctrl-C ends it)", flush=True)
    raise (await stack.until_one_ends()).failure()


async def _end(stack: Stack, again: asyncio.Event) -> None:
    """End the stack in order, or at once when asked a second time."""
    ending = asyncio.create_task(stack.stop())
    hurry = asyncio.create_task(again.wait())
    try:
        await asyncio.wait((ending, hurry), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await stack.kill()
        await ending
    finally:
        hurry.cancel()
        await asyncio.gather(hurry, return_exceptions=True)
