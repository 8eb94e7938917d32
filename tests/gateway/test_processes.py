"""Several gateway processes as one: sessions live apart, the admin routes answer for all, a lost process comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from rollway_gateway.processes import merged
from rollway_local.listening import listening_url
from rollway_wire.gateway import PoolState, WorkerLedger, WorkerState
from rollway_wire.placement import home_of
from tests.kit.deadlines import eventually
from tests.kit.idle_connection import idle_connection
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.services import Service, Services

pytestmark = pytest.mark.timeout(300)  # two processes and their supervisor are started, some of them several times

HI: list[Any] = [{"role": "user", "content": "hi"}]
ADMIN = "an admin key of twenty-four"
PLACES = ["0", "1"]


@dataclass
class Two:
    """Two processes and their supervisor."""

    supervisor: Service
    admin: httpx.AsyncClient
    engine: ScriptedEngine

    async def ticket(self, home: str) -> dict[str, Any]:
        """Of a new session that lives in this process."""
        answer = await self.admin.post("/v1/sessions", json={"session_id": _id_for(home)})
        assert answer.status_code == 201, answer.text
        ticket: dict[str, Any] = answer.json()
        return ticket

    def pids(self) -> dict[str, int]:
        """Of those that live, by place: the supervisor starts them in threads, in any order."""
        tasks = Path(f"/proc/{self.supervisor.pid}/task").glob("*/children")
        found = {_place(pid): int(pid) for task in tasks for pid in _read(task).split()}
        return {place: pid for place, pid in found.items() if place in PLACES}


def _id_for(home: str) -> str:
    return next(s for i in range(1000) if home_of(s := f"s-{os.urandom(4).hex()}-{i}", PLACES) == home)


def _read(path: Path) -> str:
    """'' once its process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _place(pid: str) -> str:
    """Of a gateway process; '' of one that has ended, or does not run its program yet."""
    environment = dict(entry.partition("=")[::2] for entry in _read(Path(f"/proc/{pid}/environ")).split("\0"))
    return environment.get("ROLLWAY_GATEWAY_PROCESS", "")


def _alive(pids: dict[str, int]) -> list[int]:
    return [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()]


@pytest.fixture
async def two(services: Services, engine: ScriptedEngine) -> AsyncIterator[Two]:
    env = {
        "PORT": "0", "ADMIN_PORT": "0", "KEY_SECRET": "a signing secret of thirty-two c", "ADMIN_KEY": ADMIN,
        "DRAIN_S": "60", "HEALTH_TIMEOUT_S": "60",
    }  # fmt: skip
    supervisor = await services.start_async(
        "gateway", ["-m", "rollway_gateway", "--processes", "2"],
        env={f"ROLLWAY_GATEWAY_{k}": v for k, v in env.items()},
    )  # fmt: skip
    admin_url = listening_url(supervisor.logs(), "admin_url")
    async with httpx.AsyncClient(base_url=admin_url, timeout=60, headers={"authorization": f"Bearer {ADMIN}"}) as admin:
        added = await admin.post("/v1/pools/default/workers", json={"url": engine.url})
        assert (added.status_code, added.json()["healthy"]) == (201, True), added.text
        yield Two(supervisor, admin, engine)


def _ask(base_url: str, key: str, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, **more)


async def test_a_session_lives_in_one_process_and_any_of_them_answers_for_it(two: Two) -> None:
    """By its own URL, through the other process, by API key at either; streamed or not; sealed by the admin routes."""
    tickets = [await two.ticket(home) for home in PLACES]
    ports = [urlsplit(t["base_url"]).port for t in tickets]
    assert len(set(ports)) == 2
    for ticket in tickets:
        path = urlsplit(ticket["base_url"]).path
        for port in ports:
            for base, key in (
                (f"http://127.0.0.1:{port}{path}", "EMPTY"),
                (f"http://127.0.0.1:{port}/v1", ticket["api_key"]),
            ):
                async with _ask(base, key) as client:
                    answer = await client.chat.completions.create(model="m", messages=HI)
                    assert answer.choices[0].message.content == "ok"
                    parts = await client.chat.completions.create(model="m", messages=HI, stream=True)
                    assert "".join([c.choices[0].delta.content or "" async for c in parts]) == "ok"
        view = (await two.admin.get(f"/v1/sessions/{ticket['session_id']}")).json()
        assert (view["turns"], view["incomplete_turns"]) == (8, 0)
        sealed = await two.admin.post(f"/v1/sessions/{ticket['session_id']}/seal")
        assert len(sealed.json()["turns"]) == 8
        refused = await two.admin.get(f"/v1/sessions/{ticket['session_id']}x")
        assert refused.status_code == 404


