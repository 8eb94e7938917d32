"""``python -m benchmarks.readme``: write the recorded runs into benchmarks/README.md, each table between its marks.

The tables are made from `baselines/*.json` and nothing else, so that no figure in the page is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import soak
from benchmarks.dispatcher import scale, side_by_side, simulation
from benchmarks.fidelity import table as fidelity
from benchmarks.gateway import baseline
from benchmarks.gateway import table as gateway
from benchmarks.update import table as update

PAGE = Path(__file__).with_name("README.md")
MISSING = "No run is recorded yet."


def _gateway(run: Mapping[str, Any]) -> str:
    return gateway.text(run["results"])


SECTIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "gateway": _gateway,
    "fidelity": fidelity.text,
    "update": update.text,
    "side_by_side": side_by_side.text,
    "scale": scale.text,
    "simulation": simulation.text,
    "soak": soak.text,
    "chaos": soak.text,
}
"""Name of a recorded run, and its table in Markdown."""


def section(name: str) -> str:
    """The recorded run's machine, table and failures in Markdown."""
    path = baseline.FOLDER / f"{name}.json"
    if not path.is_file():
        return MISSING
    run = baseline.load(path)
    about = f"Measured on: {_machine(run['machine'])}."
    for part in run.get("again", ()):
        about += f" Measured again after that, all of it in one run: {part['suites']} ({_machine(part['machine'])})."
    failed = [f"{who}: {why}" for who, why in run.get("failures", {}).items()]
    return "\n\n".join([about, SECTIONS[name](run), *failed])


def _machine(about: Mapping[str, Any]) -> str:
    return ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in about.items())


def page(text: str) -> str:
    """The page with every table as recorded.

    Raises:
        ValueError: the marks of a section are not there exactly once.
    """
    for name in SECTIONS:
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(marked.findall(text)) != 1:
            raise ValueError(f"{PAGE.name} must hold {begin} and {end} once")
        made = f"{begin}\n\n{section(name)}\n\n{end}"
        text = text.replace(marked.findall(text)[0], made)
    return text


def main() -> int:
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
