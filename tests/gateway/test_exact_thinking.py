"""Reasoning read out of sampled tokens: the same however a stream is cut, and as whole answers are read."""

from __future__ import annotations

import itertools
from array import array
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rollway_gateway.exact.reader import Reading, said
from rollway_gateway.exact.thinking import Marks, Thinking, ThinkingCount
from rollway_wire.tokens import IDS

OPEN, CLOSE, CALL, CALL_END, EOS = 1, 2, 3, 4, 5
TOKENS = {
    OPEN: "<think>", CLOSE: "</think>", CALL: "<tool_call>", CALL_END: "</tool_call>", EOS: "<|im_end|>",
    10: "a", 11: " b", 12: "\n", 13: "<", 14: "think", 15: ">", 16: "é", 17: "/",
    18: '{"name": "f", "arguments": {"a": 1}}',
}  # fmt: skip
PLAIN = st.sampled_from([i for i in TOKENS if i >= 10])
MARKS = {
    "qwen3": Marks("qwen3", OPEN, CLOSE, CALL, CALL_END, {EOS: "<|im_end|>"}),
    "deepseek_r1": Marks("deepseek_r1", OPEN, CLOSE, None, None, {}),
}


def _reading(kind: str, *, calls: bool = False, over: bool = False) -> Reading:
    return Reading(marks=MARKS[kind], thinks=True, over=over, calls=calls, forced=False, parses=True)


def _text(ids: list[int]) -> str:
    return "".join(TOKENS[i] for i in ids)


def _streamed(how: Reading, ids: list[int], cuts: list[int], lag: int = 0) -> tuple[str, str, list[tuple[str, str]]]:
    """What deltas say when the ids come cut at ``cuts`` and their text ``lag`` characters later."""
    stream, deltas, shown = how.stream(), [], 0
    for a, b in pairwise([0, *sorted(cuts), len(ids)]):
        last = b == len(ids)
        upto = len(_text(ids[:b])) - (0 if last else lag)
        piece = _text(ids)[shown : max(shown, upto)]
        shown = max(shown, upto)
        deltas.append(stream.feed(piece, ids[a:b], finished=last))
        if last:
            break
    return said(deltas)


@st.composite
def cut_answers(draw: st.DrawFn, tokens: st.SearchStrategy[int]) -> tuple[list[int], list[int], int]:
    ids = draw(st.lists(tokens, min_size=1, max_size=24))
    return ids, draw(st.lists(st.integers(1, len(ids)), max_size=8)), draw(st.sampled_from([0, 0, 1, 7]))


def _muddled(ids: list[int]) -> bool:
    """A call holds something beside its JSON: how vLLM reads its arguments depends on where the stream is cut."""
    for i, at in enumerate(ids):
        if at == CALL:
            inside = list(itertools.takewhile(lambda t: t != CALL_END, ids[i + 1 :]))
            if 18 in inside and inside != [18]:
                return True
    return False


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("kind", MARKS)
@given(cut_answers(st.sampled_from(list(TOKENS))))
def test_a_stream_says_the_same_wherever_it_is_cut(
    kind: str, calls: bool, answer: tuple[list[int], list[int], int]
) -> None:
    """Any tokens, marks in any order: the text, and so every mark in it, may come later than its id."""
    ids, cuts, lag = answer
    assume(not calls or not _muddled(ids))
    how = _reading(kind, calls=calls)
    assert _streamed(how, ids, cuts, lag) == _streamed(how, ids, list(range(1, len(ids))))


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("kind", MARKS)
@given(
    opened=st.booleans(), thought=st.lists(PLAIN, max_size=8), closed=st.booleans(),
    content=st.lists(PLAIN, max_size=8), called=st.booleans(), cuts=st.lists(st.integers(1, 8), max_size=4),
)  # fmt: skip
def test_an_answer_in_order_reads_alike_whole_and_streamed(
    kind: str,
    calls: bool,
    opened: bool,
    thought: list[int],
    closed: bool,
    content: list[int],
    called: bool,
    cuts: list[int],
) -> None:
    """Marks spelled by other tokens are left out: a stream does not take them for marks, a whole answer does."""
    rest = [*content, *([CALL, 18, CALL_END] if called and calls else [])]
    ids = [*([OPEN] if opened else []), *thought, *([CLOSE, *rest] if closed else [])]
    if not ids or any(mark in _text([i for i in ids if i >= 10]) for mark in ("<think>", "</think>")):
        return
    how = _reading(kind, calls=calls)
    reasoning, content_text, found = how.whole(_text(ids))
    whole = said([{"reasoning": reasoning, "content": content_text, "tool_calls": found}])
    streamed = _streamed(how, ids, [c for c in cuts if c < len(ids)])
    if whole[2]:  # white space before a call is shown in a stream only
        assert whole[1].strip() == streamed[1].strip()
        streamed = (streamed[0], whole[1], streamed[2])
    assert whole[0] == streamed[0]
    assert calls or whole == streamed


