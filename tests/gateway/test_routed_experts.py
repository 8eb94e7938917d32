"""Routed experts through the gateway: every row that an engine reports is kept once and stands at its token, an agent
sees none of it, and where there is none there is a reason."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_gateway.capture.ask import read_ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.routing import Reported, read_rows
from rollway_gateway.capture.stream import Fingerprint, StreamFilter
from rollway_wire.codec import MEDIA_TYPE, load_packed, load_trajectory, trajectory_tree
from rollway_wire.tokens import Trajectory
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.shapes import events_of
from tests.kit.scripted_engine import Reply, ScriptedEngine, templated_ids
from tests.kit.scripted_model import write_model
from tests.kit.scripted_router import ScriptedRouter

CHAT, TEXT, SKIP = "/v1/chat/completions", "/v1/completions", "routed_experts_prompt_start"
HI = [{"role": "user", "content": "Hi"}]
SILENT = "the engine returned no routed experts"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as running:
        running.router = ScriptedRouter()
        yield running


@pytest.fixture
async def gateway(engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    async with running_gateway() as running:
        (worker,) = await running.add(engine, routed_experts=True)
        assert worker["routed_experts"] is True
        yield running


async def ask(
    gateway: RunningGateway, ticket: dict[str, Any], messages: list[dict[str, Any]], **asked: Any
) -> httpx.Response:
    body = {"model": "m", "messages": messages, **asked}
    return await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)


async def talk(
    gateway: RunningGateway, ticket: dict[str, Any], turns: int, *, streams: tuple[int, ...] = (), **asked: Any
) -> list[dict[str, Any]]:
    """A conversation of so many turns; ``streams``: those that are streamed. Returns the messages."""
    messages = list(HI)
    for i in range(turns):
        answer = await ask(gateway, ticket, messages, stream=i in streams, **asked)
        assert answer.status_code == 200, answer.text
        assert '"routed_experts":"' not in answer.text.replace(" ", ""), "the agent sees rows"
        messages += [{"role": "assistant", "content": said(answer)}, {"role": "user", "content": f"and {i}?"}]
    return messages


def said(answer: httpx.Response) -> str:
    if answer.headers["content-type"].startswith("text/event-stream"):
        chunks = [e for e in events_of(answer.text) if isinstance(e, dict) and e["choices"]]
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def rows_stored(made: Trajectory) -> int:
    return sum(t.routed_experts.rows for t in made.turns if t.routed_experts is not None)


def skips(engine: ScriptedEngine) -> list[int | None]:
    return [body.get(SKIP) for _, body in engine.requests]


def assert_routed(made: Trajectory, router: ScriptedRouter) -> None:
    """Every sequence has all its rows, and each is the router's."""
    assert made.incomplete is None
    for s in made.sequences:
        whole = made.routed_experts(s)
        assert s.unrouted is None and whole is not None
        assert (whole.layers, whole.top_k) == (router.layers, router.top_k)
        assert whole.data == router.rows(s.token_ids[:-1])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("knows", [True, False])
async def test_an_exact_session_is_sent_and_keeps_each_row_once(
    gateway: RunningGateway, engine: ScriptedEngine, wide: bool, knows: bool
) -> None:
    """Also before an engine that cannot leave rows out: the known ones are dropped."""
    engine.router = router = ScriptedRouter(3, 4, wide=wide, skips=knows)
    engine.script(*(Reply(text) for text in ("one", "two", "three", "four")))
    ticket = await gateway.open()
    await talk(gateway, ticket, 4)
    made = await gateway.seal(ticket["session_id"])
    assert (made.mode, len(made.sequences)) == ("exact", 1)
    assert [path for path, _ in engine.requests] == [CHAT, TEXT, TEXT, TEXT]
    assert skips(engine) == [None, *[t.length - 1 for t in made.turns[:-1]]]
    assert_routed(made, router)
    assert rows_stored(made) == len(made.sequences[0].token_ids) - 1
    assert [t.routed_experts.after for t in made.turns if t.routed_experts] == [
        None, *[t.turn_id for t in made.turns[:-1]]
    ]  # fmt: skip


async def test_a_mirrored_session_keeps_each_row_once(engine: ScriptedEngine) -> None:
    assert engine.router is not None
    async with running_gateway(mode="mirror") as gateway:
        await gateway.add(engine, routed_experts=True)
        ticket = await gateway.open()
        await talk(gateway, ticket, 4)
        made = await gateway.seal(ticket["session_id"])
    assert skips(engine) == [None] * 4
    assert len(made.sequences) == 1
    assert_routed(made, engine.router)
    assert rows_stored(made) == len(made.sequences[0].token_ids) - 1


