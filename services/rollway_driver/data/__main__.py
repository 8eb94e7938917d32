"""``python -m rollway_driver.data arithmetic|gsm8k --out FOLDER``: writes train.parquet and val.parquet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rollway_driver.data import arithmetic, gsm8k
from rollway_driver.data.errors import DataError
from rollway_driver.data.parquet import write_rows
from rollway_driver.data.row import Row


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _levels(text: str) -> dict[str, int]:
    names = text.split(",")
    if unknown := [name for name in names if name not in arithmetic.MIX]:
        raise argparse.ArgumentTypeError(f"no level {unknown[0]!r}: choose from {', '.join(arithmetic.MIX)}")
    return {name: arithmetic.MIX[name] for name in names}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rollway_driver.data", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    made = kinds.add_parser("arithmetic", help="tasks made here, no download")
    made.add_argument("--train", type=_positive, default=256, metavar="N", help="training rows (256)")
    made.add_argument("--val", type=_positive, default=64, metavar="N", help="validation rows (64)")
    made.add_argument("--seed", type=int, default=0, help="same seed, same rows (0)")
    made.add_argument(
        "--levels", type=_levels, default=arithmetic.MIX, metavar="NAMES",
        help=f"comma-separated of {','.join(arithmetic.LEVELS)} (all)",
    )  # fmt: skip
    loaded = kinds.add_parser("gsm8k", help="GSM8K; its test split becomes val.parquet")
    loaded.add_argument("--train", type=_positive, metavar="N", help="first N training rows (all)")
    loaded.add_argument("--val", type=_positive, metavar="N", help="first N validation rows (all)")
    loaded.add_argument("--files", type=Path, metavar="FOLDER", help="read train.jsonl and test.jsonl, not the hub")
    for kind in (made, loaded):
        kind.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the parquet files go")
    return parser


def _rows(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    if args.kind == "arithmetic":
        return arithmetic.splits(args.train, args.val, args.seed, args.levels)
    train, val = gsm8k.from_files(args.files) if args.files else gsm8k.from_hub()
    return train[: args.train], val[: args.val]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 after saying on standard error what to mend."""
    args = _parser().parse_args(argv)
    try:
        for name, rows in zip(("train", "val"), _rows(args), strict=True):
            path = args.out / f"{name}.parquet"
            write_rows(path, rows)
            sys.stdout.write(f"{path}: {len(rows)} rows\n")
    except DataError as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
