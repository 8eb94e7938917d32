"""Whether several processes do as many times the work of one."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from benchmarks.gateway.bench import Bench, Refused, body, prompt
from benchmarks.gateway.size import Numbers, Size
from benchmarks.load_answers import Script
from benchmarks.load_client import Call, LoadResult, run_load

IN_FLIGHT = 32
"""At each process: what one has to do at a time is what another has, or their costs are not those of the same work."""


async def scale(bench: Bench, size: Size) -> Numbers:
    """Plain calls, each session at the process that its ticket names. Where load client, engine and gateway share two
    cores no run can show what two whole cores would do, so capacity is calls by the CPU seconds of the busiest process:
    what the gateway would answer in a second in which that process had a core and never waited."""
    payload = body([{"role": "user", "content": prompt(2048)}])
    await bench.script(Script())
    await _load(bench, await bench.tickets(size.scale_calls // 4), payload)
    tickets = await bench.tickets(size.scale_calls)
    before = bench.gateway.shares()
    result = await _load(bench, tickets, payload)
    after = bench.gateway.shares()
    if result.ok != size.scale_calls or set(before) != set(after):
        raise Refused(f"scale: {result.ok} of {size.scale_calls} calls answered 200")
    used = sorted((after[pid] - before[pid] for pid in after), reverse=True)
    working = used[: bench.subject.processes]
    return {
        "scale_calls_per_busiest_cpu_s": result.ok / working[0],
        "scale_all_cpu_ms_per_call": sum(used) / result.ok * 1e3,
        "scale_busiest_share": working[0] / sum(working),
        "scale_calls_per_s": result.ok / result.wall_s,
    }


async def _load(bench: Bench, tickets: dict[str, str], payload: bytes) -> LoadResult:
    """One call in each session, at its own process."""
    calls: dict[str, list[Call]] = {}
    for session, base_url in tickets.items():
        at = urlsplit(base_url)
        call = Call(at.path.removesuffix("/v1") + "/v1/chat/completions", payload, bench.subject.headers(session))
        calls.setdefault(f"{at.scheme}://{at.netloc}", []).append(call)
    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(run_load(url, mine, in_flight=IN_FLIGHT)) for url, mine in calls.items()]
    done = [load.result() for load in loads]
    result = LoadResult(wall_s=max(d.wall_s for d in done))
    for one in done:
        result.answered += one.answered
    return result


def times(one: Numbers, two: Numbers) -> float | None:
    """Capacity of two processes by that of one; None: one of the two was not measured."""
    name = "scale_calls_per_busiest_cpu_s"
    single, double = one.get(name), two.get(name)
    return None if not single or not double else double / single
