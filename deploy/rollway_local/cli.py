"""The ``rollway`` command: the local stack, the demo, the demo's models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "up": ("rollway_local.up", "S3, AgentCore emulator, gateway and dispatcher on this machine"),
    "demo": ("rollway_local.demo", "GRPO on a real small model through every part"),
    "eval": ("rollway_driver.evaluation.command", "an agent on a data set, n rollouts an input, scored by pass@k"),
    "sessions": ("rollway_driver.evaluation.sessions_command", "list and stop what runs at any runtime in our name"),
    "models": ("rollway_local.models", "make the small models that the demo and the tests use"),
}


def usage() -> str:
    listed = "\n".join(f"  {name:<8} {about}" for name, (_, about) in COMMANDS.items())
    return f"usage: rollway COMMAND [ARGS…]\n\n{listed}\n\nrollway COMMAND --help says what a command takes.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    if not given or given[0] not in COMMANDS:
        sys.stderr.write((f"rollway: no command {given[0]!r}\n" if given else "") + usage())
        return 2
    # Imported when chosen: the demo needs packages that the stack does not.
    status = import_module(COMMANDS[given[0]][0]).main(given[1:])
    return int(status or 0)
