"""``python -m rollway_gateway.journal mend FOLDER``: cut damage out of a journal. Exit status: 0 done, 2 refused."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rollway_gateway.journal.mend import mend
from rollway_gateway.journal.problems import JournalRefused


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rollway_gateway.journal", description=__doc__)
    parser.add_argument("what", choices=["mend"])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args(argv)
    try:
        mended = mend(asked.folder)
    except JournalRefused as e:
        sys.stderr.write(f"refused: {e}\n")
        sys.exit(2)
    sys.stdout.write(f"{mended.dropped_bytes} bytes cut out; {mended.marked} sessions marked as incomplete\n")


if __name__ == "__main__":
    main()
