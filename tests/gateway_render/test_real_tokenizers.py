"""The same generated agents on published tokenizers and chat templates, and what each template is certified for."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollway_gateway.render import DriftReason, Options, Proof, Template, certify, prove
from rollway_gateway.render.bridge import History
from tests.gateway_render.conversations import check_row, conversations, run
from tests.kit.tokenizers import folder

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

EXACT = (
    "qwen2_5", "qwen3", "llama3", "llama3_1", "gemma3", "deepseek_v3", "mistral_nemo", "command_r_plus", "internlm2",
)  # fmt: skip
RECORDED = Path(__file__).parent / "recorded"


@functools.cache
def loaded(name: str) -> Template:
    return Template.load(folder(name))


@functools.cache
def proven(name: str, history: History) -> Proof:
    return prove(loaded(name), history=history)


def appends(proof: Proof, follows: str) -> bool:
    return next(c.appends for c in proof.certificate.cases if c.follows == follows)


@pytest.mark.parametrize("name", EXACT)
def test_a_plain_conversation_is_one_sequence_with_every_sampled_id_verbatim(name: str) -> None:
    proof = proven(name, "faithful")
    assert proof.certificate.mode == "exact"

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conversations(tools=False, reasoning=False, system=appends(proof, "user message, with a system message")))
    def play(conversation) -> None:
        played = run(proof, loaded(name), conversation)
        assert not played.drifts
        check_row(played)

    play()


@pytest.mark.parametrize("name", [n for n in EXACT if n not in ("gemma3", "command_r_plus")])
@pytest.mark.parametrize("history", ["faithful", "continuous"])
def test_a_conversation_with_tools_and_reasoning_branches_only_where_certified(name: str, history: History) -> None:
    """gemma3 and command_r_plus refuse OpenAI tools, in vLLM as here."""
    proof = proven(name, history)
    reasoning = history == "continuous" or proof.certificate.reasoning != "never shown"
    declared = {c.reason for c in proof.certificate.cases if not c.appends}

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conversations(tools=True, reasoning=reasoning))
    def play(conversation) -> None:
        played = run(proof, loaded(name), conversation)
        assert {d.reason.value for d in played.drifts} <= declared, played.drifts
        check_row(played)

    play()


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "internlm2", "deepseek_v3"])
def test_with_continuous_history_nothing_branches(name: str) -> None:
    assert proven(name, "continuous").certificate.append_only


@pytest.mark.parametrize(
    ("name", "mode", "branching"),
    [
        ("qwen3", "exact", {"user message after reasoning": "reasoning_dropped"}),
        ("mistral_nemo", "exact", {"user message, with a system message": "history_rewritten"}),
        ("gemma3", "exact", {"tool result": "template_refused"}),
        ("command_r_plus", "exact", {"tool result": "template_refused"}),
        ("gptoss", "mirror", {}),
    ],
)
def test_what_a_template_cannot_promise_is_in_its_certificate(name: str, mode: str, branching: dict[str, str]) -> None:
    certificate = certify(folder(name))
    assert certificate.mode == mode and certificate.why
    found = {c.follows: c.reason for c in certificate.cases if not c.appends}
    assert branching.items() <= found.items()
    json.dumps(certificate.as_json())


def test_a_mirror_certificate_names_the_reason() -> None:
    assert "no chat template" in certify(folder("gptoss")).why


def test_a_template_with_state_over_the_whole_session_is_seen() -> None:
    """DeepSeek V3's writes its opening mark for tool outputs once a session."""
    assert proven("deepseek_v3", "faithful").certificate.window == "session"


def test_a_family_of_renderers_is_used_where_it_keeps_as_much() -> None:
    assert proven("qwen3", "continuous").certificate.bridge == "renderers:qwen3"
    assert proven("qwen3", "faithful").certificate.bridge == "template difference", "the family branches more often"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda p: p.stem)
def test_a_first_prompt_is_the_one_a_real_vllm_server_made(path: Path) -> None:
    """Recorded from vLLM's own rendering endpoint: request body in, token ids out."""
    recorded = json.loads(path.read_text())
    body = recorded["request"]
    options = Options(tools=body.get("tools"), kwargs=body.get("chat_template_kwargs") or {})
    assert loaded("qwen3").prompt_ids(body["messages"], options).tolist() == recorded["token_ids"]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_reasoning_that_qwen3_drops_after_a_new_question_is_a_branch(data: st.DataObject) -> None:
    proof = proven("qwen3", "faithful")
    played = run(proof, loaded("qwen3"), data.draw(conversations(tools=True, reasoning=True)))
    assert {d.reason for d in played.drifts} <= {DriftReason.REASONING_DROPPED}
    check_row(played)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_empty_reasoning_block_of_a_generation_prompt_stays_in_the_sequence(data: st.DataObject) -> None:
    """Qwen3 without thinking: its template shows the block before the answer and not in the history."""
    proof = proven("qwen3", "faithful")
    conversation = data.draw(conversations(tools=True, reasoning=False))
    played = run(proof, loaded("qwen3"), conversation, enable_thinking=False)
    assert not played.drifts
    check_row(played)
