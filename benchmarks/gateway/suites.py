"""What is measured of each subject. Every suite gives flat numbers by name; None where it does not apply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.gateway.bench import Bench, Cost, Refused, body, prompt
from benchmarks.gateway.rendering import rendering
from benchmarks.gateway.scale import scale
from benchmarks.gateway.size import Numbers, Size, quantile
from benchmarks.gateway.subjects import FLOOR, Subject
from benchmarks.gateway.turns import said, turns, user
from benchmarks.load_answers import Script
from benchmarks.load_client import probe


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
    script, payload = Script(), body([user(2048)])
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
    script, payload = Script(), body([user(2048)], stream=True)
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
    history = [user(2048)]
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
        history = [*history, said(cost.load), {"role": "user", "content": prompt(64)}]
    later = (resident[-1] - resident[1]) / (size.turns - 1)
    return {
        "first_turn_kept_bytes": (resident[1] - resident[0]) / size.sessions,
        "later_turn_kept_bytes": later / size.sessions,
    }


async def context(bench: Bench, size: Size) -> Numbers:
    """CPU of a plain call as the prompt grows, 4 in flight."""
    found: Numbers = {}
    for tokens in size.contexts:
        payload = body([user(tokens)])
        await bench.script(Script(prompt_tokens=tokens))
        await warm(bench, payload, 4)
        sessions = await bench.sessions(size.context_calls)
        cost = await bench.load(sessions, payload, in_flight=4, deadline_s=size.load_s)
        name = f"context_{tokens // 1024}k_cpu_ms_per_call"
        found[name] = cost.cpu_s / cost.load.ok * 1e3 if cost.load.ok else None
    return found


async def routing(bench: Bench, size: Size) -> Numbers:
    """CPU of a plain call whose answer carries expert routing, 1,000 bytes per token, which ours keeps."""
    payload = body([user(2048)])
    await bench.script(Script(routing_bytes=1000))
    await warm(bench, payload, 4)
    sessions = await bench.sessions(size.context_calls)
    cost = await bench.load(sessions, payload, in_flight=4, deadline_s=size.load_s)
    if bench.subject.ours:
        _whole(cost, size.context_calls, "routing")
    return {"routing_cpu_ms_per_call": cost.cpu_s / cost.load.ok * 1e3 if cost.load.ok else None}


async def in_flight(bench: Bench, size: Size) -> Numbers:
    """So many calls at once of an engine that takes 1 to 3 s for each, begun over 2 s, with a health check every 200 ms
    beside them. Second turns in exact mode, which ids can say."""
    found: Numbers = {}
    for count in size.in_flight:
        history = [user(2048)]
        sessions = await bench.sessions(count * 5)
        await bench.script(Script())
        if bench.subject.renders and bench.subject.ours:
            opened = await bench.load(sessions, body(history), in_flight=32, deadline_s=120, keeps=True)
            _whole(opened, len(sessions), "in_flight")
            history += [said(opened.load), user(64)]
        payload = body(history)
        await bench.script(Script(delay_s=2.0))
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
            f"{name}_latency_p50_s": quantile(cost.load.latencies, 0.5),
            f"{name}_latency_p99_s": quantile(cost.load.latencies, 0.99),
            f"{name}_health_p99_ms": _ms(quantile(waits, 0.99)),
            f"{name}_health_missed": missed,
        }
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _one_process(subject: Subject) -> bool:
    return subject.processes == 1


@dataclass(frozen=True)
class Suite:
    measure: Callable[[Bench, Size], Awaitable[Numbers]]
    takes: Callable[[Subject], bool] = _one_process
    """Which subjects it is run on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of ours, besides the subject's own."""
    bound: bool = True
    """The subject has one core."""


SUITES = {
    "plain": Suite(plain),
    "stream": Suite(stream),
    "memory": Suite(memory),
    "context": Suite(context),
    "turns": Suite(turns, takes=lambda s: s.processes == 1 and (s.ours or s.name == FLOOR)),
    "rendering": Suite(rendering),
    "routing": Suite(routing, environment={"ROLLWAY_GATEWAY_ROUTED_EXPERTS": "true"}),
    "in_flight": Suite(in_flight),
    "scale": Suite(scale, takes=lambda s: s.name in ("rollway", "rollway-two"), bound=False),
}
