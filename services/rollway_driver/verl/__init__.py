"""verl's rollouts, run elsewhere: what verl's stock v1 trainer is given by configuration. README.md has the flags.

Importing this package loads neither torch nor verl: rows, settings and group rules are plain Python.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`RemoteRolloutManager`, loaded when verl asks for it by name: it needs verl, torch and ray."""
    if name == "RemoteRolloutManager":
        from rollway_driver.verl.manager import RemoteRolloutManager

        return RemoteRolloutManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
