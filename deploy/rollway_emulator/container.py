"""Runs an agent written for port 8080 on the port its session was given.

    python -m rollway_emulator.container SCRIPT [ARGS…]
    python -m rollway_emulator.container -m MODULE [ARGS…]

In an image the app owns port 8080 (``app.run()``); here many containers share one machine. A uvicorn server that
asks for 8080 listens on $PORT instead; everything else is as ``python SCRIPT`` would have it. Standard library
only, so it also runs by path (``{launcher}`` in an agent's command) under an interpreter without Rollway.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path
from typing import Any

CONTAINER_PORT = 8080


def move_port(port: int) -> bool:
    """Make uvicorn servers asked for 8080 listen on ``port``. False where uvicorn is not installed."""
    try:
        import uvicorn
    except ImportError:
        return False
    original = uvicorn.Config.__init__

    @functools.wraps(original)
    def moved(self: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.port == CONTAINER_PORT:
            self.port = port

    uvicorn.Config.__init__ = moved  # type: ignore[method-assign]
    return True


def main(arguments: list[str]) -> None:
    if not arguments or arguments == ["-m"] or not os.environ.get("PORT", "").isdigit():
        sys.exit("usage: PORT=<port> python -m rollway_emulator.container [-m MODULE | SCRIPT] [ARGS...]")
    as_module = arguments[0] == "-m"
    script = Path(arguments[0]).resolve()
    if not as_module and not script.is_file():
        sys.exit(f"no such script: {script}; name it by its full path or as {{cwd}}/{arguments[0]}")
    # Before any import: run by path, sys.path begins with this file's folder, whose names must shadow nothing.
    sys.path[0] = str(Path.cwd() if as_module else script.parent)
    sys.argv = arguments[1:] if as_module else [str(script), *arguments[1:]]
    if not move_port(int(os.environ["PORT"])):
        sys.stderr.write("uvicorn is not installed here: no port is moved, the agent must read $PORT itself\n")
    if as_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