async def test_a_pools_gate_is_one_for_all_and_a_fence_waits_for_all(two: Two) -> None:
    tickets = [await two.ticket(home) for home in PLACES]
    state = (await two.admin.post("/v1/pools/default/open", json={"policy_version": 3})).json()
    assert (state["gate"], state["policy_version"], state["sessions"]) == ("open", 3, 2)
    assert [w["url"] for w in state["workers"]] == [two.engine.url]
    holds = [asyncio.Event(), asyncio.Event()]
    two.engine.script(*[Reply("late", hold=hold) for hold in holds])
    async with httpx.AsyncClient(timeout=60) as http:
        calls = [
            asyncio.create_task(http.post(t["base_url"] + "/chat/completions", json={"messages": HI})) for t in tickets
        ]
        await eventually(lambda: two.engine.active == 2, "a call in flight in each")
        fencing = asyncio.create_task(two.admin.post("/v1/pools/default/fence", json={"drain_timeout_s": 60}))

        async def fenced() -> bool:
            return bool((await two.admin.get("/v1/pools/default")).json()["gate"] == "fenced")

        await eventually(fenced, "the pool is fenced")
        holds[0].set()
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert not fencing.done()
        assert (await two.admin.get("/v1/pools/default")).json()["in_flight"] == 1
        holds[1].set()
        done = await fencing
        assert (done.status_code, done.json()["in_flight"]) == (200, 0)
        assert [(await call).status_code for call in calls] == [200, 200]
        for ticket in tickets:
            refused = await http.post(ticket["base_url"] + "/chat/completions", json={"messages": HI})
            assert refused.status_code == 503
    worker_id = state["workers"][0]["worker_id"]
    assert (await two.admin.get("/v1/pools/default/load")).status_code == 200
    assert (await two.admin.get("/v1/pools/none/load")).status_code == 404
    again = await two.admin.post("/v1/pools/default/workers", json={"url": two.engine.url})
    assert again.json()["worker_id"] == worker_id
    assert (await two.admin.delete(f"/v1/pools/default/workers/{worker_id}")).status_code == 204
    assert (await two.admin.delete(f"/v1/pools/default/workers/{worker_id}")).status_code == 404
    assert (await two.admin.get("/v1/pools")).json()[0]["workers"] == []


async def test_a_killed_process_comes_back_and_knows_its_workers_and_gates(two: Two) -> None:
    """Meanwhile its port does not refuse; what asks all of them says that one is missing, or waits for it."""
    await two.admin.post("/v1/pools/default/open", json={"policy_version": 5})
    before = two.pids()
    assert len(before) == 2
    os.kill(before["0"], signal.SIGKILL)

    async def back() -> bool:
        state = await two.admin.get("/v1/pools/default")
        if state.status_code != 200:
            assert state.status_code == 503, state.text
            return False
        return (
            bool(state.json()["policy_version"] == 5 and state.json()["workers"][0]["healthy"]) and len(two.pids()) == 2
        )

    await eventually(back, "both processes are back with what they were told", 60)
    assert two.pids()["0"] != before["0"]
    for home in PLACES:
        ticket = await two.ticket(home)
        async with _ask(ticket["base_url"], "EMPTY") as client:
            assert (await client.chat.completions.create(model="m", messages=HI)).choices[0].message.content == "ok"
    assert "process_ended" in two.supervisor.logs()


