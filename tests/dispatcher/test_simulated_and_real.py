"""The simulated cluster against the real thing: one script for both, and what must agree agrees.

The simulation says in which order the agents end. The real dispatcher runs real agent processes that end when told to,
in that order, and each is told only when the dispatcher stands where the simulated one stood: the same rollouts
running, the same results there. Times are not compared: what waits for one (hedge, retry) is waited for, and the clock
is put forward to the deadline.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.dispatcher.cluster import Cluster, Fate
from benchmarks.dispatcher.simulated_batch import Outcomes, Simulation
from rollway_dispatcher import engine
from rollway_dispatcher.clock import Clock
from rollway_dispatcher.retry import FIRST_DELAY_S
from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.batch import Policy
from rollway_wire.failures import FailureType
from rollway_wire.gateway import EngineLoad
from tests.dispatcher.harness import Api, agent_pids, runs, serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.dispatcher.test_agentcore import StartEmulator, runtime, sessions
from tests.kit.deadlines import eventually

Make = Callable[..., dict[str, Any]]
Result = tuple[str, str, str | None, int]
"""Rollout, state, type of failure, attempt."""
DEADLINE_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """Groups of two or so, and when each rollout's attempts end: (seconds of work, how)."""

    groups: int
    n: int
    room: int
    policy: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, list[tuple[float, Literal["ok", "raise", "die", "hang"]]]]
    begun: int
    """Rollouts that run at first."""
    starts: int
    lost: dict[str, str] = field(default_factory=dict)
    """Rollouts that do not succeed, and why."""
    max_attempts: int = 3
    engines: int | None = None
    """Rollouts that the engines serve; full when more are alive."""


@dataclass(frozen=True)
class Turn:
    """Something happens, and where the dispatcher stands just before."""

    what: str
    who: str
    running: frozenset[str]
    results: frozenset[Result]


def simulated(script: Script) -> tuple[list[Turn], Outcomes]:
    turns: list[Turn] = []
    at = [0.0]

    def fate(rollout_id: str, attempt: int) -> Fate:
        work, end = script.ends[rollout_id.removeprefix("b/")][attempt - 1]
        return Fate(cold_start_s=0.01, work_s=work, end=end, dies_after_s=work)

    def watch(what: str, who: str) -> None:
        assert made.now - at[-1] > 0.5, "turns are well apart, or their order says nothing"
        at.append(made.now)
        turns.append(
            Turn(what, who.removeprefix("b/"), frozenset(map(short, made.running())), frozenset(made_so_far()))
        )

    def made_so_far() -> list[Result]:
        return [(short(r), *rest) for r, *rest in made.out.results]  # type: ignore[misc]

    cluster = Cluster(
        groups=script.groups, n=script.n, max_concurrent=script.room, max_attempts=script.max_attempts, tps=1000,
        window_s=0, engine_slots=script.engines or 1000, holds_at=1.0 if script.engines else None,
    )  # fmt: skip
    made = Simulation(cluster, Policy(**script.policy), fate, watch)
    return turns, made.run()


def short(rollout_id: str) -> str:
    """Without the batch's id."""
    return rollout_id.split("/", 1)[1]


def seen(results: list[dict[str, Any]]) -> list[Result]:
    rollouts = [r["rollout"] for r in results]
    return [(short(r["rollout_id"]), r["state"], r["failure"] and r["failure"]["type"], r["attempt"]) for r in rollouts]


