"""A store with a journal is a store without one: put away, killed or told again, the trajectories agree."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_gateway.journal.journal import Journal, open_journal
from rollway_gateway.journal.replay import Limits
from rollway_gateway.journal.session_log import SessionLog
from rollway_gateway.record import CallRecord
from rollway_gateway.session import Session
from rollway_gateway.shelf import Shelf
from rollway_gateway.store import SessionStore, trajectory_of
from rollway_wire.codec import trajectory_tree
from rollway_wire.gateway import SessionSpec
from rollway_wire.routing import RoutedExperts
from rollway_wire.tokens import Turn

LIMITS = Limits(messages=600, responses=1 << 20)
SESSIONS = ("a", "b", "c/d", "é")


@dataclass(eq=False)
class Call:
    """Stands in for a call in flight."""

    call_id: str
    aborted: bool = False

    def digest(self) -> bytes:
        return bytes.fromhex(self.call_id)

    def abort(self, reason: str, error: Any) -> None:
        self.aborted = True


@dataclass
class Side:
    """One store and what is in flight there."""

    store: SessionStore
    shelf: Shelf | None = None
    journal: Journal | None = None
    folder: Path | None = None
    calls: dict[tuple[str, str], Call] = field(default_factory=dict)

    async def find(self, session_id: str) -> Session | None:
        return self.store.find(session_id) if self.shelf is None else await self.shelf.fetch(session_id)


async def journaled(folder: Path, *, memory_bytes: int) -> Side:
    def globals_of() -> dict[str, Any]:
        return {"pools": [], "gone": store.gone, "standings": {str(n): said for n, said in log.standings.items()}}

    journal, found = await open_journal(folder, fsync=False, segment_bytes=4096, globals_of=globals_of)
    log = SessionLog(journal, found.standings)
    store = SessionStore(
        limits=LIMITS, log=log, stored=found.entries, stored_calls=found.calls, gone=found.gone,
        memory_bytes=memory_bytes,
    )  # fmt: skip
    journal.start()
    return Side(store, Shelf(store, log, LIMITS), journal, folder)


def turns_of(call: Call, index: int, earlier: list[Turn], what: dict[str, Any]) -> tuple[Turn, ...]:
    """A call's turns, made from drawn numbers alone."""
    if earlier and what["extends"]:
        base = earlier[what["extends"] % len(earlier)]
        prompt = base.prompt_token_ids + base.completion_token_ids + array("i", range(what["new"]))
    else:
        prompt = array("i", range(what["new"] + 1))
    made = []
    for choice in range(what["choices"]):
        ids = array("i", [1000 + index * 10 + choice + k for k in range(what["sampled"])])
        length = len(prompt) + len(ids)
        routed = what["routed"] and RoutedExperts(layers=1, top_k=2, data=array("B", bytes(2 * (length - 1))))
        made.append(
            Turn(
                turn_id=f"{call.call_id}-{choice}", call_id=call.call_id, index=index, choice=choice,
                prompt_token_ids=prompt, completion_token_ids=ids, logprobs=array("f", [-0.5] * len(ids)),
                finish_reason="stop", model="m", worker="w", policy_version_start=1, policy_version_end=2,
                started_at=float(index), ended_at=index + 0.5, routed_experts=routed or None,
                incomplete="no evidence" if what["flawed"] else None,
            )
        )  # fmt: skip
    return tuple(made)


CALLS = st.fixed_dictionaries(
    {
        "extends": st.integers(0, 5), "new": st.integers(1, 4), "choices": st.integers(1, 3),
        "sampled": st.integers(1, 4), "flawed": st.booleans(), "answered": st.booleans(), "heard": st.booleans(),
        "routed": st.booleans(), "message": st.integers(0, 400),
    }
)  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(SESSIONS), st.booleans()),
    st.tuples(st.just("call"), st.sampled_from(SESSIONS), CALLS),
    st.tuples(st.just("call"), st.sampled_from(SESSIONS), CALLS),
    st.tuples(st.just("begin"), st.sampled_from(SESSIONS), st.none()),
    st.tuples(st.just("fail"), st.sampled_from(SESSIONS), st.none()),
    st.tuples(st.just("outcome"), st.sampled_from(SESSIONS), st.booleans()),
    st.tuples(st.just("again"), st.sampled_from(SESSIONS), st.none()),
    st.tuples(st.just("unkept"), st.sampled_from(SESSIONS), st.none()),
    st.tuples(st.just("seal"), st.sampled_from(SESSIONS), st.none()),
    st.tuples(st.just("forget"), st.sampled_from(SESSIONS), st.booleans()),
    st.tuples(st.just("put away"), st.sampled_from(SESSIONS), st.none()),
    st.tuples(st.just("compact"), st.none(), st.none()),
    st.tuples(st.just("kill"), st.none(), st.none()),
)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEPS, max_size=25), memory_bytes=st.sampled_from([0, 1, 12_000]))
def test_what_is_told_again_is_what_was(steps: list[Any], memory_bytes: int) -> None:
    asyncio.run(_run(steps, memory_bytes))


