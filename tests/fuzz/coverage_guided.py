"""Coverage-guided fuzzing of the readers with atheris: ``python -m tests.fuzz.coverage_guided TARGET SECONDS``.

The corpus stays in ``.work/fuzz/TARGET``; what made it crash is written beside it. Exit status 0: nothing did.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, seconds = sys.argv[1], sys.argv[2]
    corpus = Path(".work/fuzz") / name
    corpus.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={corpus}-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
