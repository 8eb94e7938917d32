"""What is measured of each subject. Every suite gives flat numbers by name; None where it does not apply."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from benchmarks.gateway.bench import Bench, Cost, Refused, body, prompt
from benchmarks.load_client import LoadResult, probe
from benchmarks.load_engine import Script

Numbers = dict[str, float | int | None]


@dataclass(frozen=True)
class Size:
    """How much is measured: bounded in calls, and in seconds per load."""

    calls: int = 800
    streams: int = 64
    context_calls: int = 32
    contexts: tuple[int, ...] = (4096, 16384, 65536, 131072)
    in_flight: tuple[int, ...] = (32, 200, 1000)
    sessions: int = 400
    turns: int = 4
    load_s: float = 45.0


QUICK = Size(calls=64, streams=8, context_calls=8, contexts=(4096,), in_flight=(32,), sessions=40, turns=2, load_s=20.0)


def user(tokens: int) -> list[dict[str, object]]:
    return [{"role": "user", "content": prompt(tokens)}]


async def warm(bench: Bench, payload: bytes, count: int) -> None:
    await bench.load(await bench.sessions(count), payload, in_flight=min(32, count))


def _whole(cost: Cost, expected: int, what: str) -> None:
    """Refuse numbers of a load that did not do what it was to do."""
    if cost.load.ok != expected:
        raise Refused(
            f"{what}: {cost.load.ok} of {expected} calls answered 200"
            f" ({dict(cost.load.answered)}, {cost.load.timeouts} timed out, {cost.load.lost} lost)"
        )


async def plain(bench: Bench, size: Size) -> Numbers:
    """Whole answers, 2,048 prompt + 256 sampled tokens, 32 in flight, a session per call."""
    script, payload = Script(), body(user(2048))
    await bench.script(script)
    await bench.check(script, payload, stream=False)
    await warm(bench, payload, size.calls // 4)
    sessions = await bench.sessions(size.calls)
    cost = await bench.load(sessions, payload, in_flight=32, deadline_s=size.load_s)
    done = cost.load.ok
    if cost.load.failed or done < size.calls // 4:
        _whole(cost, size.calls, "plain")
    return {
        "plain_cpu_ms_per_call": cost.cpu_s / done * 1e3,
        "plain_calls_per_s": done / cost.load.wall_s,
        "plain_upstream_per_call": cost.upstream / done,
        "plain_captured_per_call": cost.captured / done,
    }


async def stream(bench: Bench, size: Size) -> Numbers:
    """Streamed answers of 256 events, 32 in flight, an event every 10 ms in each."""
    script, payload = Script(), body(user(2048), stream=True)
    await bench.script(script)
    await bench.check(script, payload, stream=True)
    await warm(bench, payload, min(32, size.streams))
    sessions = await bench.sessions(size.streams)
    cost = await bench.load(sessions, payload, in_flight=32, deadline_s=size.load_s)
    _whole(cost, size.streams, "stream")
    return {
        "stream_cpu_ms_per_call": cost.cpu_s / size.streams * 1e3,
        "stream_us_per_event": cost.cpu_s / (size.streams * script.events) * 1e6 if bench.subject.streams else None,
        "stream_events_per_call": cost.load.events / size.streams,
        "stream_events_per_read": cost.load.events / cost.load.reads,
    }


async def memory(bench: Bench, size: Size) -> Numbers:
    """Resident memory that stays after garbage collection, per call: first turns, then later turns of 256 sampled and
    64 new tokens on top. The sessions stay open."""
    if not bench.subject.captures:
        return {"first_turn_kept_bytes": None, "later_turn_kept_bytes": None}
    history = user(2048)
    await bench.script(Script())
    await warm(bench, body(history), size.sessions)
    sessions = await bench.sessions(size.sessions)
    await bench.gateway.settle()
    resident = [bench.gateway.resident()]
    tokens = 2048
    for _ in range(size.turns):
        await bench.script(Script(prompt_tokens=tokens))
        cost = await bench.load(sessions, body(history), in_flight=32, deadline_s=120, keeps=True)
        _whole(cost, size.sessions, "memory")
        await bench.gateway.settle()
        resident.append(bench.gateway.resident())
        tokens += 256 + 64
        history = [*history, _said(cost.load), {"role": "user", "content": prompt(64)}]
    later = (resident[-1] - resident[1]) / (size.turns - 1)
    return {
        "first_turn_kept_bytes": (resident[1] - resident[0]) / size.sessions,
        "later_turn_kept_bytes": later / size.sessions,
    }


def _said(load: LoadResult) -> dict[str, object]:
    """The assistant's message: the same in every session."""
    message = orjson.loads(load.bodies[0])["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


async def context(bench: Bench, size: Size) -> Numbers:
    """CPU of a plain call as the prompt grows, 4 in flight."""
    found: Numbers = {}
    for tokens in size.contexts:
        payload = body(user(tokens))
        await bench.script(Script(prompt_tokens=tokens))
        await warm(bench, payload, 4)
        sessions = await bench.sessions(size.context_calls)
        cost = await bench.load(sessions, payload, in_flight=4, deadline_s=size.load_s)
        name = f"context_{tokens // 1024}k_cpu_ms_per_call"
        found[name] = cost.cpu_s / cost.load.ok * 1e3 if cost.load.ok else None
    return found


async def routing(bench: Bench, size: Size) -> Numbers:
    """CPU of a plain call whose answer carries expert routing, 1,000 bytes per token."""
    payload = body(user(2048))
    await bench.script(Script(routing_bytes=1000))
    await warm(bench, payload, 4)
    sessions = await bench.sessions(size.context_calls)
    cost = await bench.load(sessions, payload, in_flight=4, deadline_s=size.load_s)
    return {"routing_cpu_ms_per_call": cost.cpu_s / cost.load.ok * 1e3 if cost.load.ok else None}


async def in_flight(bench: Bench, size: Size) -> Numbers:
    """So many calls at once of an engine that takes 1 to 3 s for each, begun over 2 s, with a health check every 200 ms
    beside them."""
    found: Numbers = {}
    payload = body(user(2048))
    for count in size.in_flight:
        await bench.script(Script(delay_s=2.0))
        sessions = await bench.sessions(count * 5)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            health = group.create_task(
                probe(bench.url, bench.subject.health, every_s=0.2, timeout_s=10, stop=stop), name="health"
            )
            cost = await bench.load(sessions, payload, in_flight=count, timeout_s=30, deadline_s=size.load_s, ramp_s=2)
            stop.set()
        waits, missed = health.result()
        name = f"in_flight_{count}"
        found |= {
            f"{name}_cpu_ms_per_call": cost.cpu_s / cost.load.ok * 1e3 if cost.load.ok else None,
            f"{name}_answered": cost.load.ok,
            f"{name}_failed": cost.load.failed,
            f"{name}_timed_out": cost.load.timeouts,
            f"{name}_latency_p50_s": _quantile(cost.load.latencies, 0.5),
            f"{name}_latency_p99_s": _quantile(cost.load.latencies, 0.99),
            f"{name}_health_p99_ms": _ms(_quantile(waits, 0.99)),
            f"{name}_health_missed": missed,
        }
    return found


def _quantile(values: list[float], q: float) -> float | None:
    if not values:
        return None
    return statistics.quantiles(values, n=1000, method="inclusive")[int(q * 1000) - 1] if len(values) > 1 else values[0]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


Suite = Callable[[Bench, Size], Awaitable[Numbers]]
SUITES: dict[str, Suite] = {
    "plain": plain,
    "stream": stream,
    "memory": memory,
    "context": context,
    "routing": routing,
    "in_flight": in_flight,
}
