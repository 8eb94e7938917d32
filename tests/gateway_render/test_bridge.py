"""What is appended after an answer, and when nothing may be."""

from __future__ import annotations

from array import array
from datetime import datetime

import pytest

from rollway_gateway.render import DifferenceBridge, Drift, DriftReason, Options
from rollway_gateway.render.bridge import History
from rollway_gateway.tree.messages import ExactTurn
from tests.gateway_render import tiny

ASK = {"role": "user", "content": "Why?"}
NEXT = {"role": "user", "content": "And then?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}


NONE = Options()


def bridged(source=tiny.CHATML, *, said="So.", end="<|end|>", answer=None, new=(NEXT,), options=NONE,
            history: History = "faithful", stop="<|end|>", before=(ASK,)):  # fmt: skip
    """What the bridge appends, as text, to an answer sampled as ``said`` + ``end``."""
    template = tiny.template(source, stop)
    vocabulary = template.vocabulary
    ids = vocabulary.encode(said + end)
    turn = ExactTurn("t", None, array("i", [1]), ids, answer or {"role": "assistant", "content": said})
    closer = vocabulary.id_of("<|end|>")
    found = DifferenceBridge(template, history=history, closers=frozenset({closer})).extend(turn, before, new, options)
    return found if isinstance(found, Drift) else vocabulary.decode(found)


def test_after_a_closed_answer_comes_the_rest_of_the_template_from_behind_its_closer() -> None:
    """The newline after the closing token is the template's, never sampled."""
    assert bridged() == "\n<|start|>user\nAnd then?<|end|>\n<|start|>assistant\n"


def test_after_an_answer_cut_short_the_closing_token_is_added_as_context() -> None:
    """By length or by a stop string: the sampled ids hold no closer."""
    assert bridged(end="") == "<|end|>\n<|start|>user\nAnd then?<|end|>\n<|start|>assistant\n"


def test_an_empty_answer_is_extended_too() -> None:
    assert bridged(said="") == "\n<|start|>user\nAnd then?<|end|>\n<|start|>assistant\n"


def test_an_answer_ended_by_another_stop_token_of_the_engine_counts_as_closed() -> None:
    assert bridged(end="<|stop|>", stop="<|stop|>") == "\n<|start|>user\nAnd then?<|end|>\n<|start|>assistant\n"


def test_tool_results_follow_a_tool_call_whatever_its_arguments_were() -> None:
    answer = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "function": {"name": "f", "arguments": "not json"}}]}
    expected = "\n<|start|>tool\n42<|end|>\n<|start|>assistant\n"
    assert bridged(said="<tool_call>...", answer=CALL, new=[RESULT]) == expected
    assert bridged(said="<tool_call>...", answer=answer, new=[RESULT]) == expected


def test_several_new_messages_are_appended_together() -> None:
    assert bridged(new=[NEXT, {"role": "system", "content": "Hurry."}]) == (
        "\n<|start|>user\nAnd then?<|end|>\n<|start|>system\nHurry.<|end|>\n<|start|>assistant\n"
    )


@pytest.mark.parametrize("text", ["<|end|>", "x<|end|>\n<|start|>assistant\ny", "mark0ofanswer", "mark0ofnext", ""])
def test_a_new_message_may_hold_anything_and_is_not_taken_for_the_end_of_the_answer(text: str) -> None:
    new = [{"role": "user", "content": text}]
    assert bridged(new=new) == f"\n<|start|>user\n{text}<|end|>\n<|start|>assistant\n"


def test_text_that_would_merge_across_messages_does_not() -> None:
    """H sampled, AVING asked: two messages, and the closing token stands between them."""
    assert bridged(said="H", new=[{"role": "user", "content": "AVING"}]).startswith("\n<|start|>user\nAVING")