class Conductor:
    """Brings the real dispatcher through the simulation's turns."""

    def __init__(self, api: Api, batch_id: str, orders: Path, gateway: ScriptedGateway) -> None:
        self._api, self._batch_id, self._orders, self._gateway = api, batch_id, orders, gateway

    async def play(self, turns: list[Turn]) -> None:
        for turn in turns:
            await self._reach(turn)
            if turn.what in ("full", "free"):
                await self._press(turn.what == "full")
            else:
                await self._tell(turn)

    async def _reach(self, turn: Turn) -> None:
        stands: Any = None

        async def there() -> bool:
            nonlocal stands
            results = frozenset(seen((await self._api.page(self._batch_id, trajectories="false"))["results"]))
            views = await self._api.rollouts(self._batch_id)
            stands = frozenset(short(r["rollout_id"]) for r in views if r["state"] == "running"), results
            under_way = any(r["state"] in ("starting", "collecting") for r in views)
            return not under_way and bool(stands == (turn.running, turn.results))

        try:
            await eventually(there, "the same turn", 150)
        except TimeoutError:
            raise AssertionError(f"before {turn}, the real dispatcher stands at {stands}") from None

    async def until_running(self, who: set[str]) -> None:
        async def there() -> bool:
            views = await self._api.rollouts(self._batch_id)
            running = {short(r["rollout_id"]) for r in views if r["state"] == "running"}
            return running == who and not any(r["state"] in ("starting", "collecting") for r in views)

        await eventually(there, f"{who} run", 150)

    async def _view(self, who: str) -> dict[str, Any]:
        return next(r for r in await self._api.rollouts(self._batch_id) if short(r["rollout_id"]) == who)

    async def _tell(self, turn: Turn) -> None:
        before = await self._view(turn.who)
        order = self._orders / before["session_id"]
        await asyncio.to_thread(order.with_suffix(".new").write_text, turn.what)
        await asyncio.to_thread(order.with_suffix(".new").rename, order)
        if turn.what == "die":

            async def noticed() -> bool:
                view = await self._view(turn.who)
                return bool(view["attempt"] > before["attempt"] or view["state"] in ("failed", "cancelled"))

            await eventually(noticed, f"the death of {turn.who} is noticed", 150)
            # The simulation's next turn comes after the retry is due.
            await asyncio.sleep(FIRST_DELAY_S[FailureType.AGENT_DIED] * 2 ** (before["attempt"] - 1) + 0.1)

    async def _press(self, full: bool) -> None:
        load = EngineLoad(worker_id="w", running=1, waiting=100 if full else 0, kv_usage=0.5)
        self._gateway.loads = [load.model_dump()]
        asked = self._gateway.load_asked
        await eventually(lambda: self._gateway.load_asked >= asked + 2, "the engines were asked", 150)


