"""How late the event loop is while large prompts are read and rendered at once."""

from __future__ import annotations

from benchmarks.gateway.bench import Bench, Refused, body, prompt
from benchmarks.gateway.size import Numbers, Size, quantile
from benchmarks.gateway.turns import said
from benchmarks.load_answers import Script

AT_ONCE = 8
MESSAGE_TOKENS = 1024


def spoken(tokens: int) -> list[dict[str, object]]:
    """Messages of so many tokens together, the agent's and the model's by turns, the agent's last."""
    count = tokens // MESSAGE_TOKENS
    roles = ["user" if k % 2 == (count - 1) % 2 else "assistant" for k in range(count)]
    return [{"role": role, "content": prompt(MESSAGE_TOKENS)} for role in roles]


async def rendering(bench: Bench, size: Size) -> Numbers:
    """Eight first turns at once, each of many messages, then eight turns that go on from them with as much new text in
    one. The loop is watched from inside the process while they are under way."""
    if not bench.subject.python:
        return {}
    tokens = size.rendered
    await bench.script(Script(prompt_tokens=tokens))
    sessions = await bench.sessions(AT_ONCE)
    history = [{"role": "system", "content": "Answer."}, *spoken(tokens)]
    found: Numbers = {}
    for name in ("first", "next"):
        bench.gateway.watch_loop()
        cost = await bench.load(sessions, body(history), in_flight=AT_ONCE, keeps=True)
        late = await bench.gateway.loop_delays()
        if cost.load.ok != AT_ONCE:
            raise Refused(f"rendering: {cost.load.ok} of {AT_ONCE} calls answered 200")
        found[f"rendering_{name}_loop_late_max_ms"] = max(late) * 1e3
        found[f"rendering_{name}_loop_late_p99_ms"] = (quantile(late, 0.99) or 0) * 1e3
        history += [said(cost.load), {"role": "user", "content": prompt(tokens)}]
        await bench.script(Script(prompt_tokens=2 * tokens))
    if bench.subject.renders and bench.subject.ours:
        await bench.must_be_exact()
    return found