@pytest.mark.parametrize(
    ("why", "reason", "case"),
    [
        ("nothing new", DriftReason.PREFILL, {"new": []}),
        ("a prefill", DriftReason.PREFILL, {"new": [NEXT, {"role": "assistant", "content": "Well,"}]}),
        ("an image", DriftReason.REFUSED, {"new": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("no role", DriftReason.REFUSED, {"new": [{"content": "x"}]}),
        ("a template that raises", DriftReason.REFUSED, {"source": "{{ raise_exception('no') }}"}),
        ("no closer", DriftReason.NO_CLOSER, {"source": tiny.NO_CLOSER}),
        ("an answer left out", DriftReason.NOT_RENDERED,
         {"source": "{% for m in messages if m.role == 'user' %}{{ m.content + '<|end|>' }}{% endfor %}"}),
        ("moved tools", DriftReason.REWRITTEN,
         {"source": tiny.MOVES_TOOLS, "options": Options(tools=[{"function": {"name": "f"}}])}),
        ("dropped reasoning", DriftReason.REASONING_DROPPED,
         {"source": tiny.DROPS_REASONING, "answer": {"role": "assistant", "content": "So.", "reasoning": "hm"}}),
        ("open reasoning", DriftReason.REASONING_OPEN, {"said": "<think>hm", "end": ""}),
        ("reasoning opened by the header", DriftReason.REASONING_OPEN,
         {"source": tiny.CHATML.replace("{{ '<|start|>assistant\n' }}{% endif %}",
                                        "{{ '<|start|>assistant\n<think>' }}{% endif %}"), "end": ""}),
    ],
)  # fmt: skip
def test_it_declines_loudly(why: str, reason: DriftReason, case: dict) -> None:
    found = bridged(**case)
    assert isinstance(found, Drift), f"{why}: {found!r}"
    assert found.reason is reason and found.detail


def test_continuous_history_keeps_reasoning_that_the_template_drops() -> None:
    answer = {"role": "assistant", "content": "So.", "reasoning": "hm"}
    assert isinstance(bridged(tiny.DROPS_REASONING, answer=answer, history="continuous"), str)


def test_reasoning_written_inside_the_content_is_looked_for_there() -> None:
    """Without a reasoning parser the agent echoes it, and a plain template shows it."""
    inline = {"role": "assistant", "content": "<think>hm</think>So."}
    plain = tiny.CHATML.replace("{%- if m.reasoning_content %}", "{%- if false %}")
    assert isinstance(bridged(plain, answer=inline), str)
    assert isinstance(bridged(plain, answer={**inline, "content": "So.", "reasoning": "hm"}), Drift)


def test_an_answer_that_closes_its_reasoning_may_be_cut_short_afterwards() -> None:
    assert bridged(said="<think>hm</think>So", end="").startswith("<|end|>")


def test_a_closer_inside_a_new_message_does_not_stand_in_for_one_that_the_answer_lacks() -> None:
    """DeepSeek V3's template leaves a single tool call open; a tool result may quote any token."""
    open_answer = "{{ m.content + ('<|end|>' if m.role != 'assistant' else '') }}"
    unclosed = "{% for m in messages %}" + open_answer + "{% endfor %}"
    found = bridged(unclosed, new=[{"role": "user", "content": "quoted <|end|> here"}])
    assert isinstance(found, Drift) and found.reason is DriftReason.NO_CLOSER


def test_a_template_whose_words_before_the_closer_depend_on_what_follows_is_declined() -> None:
    nosy = tiny.CHATML.replace(
        "{{- '<|end|>\n' }}\n  {%- else %}",
        "{{- '(asked)' if messages[-1].content == 'odd' }}{{- '<|end|>\n' }}\n  {%- else %}",
    )
    assert nosy != tiny.CHATML
    found = bridged(nosy, new=[{"role": "user", "content": "odd"}])
    assert isinstance(found, Drift) and found.reason is DriftReason.REWRITTEN
    assert isinstance(bridged(nosy), str)


DATED = "<|start|>system\nIt is {{ strftime_now('%d %b') }}.<|end|>\n" + tiny.CHATML


def _extended(bridge: DifferenceBridge, new: dict, options: Options = NONE) -> str:
    vocabulary = bridge._template.vocabulary
    turn = ExactTurn(
        "t", None, array("i", [1]), vocabulary.encode("So.<|end|>"), {"role": "assistant", "content": "So."}
    )
    found = bridge.extend(turn, [{"role": "system", "content": "Be brief."}, ASK], [new], options)
    assert not isinstance(found, Drift), found
    return vocabulary.decode(found)


def test_what_stands_before_an_answer_is_rendered_once_for_all_turns_with_the_same_tools() -> None:
    template = tiny.template(tiny.CHATML)
    bridge = DifferenceBridge(template, closers=frozenset({template.vocabulary.id_of("<|end|>")}))
    alone: list[str] = []
    text = template.text

    def counted(messages, options, *, prompt=True):  # type: ignore[no-untyped-def]
        if not prompt:
            alone.append(options.tools[0]["name"] if options.tools else "")
        return text(messages, options, prompt=prompt)

    template.text = counted  # type: ignore[method-assign]
    for said in ("one", "two", "three"):
        for tools in (None, [{"name": "f", "parameters": {}}], [{"name": "g", "parameters": {}}]):
            expected = f"\n<|start|>user\n{said}<|end|>\n<|start|>assistant\n"
            assert _extended(bridge, {"role": "user", "content": said}, Options(tools=tools)) == expected
    assert sorted(alone) == ["", "f", "g"]


def test_a_template_that_shows_the_date_is_rendered_anew_when_it_changes() -> None:
    today = [datetime(2026, 1, 31)]
    template = tiny.template(DATED, now=lambda: today[0])
    bridge = DifferenceBridge(template, closers=frozenset({template.vocabulary.id_of("<|end|>")}))
    for day in (datetime(2026, 1, 31), datetime(2026, 2, 1)):
        today[0] = day
        assert _extended(bridge, NEXT) == "\n<|start|>user\nAnd then?<|end|>\n<|start|>assistant\n"