async def _run(steps: list[Any], memory_bytes: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="journal"))
    plain = Side(SessionStore(limits=LIMITS))
    kept = await journaled(root / "0", memory_bytes=memory_bytes)
    try:
        for number, (what, session_id, how) in enumerate(steps):
            if what == "kill":
                kept = await _killed(kept, root / str(number + 1), memory_bytes)
                for sid, key in list(plain.calls):
                    session = plain.store.get(sid)
                    session.calls.discard(plain.calls.pop((sid, key)))
                    session.lost_calls.append(key)
                continue
            if what == "compact":
                assert kept.journal is not None
                await kept.journal.committed()
                await kept.journal.compact(kept.store.entries())
                continue
            for side in (plain, kept):
                await _step(side, what, session_id, how, number)
        await _compare(plain, kept)
        kept = await _killed(kept, root / "last", memory_bytes)
        for session in plain.store:
            for call in list(session.calls):
                session.calls.discard(call)
                session.lost_calls.append(call.call_id)
        await _compare(plain, kept)
        assert kept.journal is not None
    finally:
        assert kept.journal is not None
        await kept.journal.close()
        shutil.rmtree(root)


async def _killed(side: Side, folder: Path, memory_bytes: int) -> Side:
    """The folder as a process leaves it that ends now, with everything written that was waited for."""
    assert side.journal is not None and side.folder is not None
    await side.journal.committed()
    await asyncio.to_thread(_copied, side.folder, folder)
    await side.journal.close()
    return await journaled(folder, memory_bytes=memory_bytes)


def _copied(old: Path, new: Path) -> None:
    new.mkdir()
    for path in sorted(old.iterdir(), reverse=True):  # segments go from the oldest on: what is copied has no gap
        with contextlib.suppress(FileNotFoundError):  # one that is being deleted
            shutil.copy(path, new / path.name)


async def _step(side: Side, what: str, session_id: str, how: Any, number: int) -> None:
    if what == "open":
        if await side.find(session_id) is None:
            side.store.open(SessionSpec(session_id=session_id), keeps_messages=how)
        return
    found = await side.find(session_id)
    if found is None:
        return
    last = found.records[-1] if found.records else None
    if what in ("call", "begin", "fail") and found.state == "open":
        call = Call(f"{number:032x}")
        index = side.store.begin(found, call)
        if what == "begin":
            side.calls[session_id, call.call_id] = call
            return
        record = None
        if what == "call":
            record = _record(call, index, found, how)
        side.store.end(found, call, record)
    elif what == "outcome" and last is not None:
        side.store.outcome(found, last, delivered=how)
    elif what == "again" and last is not None:
        side.store.sampled_again(found, last)
    elif what == "unkept" and last is not None:
        side.store.unkept(found, last, "the disk is full")
    elif what == "seal" and not found.calls:
        side.store.begin_seal(found)
        side.store.seal(found)
    elif what == "forget":
        side.calls = {key: call for key, call in side.calls.items() if key[0] != session_id}
        side.store.forget(found, remember=how)
    elif what == "put away" and side.journal is not None:
        await side.journal.committed()
        side.store.put_away(found)


def _record(call: Call, index: int, session: Session, how: dict[str, Any]) -> CallRecord:
    earlier = [turn for record in session.records for turn in record.turns]
    message = b"x" * how["message"] if session.keeps_messages else None
    return CallRecord(
        call_id=call.call_id, fresh=turns_of(call, index, earlier, how), prompt_tokens=1, completion_tokens=2,
        lost_tokens=index % 2, answered=how["answered"], delivered=how["heard"], request=message, answer=message,
    )  # fmt: skip


async def _compare(plain: Side, kept: Side) -> None:
    for session_id in SESSIONS:
        one, two = plain.store.find(session_id), await kept.find(session_id)
        assert (one is None) == (two is None), session_id
        assert plain.store.is_gone(session_id) == kept.store.is_gone(session_id)
        if one is None or two is None:
            continue
        assert (one.state, one.calls_begun, one.kept_bytes) == (two.state, two.calls_begun, two.kept_bytes)
        assert [(r.request, r.answer) for r in one.records] == [(r.request, r.answer) for r in two.records]
        assert _tree(one) == _tree(two)


def _tree(session: Session) -> dict[str, Any]:
    tree = trajectory_tree(session.trajectory or trajectory_of(session))
    if session.trajectory is not None:
        assert tree == trajectory_tree(trajectory_of(session))
    return tree


async def test_thousands_of_open_sessions_stay_within_the_memory_budget(tmp_path: Path) -> None:
    """All can be called, all come back; what is in memory is the budget and what was just used."""
    budget = 200_000
    side = await journaled(tmp_path / "j", memory_bytes=budget)
    assert side.journal is not None
    how = {"extends": 0, "new": 200, "choices": 1, "sampled": 20, "flawed": False, "routed": False}
    try:
        for n in range(2000):
            session, _ = side.store.open(SessionSpec(session_id=f"s{n}"), keeps_messages=False)
            call = Call(f"{n:032x}")
            index = side.store.begin(session, call)
            record = CallRecord(
                call_id=call.call_id, fresh=turns_of(call, index, [], how), prompt_tokens=1, completion_tokens=1,
                lost_tokens=0, answered=True,
            )  # fmt: skip
            side.store.end(session, call, record)
            if n % 10 == 9:
                await side.journal.committed()
        sizes = [session.size for session in side.store]
        assert sum(sizes) < budget + 20 * max(sizes)
        assert len(sizes) + len(side.store.stored()) == 2000
        for n in range(0, 2000, 97):
            found = await side.find(f"s{n}")
            assert found is not None and trajectory_of(found).ledger.trained == 20
    finally:
        await side.journal.close()
