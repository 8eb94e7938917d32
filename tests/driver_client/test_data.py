"""Data preparation: the same rows everywhere, answers that can be scored, and errors that say the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

from rollway_driver.data import arithmetic, gsm8k
from rollway_driver.data.__main__ import main
from rollway_driver.data.errors import DataError
from rollway_driver.data.parquet import write_rows
from rollway_driver.data.row import Row
from tests.kit.vllm_server import trainer_python

ROOT = Path(__file__).parents[2]
GOLDEN_TRAIN = [
    Row("What is 64 - 55?", "9", "arithmetic/medium"),
    Row("What is 11 + 2?", "13", "arithmetic/easy"),
    Row("What is 42 * 46 - 45?", "1887", "arithmetic/hard"),
    Row("What is 4 + 18?", "22", "arithmetic/easy"),
]
GOLDEN_VAL = [
    Row("What is 12 * 7?", "84", "arithmetic/medium"),
    Row("What is 12 - 6?", "6", "arithmetic/easy"),
    Row("What is 2 * 6?", "12", "arithmetic/medium"),
]
ITEMS = [
    {"question": " Two crates hold 600 pears each. How many? ", "answer": "600*2 = <<600*2=1200>>1200\n#### 1,200"},
    {"question": "It was 3 degrees and fell by 5. What is it now?", "answer": "3 - 5 = -2\n#### -2"},
]  # fmt: skip


def _in_trainer(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / name) for name in ("services", "shared"))
    return subprocess.run(
        [str(trainer_python()), *arguments],
        env={**os.environ, "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_arithmetic_rows_are_the_golden_ones() -> None:
    """Seed 0 gives these rows on every machine and Python: a change here is a change of everybody's data."""
    assert arithmetic.splits(4, 3, 0) == (GOLDEN_TRAIN, GOLDEN_VAL)


def test_the_seed_alone_decides_and_fewer_are_a_prefix_of_more() -> None:
    train, val = arithmetic.splits(200, 50, 7)
    assert arithmetic.splits(200, 50, 7) == (train, val)
    assert arithmetic.splits(20, 50, 7) == (train[:20], val)
    assert arithmetic.splits(200, 50, 8)[1] != val


def test_no_question_is_asked_twice_and_levels_mix() -> None:
    """Training never sees a validation question; each level has about its share."""
    train, val = arithmetic.splits(300, 100, 0)
    assert len({row.prompt for row in train + val}) == 400
    counts = Counter(row.data_source for row in train)
    assert counts["arithmetic/easy"] > 80 and counts["arithmetic/medium"] > 80 and counts["arithmetic/hard"] > 30


def test_every_answer_is_right() -> None:
    """Checked by Python's own arithmetic; divisions come out even."""
    train, val = arithmetic.splits(2000, 200, 3)
    for row in train + val:
        expression = row.prompt.removeprefix("What is ").removesuffix("?")
        assert set(expression) <= set("0123456789 +-*/()")
        assert eval(expression) == int(row.answer)


def test_a_used_up_level_gives_way_to_the_next() -> None:
    """More rows than there are easy questions: still all distinct, and it ends."""
    train, _ = arithmetic.splits(5000, 1, 0)
    assert len({row.prompt for row in train}) == 5000


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("so it is 5\n#### 5", "5"),
        ("#### 1,234,567", "1234567"),
        ("a #### 1 b\n#### -3.50", "-3.50"),
        ("####   $40  ", "40"),
    ],
)
def test_gsm8k_answers(solution: str, answer: str) -> None:
    assert gsm8k.answer_of(solution) == answer


@pytest.mark.parametrize("solution", ["", "the answer is 5", "####", "#### five", "#### 5 apples", "#### 1.2.3"])
def test_a_solution_without_an_answer_is_refused(solution: str) -> None:
    """A wrong answer would silently make every reward 0."""
    with pytest.raises(DataError, match="####"):
        gsm8k.answer_of(solution)


def test_gsm8k_items_become_rows() -> None:
    assert gsm8k.rows_of(ITEMS) == [
        Row("Two crates hold 600 pears each. How many?", "1200", "gsm8k"),
        Row("It was 3 degrees and fell by 5. What is it now?", "-2", "gsm8k"),
    ]
    with pytest.raises(DataError, match="item 1: has no field 'answer'"):
        gsm8k.rows_of([ITEMS[0], {"question": "?"}])
    with pytest.raises(DataError, match="item 0: a GSM8K solution ends in"):
        gsm8k.rows_of([{"question": "?", "answer": "none"}])


