"""Generated agents: conversations, models that sample any tokenization, SDKs that re-serialise what they send back."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from rollway_gateway.render import ExactSession, Options, Proof, Template
from rollway_gateway.render.bridge import Drift
from rollway_gateway.tree import cut
from rollway_wire.tokens import Trajectory, Turn

Message = dict[str, Any]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("search", "run")
]
_AWKWARD = [
    *("", " ", "\n", "\n\n", "  lead", "trail  ", "H", "AVING", "HAVING", "H AVING", "123", "1 23", "don't", "日本語"),
    *("🙂🇫🇷", "e\u0301", "\u00e9", "\u200b", "{}", '{"a": 1}', "<b>", "<think>", "mark0ofanswer", "MARKa"),
    *("```\ncode\n```", "word " * 40),
]
text = st.one_of(
    st.sampled_from(_AWKWARD),
    st.lists(st.sampled_from(_AWKWARD), max_size=4).map("".join),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20),
)
value = st.recursive(
    st.one_of(text, st.integers(-9, 9), st.floats(-9, 9, allow_nan=False), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text("abc", max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@dataclass(frozen=True)
class Step:
    """One turn: what the model answers, and what the agent says next."""

    answer: Message
    new: list[Message]
    closed: bool


@dataclass(frozen=True)
class Conversation:
    opening: list[Message]
    steps: list[Step]
    tools: list[dict[str, Any]] | None
    seed: int
    """Of the sampled tokenization and of the agent's re-serialising."""


@st.composite
def conversations(draw: st.DrawFn, *, tools: bool, reasoning: bool, system: bool = True) -> Conversation:
    """Linear sessions of 1 to 6 turns. ``tools``, ``reasoning``, ``system``: whether there may be any."""
    opening: list[Message] = [{"role": "system", "content": draw(text)}] if system and draw(st.booleans()) else []
    opening.append({"role": "user", "content": draw(text)})
    with_tools = tools and draw(st.booleans())
    steps = []
    for n in range(draw(st.integers(1, 6))):
        answer: Message = {"role": "assistant", "content": draw(text).replace("<think>", "")}
        if reasoning and draw(st.booleans()):
            answer["reasoning"] = "so " + draw(text).replace("<think>", "")
        calls = draw(st.integers(0, 3)) if with_tools else 0
        if calls:
            answer["content"] = draw(st.sampled_from([None, "", "I look."]))
            answer["tool_calls"] = [_call(f"call{n:03}{i:02}", draw) for i in range(calls)]
            new = [_result(f"call{n:03}{i:02}", draw) for i in range(calls)]
        else:
            new = [{"role": "user", "content": draw(text)}]
        steps.append(Step(answer, new, draw(st.sampled_from([True, True, True, False]))))
    return Conversation(opening, steps, TOOLS if with_tools else None, draw(st.integers(0, 2**32)))


def _call(call_id: str, draw: st.DrawFn) -> Message:
    arguments = draw(st.dictionaries(st.text("abcé", min_size=1, max_size=3), value, max_size=3))
    name = draw(st.sampled_from(["search", "run"]))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _result(call_id: str, draw: st.DrawFn) -> Message:
    long = draw(st.sampled_from([1, 1, 1, 300]))
    return {"role": "tool", "tool_call_id": call_id, "content": draw(text) * long}


def echo(message: Message, rng: random.Random) -> Message:
    """A message as some SDK sends it back. Only what SDKs are known to change."""
    out = json.loads(json.dumps(message))
    content = out.get("content")
    if isinstance(content, str) and content and rng.random() < 0.3:
        at = rng.randrange(len(content)) if message["role"] == "assistant" else 0
        parts = [content[:at], content[at:]] if at else [content]
        out["content"] = [{"type": "text", "text": p} for p in parts]
    if message["role"] != "assistant":
        return out
    if isinstance(out["content"], str):
        out["content"] = rng.choice([out["content"], out["content"].strip()])
    if not out["content"]:
        out["content"] = rng.choice([None, ""])
        if out["content"] is None and rng.random() < 0.5:
            del out["content"]
    for call in out.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        items = list(arguments.items())
        rng.shuffle(items)
        call["function"]["arguments"] = json.dumps(
            dict(items),
            ensure_ascii=rng.random() < 0.5,
            indent=rng.choice([None, 2]),
            separators=rng.choice([None, (",", ":")]),
        )
        call["index"] = 0
    if rng.random() < 0.5:
        out.pop("reasoning", None)
    if rng.random() < 0.5:
        out |= {"refusal": None, "annotations": [], "audio": None, "function_call": None}
        out.setdefault("tool_calls", rng.choice([None, []]))
    return out


