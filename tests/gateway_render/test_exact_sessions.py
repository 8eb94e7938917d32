"""Generated agents on the small tokenizer: a linear session stays one exact sequence, or says why it does not."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_gateway.render import DriftReason, Proof, Template, prove
from rollway_gateway.render.bridge import History
from tests.gateway_render import tiny
from tests.gateway_render.conversations import Conversation, check_row, conversations, run


@functools.cache
def proven(source: str, history: History = "faithful") -> tuple[Template, Proof]:
    template = tiny.template(source)
    return template, prove(template, history=history)


@settings(max_examples=60, deadline=None)
@given(conversations(tools=True, reasoning=True))
def test_under_an_append_only_template_every_linear_session_is_one_sequence(conversation: Conversation) -> None:
    template, proof = proven(tiny.CHATML)
    assert proof.certificate.append_only
    played = run(proof, template, conversation)
    assert not played.drifts
    check_row(played)


@settings(max_examples=50, deadline=None)
@given(conversations(tools=True, reasoning=True))
def test_a_template_that_drops_reasoning_branches_exactly_there(conversation: Conversation) -> None:
    template, proof = proven(tiny.DROPS_REASONING)
    played = run(proof, template, conversation)
    assert {d.reason for d in played.drifts} <= {DriftReason.REASONING_DROPPED}
    check_row(played)


@settings(max_examples=50, deadline=None)
@given(conversations(tools=True, reasoning=True))
def test_with_continuous_history_the_same_template_keeps_one_sequence(conversation: Conversation) -> None:
    template, proof = proven(tiny.DROPS_REASONING, "continuous")
    played = run(proof, template, conversation)
    assert not played.drifts
    check_row(played)


@settings(max_examples=60, deadline=None)
@given(conversations(tools=False, reasoning=False))
def test_a_template_that_looks_at_the_whole_session_is_rendered_whole(conversation: Conversation) -> None:
    template, proof = proven(tiny.NUMBERED)
    assert proof.certificate.window == "session"
    played = run(proof, template, conversation)
    assert not played.drifts
    check_row(played)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_template_that_moves_its_tools_branches_each_turn_and_says_so(data: st.DataObject) -> None:
    template, proof = proven(tiny.MOVES_TOOLS)
    played = run(proof, template, data.draw(conversations(tools=True, reasoning=False)))
    assert {d.reason for d in played.drifts} <= {DriftReason.REWRITTEN}
    check_row(played)


@pytest.mark.parametrize("source", [tiny.CHATML, tiny.TRIMS])
def test_the_small_templates_are_proven(source: str) -> None:
    assert proven(source)[1].certificate.mode == "exact"
