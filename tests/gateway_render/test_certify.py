"""A certificate states what was probed, and the command prints it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from rollway_gateway.render import certify, disagreements, prove, questions
from rollway_gateway.render.certify import main, report
from rollway_gateway.render.template import Options, Refused
from tests.gateway_render import tiny


def found(source: str, **settings) -> dict:
    certificate = certify(tiny.template(source), **settings)
    return {c.follows: c.reason or "appends" for c in certificate.cases} | {"mode": certificate.mode}


def model_folder(path: Path, source: str = tiny.CHATML) -> Path:
    vocabulary = tiny.vocabulary()
    path.mkdir()
    vocabulary._tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "bos_token": "<|start|>"}))
    (path / "chat_template.jinja").write_text(source)
    return path


def test_an_append_only_template_is_exact_in_every_case() -> None:
    certificate = certify(tiny.template())
    assert certificate.mode == "exact" and certificate.append_only and certificate.why == "every probe appends"
    assert (certificate.closer, certificate.closer_stops) == ("<|end|>", True)
    assert (certificate.reasoning, certificate.tools) == ("kept", "shown")
    assert certificate.glue == '"}</tool_call>'


def test_where_reasoning_is_dropped_is_found_and_the_setting_decides() -> None:
    assert found(tiny.DROPS_REASONING)["user message after reasoning"] == "reasoning_dropped"
    assert found(tiny.DROPS_REASONING)["tool result after reasoning"] == "appends"
    assert found(tiny.DROPS_REASONING, history="continuous")["user message after reasoning"] == "appends"
    assert certify(tiny.template(tiny.DROPS_REASONING)).reasoning == "kept within a tool cycle"


def test_moved_tools_are_found() -> None:
    cases = found(tiny.MOVES_TOOLS)
    assert cases["user message"] == "appends" and cases["tool result"] == "history_rewritten"


def test_without_a_closing_token_the_mode_is_mirror_and_the_reason_is_said() -> None:
    proof = prove(tiny.template(tiny.NO_CLOSER))
    assert proof.bridge is None and proof.certificate.mode == "mirror"
    assert "no single token ends an answer" in proof.certificate.why


def test_a_template_that_answers_nothing_is_mirror() -> None:
    assert certify(tiny.template("{{ raise_exception('never') }}")).mode == "mirror"


def test_a_closer_that_the_engine_does_not_stop_at_is_pointed_out() -> None:
    certificate = certify(tiny.template(stop="<|stop|>"))
    assert not certificate.closer_stops and "have generation stop there" in report(certificate)


def test_the_command_prints_what_holds_and_its_exit_code_says_the_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = model_folder(tmp_path / "good"), model_folder(tmp_path / "bad", tiny.NO_CLOSER)
    assert main([str(good)]) == 0
    assert "good: exact mode" in capsys.readouterr().out
    assert main([str(bad)]) == 1
    assert "bad: mirror mode" in capsys.readouterr().out
    assert main([str(good), "--json", "--history", "continuous"]) == 0
    assert json.loads(capsys.readouterr().out)["history"] == "continuous"


def test_the_command_says_how_to_call_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "not a fast tokenizer"),
        (lambda f: (f / "chat_template.jinja").unlink(), "no chat template"),
        (lambda f: (f / "chat_template.jinja").write_text("{% if %}"), "does not compile"),
        (lambda f: (f / "tokenizer_config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "generation_config.json").write_text("[]"), "not a JSON object"),
    ],
)
def test_a_broken_model_folder_is_mirror_with_the_reason(tmp_path: Path, break_it, said: str) -> None:
    folder = model_folder(tmp_path / "model")
    break_it(folder)
    certificate = certify(folder)
    assert certificate.mode == "mirror" and said in certificate.why


def test_it_works_without_the_renderers_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "renderers", None)
    assert certify(tiny.template()).bridge == "template difference"


def test_an_engine_that_renders_otherwise_is_found_out() -> None:
    ours, theirs = (
        tiny.template(),
        tiny.template(tiny.CHATML.replace("assistant\n' }}{% endif %}", "bot' }}{% endif %}")),
    )
    answers = {}
    for name, body in questions().items():
        try:
            answers[name] = theirs.prompt_ids(body["messages"], Options(tools=body.get("tools"))).tolist()
        except Refused:
            answers[name] = None
    assert disagreements(theirs, answers) == []
    assert set(disagreements(ours, answers)) == set(questions())


def test_stop_tokens_come_from_the_generation_config_too(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    stop = tiny.vocabulary().id_of("<|stop|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
    from rollway_gateway.render.vocabulary import Vocabulary

    assert stop in Vocabulary.load(folder).stop_ids
    shutil.rmtree(folder)
