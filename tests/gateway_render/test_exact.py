"""One session in exact mode, turn by turn."""

from __future__ import annotations

import sys
import time
from array import array

import pytest

from rollway_gateway.render import DifferenceBridge, DriftReason, ExactSession, Options
from rollway_gateway.render.vocabulary import Vocabulary
from rollway_wire.problems import ContractViolation
from tests.gateway_render import tiny

NONE = Options()


def user(text):
    return {"role": "user", "content": text}


def session(source: str = tiny.CHATML) -> tuple[ExactSession, object]:
    template = tiny.template(source)
    return ExactSession(template, DifferenceBridge(template)), template


def test_a_first_turn_is_rendered_whole_and_the_second_keeps_the_sampled_ids() -> None:
    """HAVING sampled as H + AVING comes back in one piece from any tokenizer, not from here."""
    live, template = session()
    first = live.plan([user("a")], NONE)
    assert first.extends is None and first.drift is None
    assert first.prompt_ids == template.prompt_ids([user("a")], NONE)
    encode = template.vocabulary.encode
    sampled = encode("H") + encode("AVING") + encode("<|end|>")
    assert sampled != encode("HAVING<|end|>")
    said = {"role": "assistant", "content": "HAVING"}
    turn = live.record(first, turn_id="t0", prompt_ids=first.prompt_ids, completion_ids=sampled, answer=said)
    second = live.plan([user("a"), said, user("b")], NONE)
    assert second.extends is turn
    assert second.prompt_ids[: turn.end] == first.prompt_ids + sampled
    assert template.vocabulary.decode(second.prompt_ids).endswith("user\nb<|end|>\n<|start|>assistant\n")


def test_what_the_engine_was_really_prompted_with_is_what_counts_for_a_first_turn() -> None:
    live, _ = session()
    plan = live.plan([user("a")], NONE)
    engine = array("i", [7, 7, 7])
    turn = live.record(
        plan,
        turn_id="t",
        prompt_ids=engine,
        completion_ids=array("i", [8]),
        answer={"role": "assistant", "content": "x"},
    )
    assert turn.ids() == array("i", [7, 7, 7, 8])


def test_an_engine_that_was_prompted_with_other_ids_than_planned_is_a_broken_promise() -> None:
    live, _ = session()
    said = {"role": "assistant", "content": "x"}
    first = live.plan([user("a")], NONE)
    live.record(first, turn_id="t0", prompt_ids=first.prompt_ids, completion_ids=array("i", [8]), answer=said)
    second = live.plan([user("a"), said, user("b")], NONE)
    with pytest.raises(ContractViolation, match="other ids than planned"):
        live.record(second, turn_id="t1", prompt_ids=array("i", [1]), completion_ids=array("i", [8]), answer=said)


def test_a_plan_that_is_never_recorded_leaves_no_trace() -> None:
    live, _ = session()
    live.plan([user("a")], NONE)
    assert live.plan([user("a"), {"role": "assistant", "content": "x"}, user("b")], NONE).drift is None


def test_choices_of_one_call_are_each_remembered() -> None:
    live, _ = session()
    plan = live.plan([user("a")], NONE)
    turns = [
        live.record(
            plan, turn_id=f"t{i}", prompt_ids=plan.prompt_ids, completion_ids=array("i", [i]),
            answer={"role": "assistant", "content": f"choice {i}"},
        )
        for i in range(2)
    ]  # fmt: skip
    again = live.plan([user("a"), {"role": "assistant", "content": "choice 0"}, user("b")], NONE)
    assert again.extends is turns[0]


def test_after_a_drift_the_branch_is_gone_on_from() -> None:
    live, template = session(tiny.DROPS_REASONING)
    said = {"role": "assistant", "content": "x", "reasoning": "hm"}
    closer = template.vocabulary.encode("<|end|>")
    plan = live.plan([user("a")], NONE)
    live.record(plan, turn_id="t0", prompt_ids=plan.prompt_ids, completion_ids=closer, answer=said)
    branch = live.plan([user("a"), said, user("b")], NONE)
    assert branch.drift.reason is DriftReason.REASONING_DROPPED and branch.extends is None
    plain = {"role": "assistant", "content": "y"}
    turn = live.record(branch, turn_id="t1", prompt_ids=branch.prompt_ids, completion_ids=closer, answer=plain)
    assert live.plan([user("a"), said, user("b"), plain, user("c")], NONE).extends is turn


def test_images_are_left_to_the_engine_from_there_on() -> None:
    live, _ = session()
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    plan = live.plan([picture], NONE)
    assert plan.prompt_ids is None and plan.drift.reason is DriftReason.REFUSED
    said = {"role": "assistant", "content": "a cat"}
    ids = array("i", [1])
    assert live.record(plan, turn_id="t0", prompt_ids=ids, completion_ids=ids, answer=said) is None
    assert live.plan([picture, said, user("b")], NONE).prompt_ids is None


def test_a_long_session_pays_for_its_new_messages_not_for_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 turns to 30,000 tokens. What still grows with the context is one copy of the ids a turn, and a few calls for
    each message that is looked up. Counted: how long it takes is the machine's, and garbage collection's."""
    live, template = session()
    sampled = template.vocabulary.encode("word " * 20 + "<|end|>")
    spoken = [user("start " * 10)]
    encoded, calls = [], []
    encode = Vocabulary.encode

    def counting(self: Vocabulary, text: str) -> array[int]:
        encoded[-1] += len(text)
        return encode(self, text)

    def count(frame: object, event: str, arg: object) -> None:
        calls[-1] += event in ("call", "c_call")

    monkeypatch.setattr(Vocabulary, "encode", counting)
    started = time.process_time()
    for i in range(200):
        encoded.append(0)
        calls.append(0)
        said = {"role": "assistant", "content": f"answer {i}"}
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            plan = live.plan(list(spoken), NONE)
            live.record(plan, turn_id=f"t{i}", prompt_ids=plan.prompt_ids, completion_ids=sampled, answer=said)
        finally:
            sys.setprofile(before)
        spoken += [said, user(f"question {i} " + "y " * 20)]
    spent = time.process_time() - started
    assert len(plan.prompt_ids) > 20_000
    assert 0 < max(encoded[1:]) < 1.2 * min(encoded[1:]), "text is rendered and encoded of the new messages alone"
    assert max(calls) < 20 * len(spoken), f"{max(calls)} calls in one turn of {len(spoken)} messages"
    assert spent < 10, f"{spent:.2f} CPU s for 200 turns"
