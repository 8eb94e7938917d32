"""The demo's models: a template that only ever appends, a folder that is whole or not there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_local import models
from rollway_local.models import RECIPE, make
from rollway_local.models_folder import ModelError, chat_template
from tests.kit.vllm_server import ROOT, trainer_python

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


_ENVIRONMENT = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_TEMPLATE = _ENVIRONMENT.from_string(chat_template())


def render(messages: list[dict[str, Any]], *, tools: Any = None, generate: bool = False) -> str:
    """As transformers renders chat templates."""
    return _TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=generate)


TEXT = st.text(max_size=20)
CALL = st.builds(
    lambda name, args: {"type": "function", "id": "c", "function": {"name": name, "arguments": args}},
    st.sampled_from(["add", "mul"]),
    st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2),
)
MESSAGE = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, TEXT),
    st.builds(lambda text: {"role": "tool", "content": text, "tool_call_id": "c"}, TEXT),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXT),
    st.builds(
        lambda calls: {"role": "assistant", "content": None, "tool_calls": calls},
        st.lists(CALL, min_size=1, max_size=2),
    ),
)
SYSTEM = st.sampled_from([[], [{"role": "system", "content": "Be brief."}]])


@settings(deadline=None)
@given(SYSTEM, st.lists(MESSAGE, max_size=6), st.lists(MESSAGE, max_size=3), st.sampled_from([None, TOOLS]))
def test_a_longer_history_starts_with_the_shorter_one(
    system: list[Any], shorter: list[Any], added: list[Any], tools: Any
) -> None:
    """Otherwise a second turn's prompt would not extend the first's, and each turn would be a sequence of its own."""
    before = [*system, {"role": "user", "content": "start"}, *shorter]
    assert render([*before, *added], tools=tools).startswith(render(before, tools=tools))


@settings(deadline=None)
@given(SYSTEM, st.lists(MESSAGE, max_size=4), TEXT, st.sampled_from([None, TOOLS]))
def test_what_the_model_said_stands_right_after_its_prompt(
    system: list[Any], history: list[Any], said: str, tools: Any
) -> None:
    before = [*system, {"role": "user", "content": "start"}, *history]
    prompt = render(before, tools=tools, generate=True)
    after = render([*before, {"role": "assistant", "content": said}], tools=tools)
    assert after == f"{prompt}{said}<|im_end|>\n"


def test_tools_calls_and_results_are_written_as_hermes_does() -> None:
    call = {"type": "function", "id": "c", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    text = render(messages, tools=TOOLS)
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>" in text
    one = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{one}\n{one}<|im_end|>\n" in text
    assert text.endswith("<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n")


def test_without_a_system_message_the_models_own_stands_there() -> None:
    assert render([{"role": "user", "content": "hi"}]).startswith("<|im_start|>system\nYou are a helpful AI assistant")


@pytest.fixture
def one_file_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_tiny", lambda out: (out / "weights").write_text("made"))


@pytest.mark.usefixtures("one_file_recipe")
def test_a_made_folder_is_left_alone_and_a_stale_one_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "m"
    assert make("tiny", out) is True
    (out / "weights").write_text("kept")
    assert make("tiny", out) is False and (out / "weights").read_text() == "kept"
    (out / RECIPE).write_text(json.dumps({"model": "tiny", "recipe": "0"}))
    assert make("tiny", out) is True and (out / "weights").read_text() == "made"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_recipe_that_fails_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(out: Path) -> None:
        (out / "weights").write_text("half")
        raise ModelError("disk full")

    monkeypatch.setattr(models, "_tiny", half)
    with pytest.raises(ModelError, match="disk full"):
        make("tiny", tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ModelError, match="give another --out"):
        make("tiny", tmp_path)


def test_a_missing_package_names_the_environment(tmp_path: Path) -> None:
    """The services' environment has no torch."""
    done = subprocess.run(
        [sys.executable, "-m", "rollway_local.models", "smollm2", "--out", str(tmp_path / "m")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "run this in the trainer's environment" in done.stderr


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_tiny_model_is_the_same_every_time_and_its_vocabulary_is_its_tokenizers(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        command = [str(trainer_python()), "-m", "rollway_local.models", "tiny", "--out", str(tmp_path / name)]
        subprocess.run(command, check=True, timeout=400, cwd=ROOT)
        files = sorted(p for p in (tmp_path / name).iterdir())
        made.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
    assert made[0] == made[1]
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    vocabulary = json.loads((tmp_path / "one" / "tokenizer.json").read_text())
    assert config["vocab_size"] == len(vocabulary["model"]["vocab"]) + len(
        [t for t in vocabulary["added_tokens"] if t["content"] not in vocabulary["model"]["vocab"]]
    )