async def test_a_process_killed_while_others_are_fenced_comes_back_fenced(two: Two) -> None:
    """It had answered the fence already; the other still drains. No call may pass it under new weights."""
    worker_id = (await two.admin.get("/v1/pools/default")).json()["workers"][0]["worker_id"]
    tickets, pids = [await two.ticket(home) for home in PLACES], two.pids()
    hold = asyncio.Event()
    two.engine.script(Reply("late", hold=hold))
    async with httpx.AsyncClient(timeout=60) as http:
        call = asyncio.create_task(http.post(tickets[1]["base_url"] + "/chat/completions", json={"messages": HI}))
        await eventually(lambda: two.engine.active, "a call in flight in the second")
        fencing = asyncio.create_task(two.admin.post("/v1/pools/default/fence", json={"drain_timeout_s": 60}))

        async def fenced() -> bool:
            return bool((await two.admin.get("/v1/pools/default")).json().get("gate") == "fenced")

        await eventually(fenced, "the pool is fenced")
        os.kill(pids["0"], signal.SIGKILL)
        # Its socket waits, so the first answer is the new process's.
        refused = await http.post(tickets[0]["base_url"] + "/chat/completions", json={"messages": HI})
        while "fenced" not in refused.text:
            assert refused.status_code in (404, 503), refused.text
            if refused.status_code == 404:  # in memory alone, so it is gone with its process
                tickets[0] = await two.ticket("0")
            refused = await http.post(tickets[0]["base_url"] + "/chat/completions", json={"messages": HI})
        hold.set()
        assert (await call).status_code == 200
        await fencing
        state = (await two.admin.get("/v1/pools/default")).json()
        assert (state["gate"], [w["worker_id"] for w in state["workers"]]) == ("fenced", [worker_id])
        assert len(two.engine.requests) == 1


async def test_a_drain_is_of_all_processes_and_outlives_one(two: Two) -> None:
    path = "/v1/pools/default/workers"
    worker_id = (await two.admin.get("/v1/pools/default")).json()["workers"][0]["worker_id"]
    drained = await two.admin.post(f"{path}/{worker_id}/drain", json={})
    assert (drained.status_code, drained.json()["draining"], drained.json()["active_requests"]) == (200, True, 0)
    assert (await two.admin.post(f"{path}/none/drain", json={})).status_code == 404
    os.kill(two.pids()["1"], signal.SIGKILL)
    for home in PLACES:

        async def refused(home: str = home) -> bool:
            opened = await two.admin.post("/v1/sessions", json={"session_id": _id_for(home)})
            if opened.status_code == 503:
                return False  # the process is being started again
            async with httpx.AsyncClient(timeout=60) as http:
                answer = await http.post(opened.json()["base_url"] + "/chat/completions", json={"messages": HI})
            assert answer.status_code == 503, answer.text
            return "no healthy worker" in answer.text

        await eventually(refused, f"process {home} sends nothing to the drained worker", 60)
    assert not two.engine.requests
    again = await two.admin.post(path, json={"url": two.engine.url})
    assert (again.json()["worker_id"], again.json()["draining"]) == (worker_id, False)
    ticket = await two.ticket("1")
    async with _ask(ticket["base_url"], "EMPTY") as client:
        assert (await client.chat.completions.create(model="m", messages=HI)).choices[0].message.content == "ok"


async def test_an_engines_counter_is_held_against_all_processes_together(two: Two) -> None:
    """Also when one of them was killed: what it captured last is then not known, and is not taken for another's."""

    async def ledger(*, fence: bool = False) -> dict[str, Any]:
        """Compared: what takes too long is left for another time, and is then asked for again."""

        async def compared() -> dict[str, Any] | None:
            path = "/v1/pools/default"
            asked = two.admin.post(f"{path}/fence", json={}) if fence else two.admin.get(f"{path}?reconcile=true")
            answer = await asked
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()["workers"][0]["ledger"] or {"as_of": None}
            fresh = found["as_of"] is not None and not found["pending"] and found["uncertain"] == 0
            return found if fresh and found["engine"] == two.engine.sampled - begun else None

        made: dict[str, Any] = await eventually(compared, "the engine's counter is compared", 60)
        return made

    async def ask_all(times: int) -> None:
        for home in PLACES:
            ticket = await two.ticket(home)
            async with _ask(ticket["base_url"], "EMPTY") as client:
                for _ in range(times):
                    await client.chat.completions.create(model="m", messages=HI)

    begun = two.engine.sampled
    await ledger()  # it began before the first call
    await ask_all(3)
    found = await ledger()
    assert (found["captured"], found["engine"]) == (two.engine.sampled - begun,) * 2
    assert found["captured"] > 0
    assert (found["closes"], found["foreign"], found["uncounted"], found["pending"]) == (True, 0, 0, 0)
    two.engine.sampled += 5  # another client's
    fenced = await ledger(fence=True)
    assert (fenced["closes"], fenced["foreign"]) == (False, 5)
    assert "worker_ledger_open" in two.supervisor.logs()
    await two.admin.post("/v1/pools/default/open", json={})
    await ask_all(1)
    os.kill(two.pids()["0"], signal.SIGKILL)

    async def back() -> bool:
        return len(two.pids()) == 2 and (await two.admin.get("/v1/pools/default")).status_code == 200

    await eventually(back, "the process is back", 60)
    await ask_all(2)
    found = await ledger()
    assert (found["foreign"], found["uncounted"], found["engine"]) == (5, 0, two.engine.sampled - begun)
    assert found["captured"] + found["cut_off"] + found["foreign"] == found["engine"]