OK: Any = "ok"
SCRIPTS = {
    "groups go in order, one place after another": Script(
        groups=3, n=2, room=3,
        begun=3, starts=6,
        ends={"g0/0": [(10, OK)], "g0/1": [(30, OK)], "g1/0": [(20, OK)], "g1/1": [(50, OK)], "g2/0": [(45, OK)],
              "g2/1": [(60, OK)]},
    ),
    "a retry goes before a new group": Script(
        groups=3, n=2, room=2,
        begun=2, starts=7,
        ends={"g0/0": [(10, "die"), (30, OK)], "g0/1": [(20, OK)], "g1/0": [(50, OK)], "g1/1": [(100, OK)],
              "g2/0": [(80, OK)], "g2/1": [(90, OK)]},
    ),
    "a gang starts whole": Script(
        groups=3, n=3, room=5, policy={"admission": "gang"},
        begun=3, starts=9,
        ends={f"g{g}/{i}": [(10.0 * (i + 1) + g, OK)] for g in range(3) for i in range(3)},
    ),
    "over-sampling stops the surplus": Script(
        groups=2, n=2, room=6, policy={"extra": 1},
        begun=6, starts=6, lost={"g0/0": "cancelled", "g1/1": "cancelled"},
        ends={"g0/0": [(100, OK)], "g0/1": [(10, OK)], "g0/2": [(30, OK)], "g1/0": [(20, OK)], "g1/1": [(100, OK)],
              "g1/2": [(40, OK)]},
    ),
    "an extra takes the place of a failure": Script(
        groups=2, n=2, room=4, policy={"extra": 1, "extra_start": "straggler"}, max_attempts=1,
        begun=4, starts=6, lost={"g0/0": "agent_error", "g1/0": "agent_died"},
        ends={"g0/0": [(10, "raise")], "g0/1": [(40, OK)], "g0/2": [(20, OK)], "g1/0": [(20, "die")],
              "g1/1": [(60, OK)], "g1/2": [(80, OK)]},
    ),
    "only the last straggler is hedged": Script(
        groups=2, n=2, room=8, policy={"extra": 1, "extra_start": "straggler"},
        begun=4, starts=5, lost={"g0/2": "cancelled", "g1/1": "cancelled"},
        ends={"g0/0": [(1, OK)], "g0/1": [(2, OK)], "g1/0": [(3, OK)], "g1/1": [(1000, OK)], "g1/2": [(10, OK)]},
    ),
    "a poison input is quarantined": Script(
        groups=2, n=3, room=6, policy={"quarantine_after": 2}, max_attempts=2,
        begun=6, starts=7, lost={f"g0/{i}": "cancelled" for i in range(3)},
        ends={"g0/0": [(10, "die"), (1000, OK)], "g0/1": [(20, "die")], "g0/2": [(1000, OK)], "g1/0": [(30, OK)],
              "g1/1": [(40, OK)], "g1/2": [(50, OK)]},
    ),
    "full engines hold admission back": Script(
        groups=3, n=2, room=3, engines=2,
        begun=3, starts=6,
        ends={f"g{g}/{i}": [(20.0 + 20 * g + 10 * i, OK)] for g in range(3) for i in range(2)},
    ),
    "the deadline drops what is not there": Script(
        groups=3, n=2, room=3, policy={"deadline_s": DEADLINE_S},
        begun=3, starts=5,
        lost={"g1/0": "timed_out", "g1/1": "timed_out", "g2/0": "timed_out", "g2/1": "cancelled"},
        ends={"g0/0": [(5, OK)], "g0/1": [(6, OK)], **{r: [(1000, OK)] for r in ("g1/0", "g1/1", "g2/0", "g2/1")}},
    ),
}  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_real_dispatcher_does_what_the_simulated_one_does(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, tmp_path: Path, runs_dir: Path,
    state_path: Path, name: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    script = SCRIPTS[name]
    clock, ahead_s = Clock.now, [0.0]
    monkeypatch.setattr(Clock, "now", lambda self: clock(self) + ahead_s[0])
    monkeypatch.setattr(engine, "IDLE_S", 0.5)  # however far away it thinks that the deadline is
    turns, expected = simulated(script)
    assert (len(turns[0].running), expected.sessions) == (script.begun, script.starts)
    assert {short(r): kind for r, _, kind, _ in expected.results if kind} == script.lost
    orders = tmp_path / "orders"
    orders.mkdir()
    settings = settings.model_copy(update={"max_concurrent": script.room, "pressure_interval_s": 0.1})
    async with serving(settings) as api:
        made = await api.submit(
            batch(
                [{"reward": 1, "obeys": str(orders)}] * script.groups, n=script.n, policy=script.policy,
                limits={"max_attempts": script.max_attempts},
            )
        )  # fmt: skip
        conductor = Conductor(api, made["batch_id"], orders, gateway)
        await conductor.play(turns)
        if "deadline_s" in script.policy:
            await conductor.until_running({r for r, why in script.lost.items() if why == "timed_out"})
            ahead_s[0] = script.policy["deadline_s"]
        results = await api.results(made["batch_id"])

        async def all_stopped() -> bool:
            return (await api.http.get("/v1/sessions")).json() == [] and not agent_pids(state_path)

        await eventually(all_stopped, "every session is stopped", 150)
    agree(expected, results)
    assert Counter(runs(runs_dir).values()) == {1: expected.sessions}, "as many starts, and each agent ran once"


def agree(expected: Outcomes, results: list[dict[str, Any]]) -> None:
    """Results, the order of the good ones and so of groups, and the order of admission."""
    there = [(short(r), *rest) for r, *rest in expected.results]
    here = seen(results)
    assert sorted(map(repr, here)) == sorted(map(repr, there))
    assert [r for r in here if r[1] == "succeeded"] == [r for r in there if r[1] == "succeeded"]
    starts = [short(r) for r in expected.order]
    begun = {r for r, _, _, attempt in there if starts.count(r) == attempt}  # not waiting for another attempt
    admitted = {short(r["rollout"]["rollout_id"]): r["rollout"]["timings"]["admitted_at"] for r in results}
    assert {r for r, at in admitted.items() if at is not None} == begun
    order = [r for i, r in enumerate(starts) if r in begun and r not in starts[i + 1 :]]
    assert sorted(order, key=lambda r: admitted[r]) == order


@pytest.mark.parametrize(("quota", "refused"), [(1000.0, False), (2.0, True)], ids=["within-quota", "over-quota"])
async def test_a_runtime_over_its_quota_delays_starts_and_neither_loses_nor_doubles_one(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator, runs_dir: Path, quota: float, refused: bool
) -> None:
    """Both send calls faster than the runtime takes them, and come to the same starts and results."""
    cluster = Cluster(
        groups=4, n=2, max_concurrent=8, tps=50, quota_tps=quota, quota_burst=2 if refused else 1000, cold_start_s=0.1
    )
    made = Simulation(cluster, Policy(), lambda *_: Fate(cold_start_s=0.1, work_s=1.0)).run()
    cloud = await emulator(tps=quota, burst=2 if refused else 1000)
    async with serving(settings) as api:
        submitted = await api.submit(
            batch([{"reward": 1}] * 4, n=2, runtime=runtime(cloud, tps_limit=50), limits={"max_attempts": 1})
        )
        results = await api.results(submitted["batch_id"])

        async def none_left() -> bool:
            return not await sessions(cloud)

        await eventually(none_left, "every session is stopped", 150)
    assert sorted(seen(results)) == sorted((short(r), *rest) for r, *rest in made.results)
    assert {r[1:] for r in seen(results)} == {("succeeded", None, 1)}
    assert made.sessions == len(runs(runs_dir)) == 8
    assert (made.refused > 0) == ("ThrottlingException" in cloud.logs()) == refused