async def test_workers_given_at_the_start_are_as_the_setting_says(engine: ScriptedEngine) -> None:
    async with running_gateway(workers=(engine.url,), routed_experts=True) as gateway:
        (pool,) = (await gateway.http.get("/v1/pools")).json()
    assert [w["routed_experts"] for w in pool["workers"]] == [True]


async def test_branches_share_the_rows_of_their_common_prefix(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    assert engine.router is not None
    engine.script(Reply("a long answer that is shared"), Reply("left"), Reply("right"))
    ticket = await gateway.open()
    messages = await talk(gateway, ticket, 2)
    assert (await ask(gateway, ticket, [*messages[:2], {"role": "user", "content": "rather this?"}])).is_success
    made = await gateway.seal(ticket["session_id"])
    assert len(made.sequences) == 2
    assert_routed(made, engine.router)
    first, left, right = made.turns
    common = next(i for i, (a, b) in enumerate(zip(left.prompt_token_ids, right.prompt_token_ids, strict=False))
                  if a != b)  # fmt: skip
    assert rows_stored(made) == left.length - 1 + right.length - 1 - common
    assert first.routed_experts is not None


async def test_without_the_workers_word_nothing_is_kept_and_nothing_shown(engine: ScriptedEngine) -> None:
    async with running_gateway() as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        await talk(gateway, ticket, 2)
        made = await gateway.seal(ticket["session_id"])
    assert skips(engine) == [None, None]
    assert all(t.routed_experts is None and t.unrouted is None for t in made.turns)
    assert all(s.routing is None and s.unrouted is None for s in made.sequences)


async def test_a_streamed_turn_has_a_reason_until_a_later_prompt_brings_its_rows(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    assert engine.router is not None
    ticket = await gateway.open()
    await talk(gateway, ticket, 3, streams=(1, 2))
    before = await gateway.trajectory(ticket["session_id"])
    assert [t.unrouted for t in before.turns] == [None, f"{SILENT} with a stream", f"{SILENT} with a stream"]
    (s,) = before.sequences
    assert (s.routing, s.unrouted) == (None, f"turn {before.turns[2].turn_id}: {SILENT} with a stream")
    assert before.incomplete is None and s.trained_tokens == sum(len(t.completion_token_ids) for t in before.turns)
    await talk(gateway, ticket, 4, streams=(0, 1, 2))
    made = await gateway.seal(ticket["session_id"])
    last = next(s for s in made.sequences if made.turns[-1].turn_id in s.turn_ids)
    whole = made.routed_experts(last)
    assert whole is not None and whole.data == engine.router.rows(last.token_ids[:-1])


@pytest.mark.parametrize("n", [1, 3])
async def test_an_answer_without_rows_trains_and_says_so(
    gateway: RunningGateway, engine: ScriptedEngine, n: int
) -> None:
    engine.script(Reply("x", drop=frozenset({"routed_experts"})))
    ticket = await gateway.open()
    await talk(gateway, ticket, 1, n=n)
    made = await gateway.seal(ticket["session_id"])
    assert [t.unrouted for t in made.turns] == [SILENT] * n
    assert [t.incomplete for t in made.turns] == [None] * n
    assert made.ledger.trained == made.ledger.sampled > 0


async def test_choices_share_the_rows_of_their_prompt(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    assert engine.router is not None
    ticket = await gateway.open()
    await talk(gateway, ticket, 1, n=3)
    made = await gateway.seal(ticket["session_id"])
    assert len(made.sequences) == 3
    assert_routed(made, engine.router)
    prompt = len(made.turns[0].prompt_token_ids)
    assert [t.routed_experts.start for t in made.turns if t.routed_experts] == [0, prompt - 1, prompt - 1]


async def test_a_text_completion_keeps_its_rows_too(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    assert engine.router is not None
    ticket = await gateway.open()
    async with gateway.openai(ticket) as client:
        answer = await client.completions.create(model="m", prompt=["Once", "Twice"], max_tokens=5)
    assert all(c.model_extra is not None and c.model_extra["routed_experts"] is None for c in answer.choices)
    made = await gateway.seal(ticket["session_id"])
    assert len(made.sequences) == 2
    assert_routed(made, engine.router)


async def test_an_agent_that_asks_for_rows_gets_those_it_asked_for(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    assert engine.router is not None
    ticket = await gateway.open()
    answer = await ask(gateway, ticket, HI, **{SKIP: 2})
    (choice,) = answer.json()["choices"]
    shown = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
    (turn,) = (await gateway.trajectory(ticket["session_id"])).turns
    assert shown.shape == (turn.length - 1 - 2, 2, 2)
    assert turn.unrouted == "routed experts were asked for from row 2 on, the session holds 0"
    await ask(gateway, ticket, HI, **{SKIP: 0})
    _, second = (await gateway.seal(ticket["session_id"])).turns
    assert second.routed_experts is not None and second.routed_experts.start == 0
    assert skips(engine) == [2, 0]


async def test_an_answer_that_is_not_captured_shows_no_rows_either(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket = await gateway.open()
    body = {"model": "m", "prompt": [300, 301], "echo": True, "max_tokens": 3}
    answer = await gateway.http.post(ticket["base_url"] + "/completions", json=body)
    assert answer.json()["choices"][0]["routed_experts"] is None
    (turn,) = (await gateway.seal(ticket["session_id"])).turns
    assert turn.incomplete is not None and turn.routed_experts is None


async def test_an_answer_that_was_cut_goes_on_with_its_rows(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """The second part is asked for no row that the first one brought."""
    assert engine.router is not None
    engine.script(Reply("a half", finish_reason="abort"), Reply(" and the rest"), Reply("more"))
    ticket = await gateway.open()
    await talk(gateway, ticket, 2)
    made = await gateway.seal(ticket["session_id"])
    prompt, half = len(templated_ids(HI)), len(b"a half")
    assert skips(engine) == [None, prompt + half - 1, made.turns[0].length - 1]
    assert len(made.sequences) == 1
    assert_routed(made, engine.router)


async def test_a_cut_answer_without_rows_is_asked_for_all_of_them(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """As one whose beginning an engine did not route to its end."""
    assert engine.router is not None
    engine.script(Reply("a half", finish_reason="abort", drop=frozenset({"routed_experts"})), Reply(" and the rest"))
    ticket = await gateway.open()
    await talk(gateway, ticket, 1)
    made = await gateway.seal(ticket["session_id"])
    assert skips(engine) == [None, None]
    assert_routed(made, engine.router)


async def test_under_new_weights_all_rows_are_asked_for_again(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """And each token keeps the row that it was sampled with."""
    old, new = ScriptedRouter(weights=1), ScriptedRouter(weights=2)
    ticket = await gateway.open()
    messages = list(HI)
    for version, router in [(1, old), (1, old), (2, new), (2, new)]:
        engine.router = router
        await gateway.http.post("/v1/pools/default/open", json={"policy_version": version})
        answer = await ask(gateway, ticket, messages)
        messages += [{"role": "assistant", "content": said(answer)}, {"role": "user", "content": "on"}]
    made = await gateway.seal(ticket["session_id"])
    t = made.turns
    assert skips(engine) == [None, t[0].length - 1, None, t[2].length - 1]
    (s,) = made.sequences
    whole, cut = made.routed_experts(s), (t[1].length - 1) * 4
    assert whole is not None
    assert whole.data == old.rows(s.token_ids[:-1])[:cut] + new.rows(s.token_ids[:-1])[cut:]


async def test_an_undelivered_answer_keeps_its_rows_for_what_goes_on_from_it(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """The agent got it after all, by a way the gateway does not see: its tokens are context, and routed."""
    assert engine.router is not None
    ticket = await gateway.open()
    messages = await talk(gateway, ticket, 2)
    session = gateway.inside.store.get(ticket["session_id"])
    session.records[0].delivered = False
    made = await gateway.seal(ticket["session_id"])
    (s,) = made.sequences
    assert s.turn_ids == (made.turns[1].turn_id,) and made.turns[0].incomplete is not None
    assert_routed(made, engine.router)
    assert len(messages) == 5


async def test_rows_travel_packed_and_as_json_alike(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.router = ScriptedRouter(48, 8)
    ticket = await gateway.open()
    await talk(gateway, ticket, 3)
    url = f"/v1/sessions/{ticket['session_id']}/seal"
    packed = (await gateway.http.post(url, headers={"accept": MEDIA_TYPE})).content
    made = load_trajectory(load_packed(packed))
    assert_routed(made, engine.router)
    rows = 48 * 8 * rows_stored(made)
    assert rows < len(packed) < rows + 10_000
    assert trajectory_tree(load_trajectory((await gateway.http.post(url)).json())) == trajectory_tree(made)


def test_a_stream_that_brings_rows_with_a_choices_last_chunk_gives_them_up() -> None:
    """As vLLM's route for token ids does. The chunk that the agent sees has no such field."""
    evidence = Evidence(1)
    events = StreamFilter(read_ask("chat", b'{"messages": [], "stream": true}', {}), evidence, Fingerprint())
    delta: dict[str, Any] = {"index": 0, "delta": {"content": "a"}, "finish_reason": None, "token_ids": [5]}
    last = {"index": 0, "delta": {}, "finish_reason": "stop", "token_ids": [6], "routed_experts": GOOD}
    shown = b"".join(events.block(b"data: " + json.dumps({"choices": [c]}).encode()) for c in (delta, last))
    shown += events.block(b"data: [DONE]")
    assert evidence.choices[0].routed_experts == GOOD
    assert b"routed_experts" not in shown and b'"finish_reason":"stop"' in shown


# -- the engine's form


def npy(rows: Any, **how: Any) -> str:
    file = io.BytesIO()
    np.lib.format.write_array(file, rows, allow_pickle=False, **how)
    return base64.b64encode(file.getvalue()).decode()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 300), st.integers(1, 70), st.integers(1, 9), st.sampled_from(["u1", "<u2"]),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_what_numpy_writes_is_read_as_numpy_reads_it(
    rows: int, layers: int, top_k: int, dtype: str, version: tuple[int, int], seed: int
) -> None:
    data = np.random.default_rng(seed).integers(0, 256 if dtype == "u1" else 65536, (rows, layers, top_k)).astype(dtype)
    block = read_rows([Reported(npy(data, version=version), 0, rows + 1)])
    assert (block.first, block.layers, block.top_k, block.end) == (0, layers, top_k, rows)
    assert block.data.tolist() == data.ravel().tolist()
    assert block.since(rows // 2).tolist() == data[rows // 2 :].ravel().tolist()


ROWS = np.arange(24, dtype="u1").reshape(4, 3, 2)
GOOD = npy(ROWS)
BROKEN: dict[str, tuple[str, str]] = {
    "not base64": ("Rows!", "not base64"),
    "nothing": ("", "not a .npy file"),
    "no file": (base64.b64encode(bytes(200)).decode(), "not a .npy file"),
    "a cut file": (base64.b64encode(base64.b64decode(GOOD)[:-1]).decode(), "bytes of routed experts for shape"),
    "a cut header": (base64.b64encode(base64.b64decode(GOOD)[:40]).decode(), "not a .npy file"),
    "more behind it": (base64.b64encode(base64.b64decode(GOOD) + b"x").decode(), "bytes of routed experts for shape"),
    "another type": (npy(ROWS.astype("<i4")), "uint8 or uint16"),
    "floats": (npy(ROWS.astype("<f2")), "uint8 or uint16"),
    "big-endian": (npy(ROWS.astype(">u2")), "uint8 or uint16"),
    "columns first": (npy(np.asfortranarray(ROWS)), "uint8 or uint16"),
    "two axes": (npy(ROWS.reshape(4, 6)), "uint8 or uint16"),
    "no rows": (npy(ROWS[:0]), "bytes of routed experts for shape"),
    "a row missing": (npy(ROWS[1:]), "3 rows of routed experts for 5 tokens from row 0 on"),
    "a row too many": (npy(np.concatenate([ROWS, ROWS[:1]])), "5 rows of routed experts for 5 tokens"),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_any_other_form_is_a_reason(what: str) -> None:
    text, why = BROKEN[what]
    with pytest.raises(ValueError, match=why):
        read_rows([Reported(text, 0, 5)])


@pytest.mark.parametrize("what", ["not base64", "a row missing"])
async def test_rows_that_cannot_be_read_cost_the_turn_its_routing_alone(
    gateway: RunningGateway, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(ScriptedRouter, "text", lambda *_: BROKEN[what][0])
    ticket = await gateway.open()
    await talk(gateway, ticket, 1)
    made = await gateway.seal(ticket["session_id"])
    (turn,) = made.turns
    assert turn.incomplete is None and made.incomplete is None and made.ledger.trained == made.ledger.sampled > 0
    assert turn.unrouted is not None and made.sequences[0].unrouted == f"turn {turn.turn_id}: {turn.unrouted}"


def test_parts_of_one_answer_join_where_they_meet_and_not_over_a_gap() -> None:
    first, rest = Reported(npy(ROWS[:2]), 0, 3), Reported(npy(ROWS[2:]), 2, 5)
    assert read_rows([first, rest]).data.tolist() == ROWS.ravel().tolist()
    assert read_rows([first, Reported(GOOD, 2, 5)]).data.tolist() == ROWS.ravel().tolist()
    with pytest.raises(ValueError, match="rows 2 to 3 are missing"):
        read_rows([first, Reported(npy(ROWS[3:]), 3, 5)])
    with pytest.raises(ValueError, match="changed their form"):
        read_rows([first, Reported(npy(ROWS[2:].astype("<u2")), 2, 5)])