async def test_sessions_that_come_without_an_id_are_spread_evenly(two: Two) -> None:
    tickets = [(await two.admin.post("/v1/sessions", json={})).json() for _ in range(10)]
    tickets += [(await two.admin.post("/sessions", json={})).json() for _ in range(10)]
    homes = [home_of(t["session_id"], PLACES) for t in tickets]
    assert homes == PLACES * 10
    assert len({urlsplit(t["base_url"]).port for t in tickets[:2]}) == 2
    assert len((await two.admin.get("/v1/pools/default")).json()["workers"]) == 1
    assert (await two.admin.get("/v1/pools/default")).json()["sessions"] == 20


async def test_no_header_keeps_a_request_in_the_wrong_process(services: Services, engine: ScriptedEngine) -> None:
    """Without keys an agent could else open its session a second time elsewhere."""
    supervisor = await services.start_async(
        "gateway", ["-m", "rollway_gateway", "--workers", "2", "--worker", engine.url],
        env={"ROLLWAY_GATEWAY_PORT": "0", "ROLLWAY_GATEWAY_ADMIN_PORT": "0"},
    )  # fmt: skip
    admin_url = listening_url(supervisor.logs(), "admin_url")
    async with httpx.AsyncClient(base_url=admin_url, timeout=60) as admin, httpx.AsyncClient(timeout=60) as http:
        made = [(await admin.post("/v1/sessions", json={})).json() for _ in range(2)]
        ports = [urlsplit(t["base_url"]).port for t in made]

        async def healthy() -> bool:
            workers = (await admin.get("/v1/pools/default")).json()["workers"]
            return bool(workers and workers[0]["healthy"])

        await eventually(healthy, "both processes have their worker")
        for name in ("x-rollway-passed-on", "x-forwarded-for", "via", "forwarded"):
            for session_id in (made[0]["session_id"], f"opened-by-the-call-{name}"):
                for port in ports:
                    url = f"http://127.0.0.1:{port}/sessions/{session_id}/v1/chat/completions"
                    answer = await http.post(url, json={"messages": HI}, headers={name: "1"})
                    assert answer.status_code == 200, answer.text
            view = (await admin.get(f"/v1/sessions/opened-by-the-call-{name}")).json()
            assert (view["calls"], view["turns"]) == (2, 2)
        assert (await admin.get(f"/v1/sessions/{made[0]['session_id']}")).json()["turns"] == 8
        assert (await admin.get("/v1/pools/default")).json()["sessions"] == 6