def _write_items(folder: Path) -> None:
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(item) for item in ITEMS) + "\n\n")


def test_gsm8k_is_read_from_its_authors_files(tmp_path: Path) -> None:
    _write_items(tmp_path)
    train, test = gsm8k.from_files(tmp_path)
    assert train == test == gsm8k.rows_of(ITEMS)


@pytest.mark.parametrize(("line", "says"), [("{", "line 2: not JSON"), ("[]", "line 2: not an object")])
def test_a_broken_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    _write_items(tmp_path)
    (tmp_path / "train.jsonl").write_text(json.dumps(ITEMS[0]) + "\n" + line)
    with pytest.raises(DataError, match=says):
        gsm8k.from_files(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path, capsys) -> None:
    assert main(["gsm8k", "--out", str(tmp_path), "--files", str(tmp_path)]) == 1
    assert "train.jsonl: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub"), ValueError("no split")],
    ids=["unreachable", "unusable"],
)
def test_a_hub_out_of_reach_says_what_to_do(tmp_path: Path, monkeypatch, capsys, error: Exception) -> None:
    """The error names every way on: mirror, copied cache, files, and the task that needs no download."""

    def load_dataset(*_: str) -> None:
        raise error

    stand_in = types.ModuleType("datasets")
    stand_in.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    assert main(["gsm8k", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    for way in (str(error), "HF_ENDPOINT", "HF_HUB_OFFLINE=1", "--files", "arithmetic"):
        assert way in said
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_the_fix(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["gsm8k", "--out", str(tmp_path)]) == 1
    assert "pip install datasets pyarrow" in capsys.readouterr().err
    assert main(["arithmetic", "--out", str(tmp_path)]) == 1
    assert "pip install pyarrow" in capsys.readouterr().err


def test_no_rows_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        write_rows(tmp_path / "x.parquet", [])
    with pytest.raises(DataError, match="0 or more"):
        arithmetic.splits(-1, 1, 0)


@pytest.mark.parametrize("argument", ["0", "-1", "many", "1.5"])
def test_a_wrong_count_is_refused(argument: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["arithmetic", "--out", "x", "--train", argument])
    assert caught.value.code == 2 and "--train" in capsys.readouterr().err


def test_the_commands_import_neither_trainer_nor_parquet_packages() -> None:
    """`--help` works where nothing but rollway is installed."""
    code = (
        "import sys, rollway_driver.data.__main__ as m;"
        "print(sorted({n.partition('.')[0] for n in sys.modules} & {'torch', 'datasets', 'pyarrow', 'httpx', 'verl'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_parquet_holds_the_rows_as_strings(tmp_path: Path) -> None:
    """Written and read back by the trainer's own pyarrow, for both kinds of data."""
    _write_items(tmp_path)
    for arguments in (
        ["arithmetic", "--train", "40", "--val", "8", "--seed", "5", "--out", str(tmp_path / "arithmetic")],
        ["gsm8k", "--files", str(tmp_path), "--val", "1", "--out", str(tmp_path / "gsm8k")],
    ):
        done = _in_trainer("-m", "rollway_driver.data", *arguments)
        assert done.returncode == 0, done.stderr
    read = (
        "import sys, json, pyarrow.parquet as pq\n"
        "t = pq.read_table(sys.argv[1])\n"
        "print(json.dumps([[str(f.type) for f in t.schema], t.to_pylist()]))"
    )
    for name, (train, val) in {
        "arithmetic": arithmetic.splits(40, 8, 5),
        "gsm8k": (gsm8k.rows_of(ITEMS), gsm8k.rows_of(ITEMS)[:1]),
    }.items():
        for split, rows in (("train", train), ("val", val)):
            done = _in_trainer("-c", read, str(tmp_path / name / f"{split}.parquet"))
            assert done.returncode == 0, done.stderr
            types_, found = json.loads(done.stdout)
            assert types_ == ["string"] * 3
            assert [Row(**row) for row in found] == rows
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == ["train.parquet", "val.parquet"]


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_real_hub_client_out_of_reach_says_what_to_do(tmp_path: Path) -> None:
    """The real ``datasets``, pointed at a port where nothing listens."""
    done = _in_trainer(
        "-m", "rollway_driver.data", "gsm8k", "--out", str(tmp_path / "out"),
        HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path / "home"),
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: cannot load openai/gsm8k from its hub" in done.stderr and "--files" in done.stderr