def sample(template: Template, answer: Message, closer: int | None, rng: random.Random) -> array[int]:
    """The answer's text in some tokenization, seldom the tokenizer's own, and the closer unless cut short."""
    said = (
        str(answer.get("reasoning", "")) + str(answer.get("content") or "") + json.dumps(answer.get("tool_calls", []))
    )
    said = said.replace(
        "<think>", "<thin>"
    )  # a model that writes its own reasoning mark in a tool call is another test
    ids: array[int] = array("i")
    while said:
        at = rng.randint(1, len(said))
        ids += template.vocabulary.encode(said[:at])
        said = said[at:]
    if closer is not None:
        ids.append(closer)
    return ids


@dataclass
class Run:
    """What became of a conversation."""

    trajectory: Trajectory
    drifts: list[Drift] = field(default_factory=list)


def run(proof: Proof, template: Template, conversation: Conversation, **kwargs: Any) -> Run:
    """Plays a conversation through an exact session, with checks at each turn. ``kwargs``: template arguments."""
    assert proof.bridge is not None
    rng = random.Random(conversation.seed)
    session, options = ExactSession(template, proof.bridge), Options(tools=conversation.tools, kwargs=kwargs)
    spoken: list[Message] = list(conversation.opening)
    turns: list[Turn] = []
    drifts: list[Drift] = []
    for i, step in enumerate(conversation.steps):
        sent = [echo(m, rng) for m in spoken]
        plan = session.plan(sent, options)
        assert plan.prompt_ids is not None, plan.drift
        if plan.extends is not None:
            before = plan.extends.ids()
            assert plan.prompt_ids[: len(before)] == before, "what was sampled is kept, id by id"
            _ends_as_rendered(template, spoken, sent, options, plan.prompt_ids[len(before) :])
        else:
            assert plan.prompt_ids == template.prompt_ids(sent, options), (
                "a branch is what the engine would prompt with"
            )
            assert (plan.drift is not None) == (i > 0), "a known history is extended, or it is said why not"
        drifts += [plan.drift] if plan.drift else []
        ids = sample(template, step.answer, proof.certificate.closer_id if step.closed else None, rng)
        ids = ids or array("i", [proof.certificate.closer_id or 0])
        session.record(
            plan,
            turn_id=f"t{i}",
            prompt_ids=plan.prompt_ids,
            completion_ids=ids,
            answer=json.loads(json.dumps(step.answer)),
        )
        turns.append(_turn(i, plan.prompt_ids, ids))
        spoken += [step.answer, *step.new]
    return Run(cut("s", turns, mode="exact"), drifts)


def _ends_as_rendered(
    template: Template, spoken: Sequence[Message], sent: Sequence[Message], options: Options, added: array[int]
) -> None:
    """What was appended is how the template's own rendering of the whole conversation ends.

    Appended behind a closing token that the sampled ids lack, the rendering has that token too.
    """
    mixed = [s if s["role"] == "assistant" else e for s, e in zip(spoken, sent, strict=True)]
    whole = template.prompt_ids(mixed, options)
    assert whole[len(whole) - len(added) :] == added


def _turn(i: int, prompt: array[int], completion: array[int]) -> Turn:
    return Turn(
        turn_id=f"t{i}", call_id=f"c{i}", index=i, prompt_token_ids=prompt, completion_token_ids=completion,
        logprobs=array("f", [-(k + 1) / 8 for k in range(len(completion))]), finish_reason="stop",
        policy_version_start=1, policy_version_end=1, started_at=float(i), ended_at=i + 0.5,
    )  # fmt: skip


def check_row(run: Run) -> None:
    """One sequence a stretch between drifts; sampled ids verbatim; masks exact."""
    trajectory = run.trajectory
    assert len(trajectory.sequences) == 1 + len(run.drifts)
    assert trajectory.ledger.trained == trajectory.ledger.sampled
    by_id = {t.turn_id: t for t in trajectory.turns}
    for row in trajectory.sequences:
        mask = array("B", bytes(len(row.token_ids)))
        for turn_id in row.turn_ids:
            turn = by_id[turn_id]
            start, size = len(turn.prompt_token_ids), len(turn.completion_token_ids)
            assert row.token_ids[start : start + size] == turn.completion_token_ids
            mask[start : start + size] = array("B", b"\x01" * size)
        assert row.loss_mask == mask