WHOLE: list[tuple[Thinking, str, str | None, str | None]] = [
    ("qwen3", "a", "a", None),
    ("qwen3", "<think>\na\n</think>\n\nb", "\na\n", "\n\nb"),
    ("qwen3", "a</think>b</think>c<think>d", "a", "bc<think>d"),
    ("qwen3", "a<think>b<tool_call>c</think>d", "ab", "<tool_call>cd"),
    ("qwen3", "<|im_end|>a</think><|im_end|>b", "a", "b"),
    ("qwen3", "</think>", None, None),
    ("deepseek_r1", "a", "a", None),
    ("deepseek_r1", "x<think>a</think>b</think>c", "a", "b</think>c"),
    ("deepseek_r1", "a<tool_call>b", "a<tool_call>b", None),
    ("deepseek_r1", "</think>", "", None),
]


@pytest.mark.parametrize(("kind", "text", "reasoning", "content"), WHOLE)
def test_whole_answers(kind: Thinking, text: str, reasoning: str | None, content: str | None) -> None:
    assert MARKS[kind].whole(text) == (reasoning, content)


OVER = [
    ("qwen3", [10], False), ("qwen3", [CLOSE, 10], True), ("qwen3", [CLOSE, OPEN, 10], False),
    ("qwen3", [OPEN, CLOSE], True), ("qwen3", [OPEN, CALL], True), ("qwen3", [OPEN, CALL, CALL_END], False),
    ("qwen3", [CALL, OPEN], False), ("deepseek_r1", [OPEN, CALL], False), ("deepseek_r1", [OPEN, CLOSE, 10], True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "prompt", "over"), OVER)
def test_a_prompt_says_whether_a_stream_begins_behind_its_reasoning(kind: str, prompt: list[int], over: bool) -> None:
    assert MARKS[kind].over(array(IDS, prompt)) is over


COUNTED = [
    ("qwen3", [OPEN, 10, 11, EOS, CLOSE, 12], 2), ("qwen3", [10, 11], 2), ("qwen3", [10, CALL, 18, CALL_END, 11], 1),
    ("deepseek_r1", [10, CLOSE, 11], 0), ("deepseek_r1", [OPEN, 10, 11, CLOSE, 12, OPEN, 10], 3),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "ids", "tokens"), COUNTED)
def test_tokens_of_reasoning(kind: str, ids: list[int], tokens: int) -> None:
    counted = ThinkingCount(MARKS[kind])
    for i in ids:
        counted.add([i])
    assert counted.tokens == tokens


def test_tokens_without_text_count_only_where_vllm_counts_them() -> None:
    for kind, tokens in (("qwen3", 1), ("deepseek_r1", 2)):
        counted = ThinkingCount(MARKS[kind])
        counted.add([OPEN, 10])
        counted.add([11], shown=False)
        assert counted.tokens == tokens


@given(st.lists(st.sampled_from([0, 1, 2, 256, 65536, 2**24, 2**31 - 1]), max_size=12))
def test_a_stream_begins_behind_the_reasoning_where_the_prompts_last_mark_closes_it(ids: list[int]) -> None:
    """Ids are found in the prompt's bytes, where one may seem to stand across two others."""
    for opens, closes in itertools.permutations([0, 1, 256, 65536, 2**24], 2):
        last = next((i for i in reversed(ids) if i in (opens, closes)), None)
        marks = Marks("deepseek_r1", opens, closes, None, None, {})
        assert marks.over(array(IDS, ids)) is (last == closes)
