"""Sessions are scored by what the engine was prompted with and sampled, nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.fidelity.score import Score, score
from benchmarks.fidelity.scripted_engine import Drawn
from benchmarks.fidelity.scripts import SCRIPTS, TURNS, echoed
from benchmarks.fidelity.table import tables
from benchmarks.gateway.environments import ROOT
from rollway_local.models_folder import chat_template

FIRST = Drawn("a", (1, 2), (3, 4))
APPENDED = Drawn("a", (1, 2, 3, 4, 5), (6,))
DRIFTED = Drawn("a", (1, 2, 3, 9, 5), (6,))


def test_an_appended_turn_is_exact_and_one_row_trains_both() -> None:
    got = score([FIRST, APPENDED], [([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])])
    assert got == Score(
        sessions=1, turns=2, exact=2, trained=2, sequences=1, sampled_tokens=3, wrong_tokens=0, row_tokens=6
    )


def test_a_drifted_turn_is_not_exact_but_trains_in_a_row_of_its_own() -> None:
    rows = [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 9, 5, 6], [0, 0, 0, 0, 0, 1])]
    got = score([FIRST, DRIFTED], rows)
    assert (got.exact, got.trained, got.sequences, got.wrong_tokens, got.fidelity) == (1, 2, 2, 0, 0.5)


def test_tokens_trained_after_another_prompt_than_their_own_are_wrong() -> None:
    got = score([FIRST, DRIFTED], [([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])])
    assert (got.trained, got.wrong_tokens) == (1, 1)


def test_a_turn_trained_twice_does_not_count_as_trained() -> None:
    row = ([1, 2, 3, 4], [0, 0, 1, 1])
    assert score([FIRST], [row, row]).trained == 0


def test_each_conversation_of_a_session_is_compared_with_its_own_history() -> None:
    other = Drawn("b", (7, 8), (9,))
    assert score([FIRST, other, APPENDED], []).exact == 3


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_says_the_same_each_time_and_its_pieces_make_up_its_text(name: str) -> None:
    script = SCRIPTS[name]
    for turn in range(TURNS):
        assert "".join(script.pieces(3, turn)) == script.says(3, turn) == script.says(3, turn)
    assert "<tool_call>" not in script.says(3, TURNS - 1)
    assert ("<tool_call>" in script.says(3, 0)) == script.uses_tools


def test_a_rekeying_agent_changes_the_text_of_arguments_and_not_their_meaning() -> None:
    written = '{"unit": "C", "city": "Paris"}'
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "w", "arguments": written}}]}
    sent = echoed(SCRIPTS["rekeyed"], message)["tool_calls"][0]["function"]["arguments"]
    assert sent != written and json.loads(sent) == {"unit": "C", "city": "Paris"}


def test_a_table_has_a_row_per_gateway_and_one_per_script() -> None:
    score = Score(sessions=2, turns=12, exact=9, trained=12, sequences=4, sampled_tokens=100, row_tokens=3000)
    over_all, by_script = tables({"ours": {"chat": score, "tools": score}}).split("\n\n")
    assert [cell.strip() for cell in over_all.splitlines()[2].split("|")[1:-1]] == [
        "ours", "18 / 24", "0.750", "2.00", "24 / 24", "0", "6,000",
    ]  # fmt: skip
    assert [line.split("|")[2].strip() for line in by_script.splitlines()[2:]] == ["2.00 (0.750)"] * 2


def tokenizer_folder(folder: Path) -> Path:
    """A small ChatML tokenizer under the demo's chat template: text and JSON have several ways to be cut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    said = [script.says(seed, turn) for script in SCRIPTS.values() for seed in range(3) for turn in range(TURNS)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    marks = ["<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        [*said, chat_template()],
        trainers.BpeTrainer(vocab_size=700, special_tokens=marks, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": chat_template()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.timeout(300)
def test_ours_are_measured_on_every_script(tmp_path: Path) -> None:
    """Real gateways, a session a script. Exact mode: every turn exact, a sequence a conversation. Mirror mode: turns
    that drift begin sequences. Both train every turn once, as it was sampled."""
    out = tmp_path / "out.json"
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.fidelity", "--subjects", "rollway-exact,rollway-mirror", "--seeds", "1",
         "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "BENCH_TOKENIZER": str(tokenizer_folder(tmp_path))},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(out.read_text())["results"]
    for name, script in SCRIPTS.items():
        exact, mirror = (Score(**results[mode][name]) for mode in ("rollway-exact", "rollway-mirror"))
        assert (exact.exact, exact.trained, exact.wrong_tokens) == (exact.turns, exact.turns, 0)
        assert exact.sequences == script.threads
        assert (mirror.trained, mirror.wrong_tokens) == (mirror.turns, 0)
        assert mirror.sequences == script.threads + mirror.turns - mirror.exact
    assert results["rollway-mirror"]["spaced"]["sequences"] == TURNS
