"""GSM8K (grade-school word problems): from its hub through ``datasets``, or from its authors' jsonl files.

A solution ends in ``#### 1,234``: the number after the last ``####``, without separators, is the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollway_driver.data.errors import DataError
from rollway_driver.data.row import Row

HUB_NAME, HUB_CONFIG = "openai/gsm8k", "main"
DATA_SOURCE = "gsm8k"
MARK = "####"
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def answer_of(solution: str) -> str:
    """The final answer of a worked solution.

    Raises:
        DataError: no ``####``, or no number after it.
    """
    _, mark, tail = solution.rpartition(MARK)
    answer = tail.strip().lstrip("$").replace(",", "")
    if not mark or not _NUMBER.fullmatch(answer):
        raise DataError(f"a GSM8K solution ends in '{MARK} <number>', this one in {solution[-60:]!r}")
    return answer


def rows_of(items: Iterable[Mapping[str, Any]]) -> list[Row]:
    """GSM8K's ``question`` and ``answer`` as rows.

    Raises:
        DataError: an item without them, or whose solution holds no answer; names its position.
    """
    rows = []
    for position, item in enumerate(items):
        try:
            rows.append(Row(str(item["question"]).strip(), answer_of(str(item["answer"])), DATA_SOURCE))
        except (KeyError, DataError) as e:
            raise DataError(f"GSM8K item {position}: {f'has no field {e}' if isinstance(e, KeyError) else e}") from e
    return rows


def from_hub() -> tuple[list[Row], list[Row]]:
    """Training and test rows from the hub.

    Raises:
        DataError: ``datasets`` is not installed, or the hub cannot be reached.
    """
    try:
        from datasets import load_dataset
    except ImportError as e:
        raise DataError(
            "GSM8K from its hub needs the package 'datasets': run this in the trainer's environment, "
            "or `pip install datasets pyarrow`"
        ) from e
    try:
        found = load_dataset(HUB_NAME, HUB_CONFIG)
        return rows_of(found["train"]), rows_of(found["test"])
    except (OSError, ValueError) as e:
        raise DataError(
            f"cannot load {HUB_NAME} from its hub ({type(e).__name__}: {e}). Where the hub is out of reach, name a "
            "mirror in HF_ENDPOINT, copy a filled HF_HOME from another machine and set HF_HUB_OFFLINE=1, or pass "
            "--files with the folder of the authors' train.jsonl and test.jsonl; `arithmetic` needs no download"
        ) from e


def from_files(folder: Path) -> tuple[list[Row], list[Row]]:
    """Training and test rows from ``train.jsonl`` and ``test.jsonl`` as GSM8K's authors publish them.

    Raises:
        DataError: a file is missing or a line is not such an item.
    """
    return rows_of(_lines(folder / "train.jsonl")), rows_of(_lines(folder / "test.jsonl"))


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise DataError(f"cannot read {path}: {e.strerror}") from e
    items = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as e:
            raise DataError(f"{path}, line {number}: not JSON: {e}") from e
        if not isinstance(item, dict):
            raise DataError(f"{path}, line {number}: not an object")
        items.append(item)
    return items