async def test_another_number_of_processes_does_not_lose_the_sessions_of_a_journal(
    services: Services, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """It is refused, and with the same number every session is there."""
    env = {"ROLLWAY_GATEWAY_PORT": "0", "ROLLWAY_GATEWAY_ADMIN_PORT": "0", "ROLLWAY_GATEWAY_JOURNAL_DIR": str(tmp_path)}
    command = ["-m", "rollway_gateway", "--worker", engine.url, "--processes"]
    ids = [_id_for(home) for home in PLACES]
    for again in (False, True):
        running = await services.start_async("gateway", [*command, "2"], env=env)
        async with httpx.AsyncClient(base_url=listening_url(running.logs(), "admin_url"), timeout=60) as admin:
            for session_id in ids:
                opened = await admin.post("/v1/sessions", json={"session_id": session_id})
                assert opened.status_code == (200 if again else 201), opened.text
        assert await asyncio.to_thread(running.stop) == 0
        for count in ("1", "3"):
            refused = services.spawn("gateway", [*command, count], env=env)
            assert await asyncio.to_thread(refused.wait, 60) == 2
            assert "holds the sessions of 2 process(es)" in refused.logs()
    alone = services.spawn(
        "gateway", ["-m", "rollway_gateway"], env={**env, "ROLLWAY_GATEWAY_JOURNAL_DIR": str(tmp_path / "0")}
    )
    await eventually(alone.ready, "one process alone serves a folder that is one process's", 60)
    await asyncio.to_thread(alone.stop)
    refused = services.spawn(
        "gateway", [*command, "2"], env={**env, "ROLLWAY_GATEWAY_JOURNAL_DIR": str(tmp_path / "0")}
    )
    assert await asyncio.to_thread(refused.wait, 60) == 2
    assert "holds the sessions of 1 process(es)" in refused.logs()


async def test_workers_are_counted_and_a_worker_is_named(services: Services) -> None:
    refused = services.spawn("gateway", ["-m", "rollway_gateway", "--workers", "http://127.0.0.1:1"])
    assert await asyncio.to_thread(refused.wait, 60) == 2
    assert "--worker names an inference server" in refused.logs()


async def test_sigterm_lets_calls_end_and_leaves_nothing(two: Two) -> None:
    hold = asyncio.Event()
    two.engine.script(Reply("late", hold=hold))
    ticket, pids = await two.ticket("1"), two.pids()
    async with httpx.AsyncClient(timeout=60) as http:
        asking = asyncio.create_task(http.post(ticket["base_url"] + "/chat/completions", json={"messages": HI}))
        await eventually(lambda: two.engine.active, "a call in flight")
        async with idle_connection(ticket["base_url"].partition("/sessions/")[0]) as closed:
            two.supervisor.signal(signal.SIGTERM)
            await eventually(closed.is_set, "the process has begun to stop", 60)
        hold.set()
        assert (await asking).json()["choices"][0]["message"]["content"] == "late"
    assert await asyncio.to_thread(two.supervisor.wait, 60) == 0
    assert not _alive(pids)


async def test_processes_do_not_outlive_a_killed_supervisor(two: Two) -> None:
    pids = two.pids()
    two.supervisor.kill()
    await eventually(lambda: not _alive(pids), "no process left", 60)


def test_several_answers_are_one() -> None:
    """The least open gate, no version where they differ, a worker as well as it is everywhere."""

    def state(gate: Any, version: int, healthy: bool) -> PoolState:
        worker = WorkerState(
            worker_id="w", url="http://x", api_path="/v1", model_name="m", weight=1, healthy=healthy, active_requests=2,
            detail=None if healthy else "no", mode="exact", draining=healthy,
            breaker="half_open" if healthy else "closed",
            ledger=WorkerLedger(since=version, captured=7, engine=14, difference=7, closes=False, foreign=7),
        )  # fmt: skip
        return PoolState(
            pool="p", gate=gate, policy_version=version, in_flight=1, sessions=3, workers=[worker], held=4, waiting=5
        )  # fmt: skip

    whole = WorkerLedger(since=1, captured=14, engine=14, difference=0, closes=True)
    made = merged.pool([state("open", 1, True), state("paused", 2, False)], lambda pool: {"w": whole})
    assert (made.gate, made.policy_version, made.in_flight, made.sessions, made.held) == ("paused", None, 2, 6, 8)
    assert made.waiting == 10
    assert [(w.healthy, w.detail, w.active_requests) for w in made.workers] == [(False, "no", 4)]
    assert (made.workers[0].ledger, made.workers[0].draining, made.workers[0].breaker) == (whole, True, "half_open")
    assert merged.pools([[state("open", 1, True)], []], lambda pool: {})[0].policy_version == 1


def test_a_place_more_or_less_moves_only_its_own_sessions() -> None:
    ids = [f"session-{i}" for i in range(2000)]
    before = {s: home_of(s, ["a", "b", "c"]) for s in ids}
    after = {s: home_of(s, ["c", "a"]) for s in ids}
    assert all(after[s] == before[s] for s in ids if before[s] != "b")
    assert all(500 < sum(home == place for home in before.values()) < 850 for place in "abc")
