"""What a later turn costs as its session grows: the agent sends its whole history each time, as SDKs do."""

from __future__ import annotations

import time

import orjson

from benchmarks.gateway.bench import Bench, Refused, body, prompt
from benchmarks.gateway.size import Numbers, Size
from benchmarks.load_answers import Script
from benchmarks.load_client import LoadResult

NEW_TOKENS = 1024
"""Of each turn besides what was sampled."""
BEGIN = 2048


def said(load: LoadResult) -> dict[str, object]:
    """The assistant's message: the same in every session."""
    message = orjson.loads(load.bodies[0])["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


def user(tokens: int) -> dict[str, object]:
    return {"role": "user", "content": prompt(tokens)}


class Growth:
    """Sessions that all say the same, grown turn by turn."""

    def __init__(self, bench: Bench, sessions: list[str]) -> None:
        self._bench, self._sessions = bench, sessions
        self._history: list[dict[str, object]] = [{"role": "system", "content": "Answer."}, user(BEGIN)]
        self.tokens = BEGIN
        """Of the next prompt, about."""
        self._sampled = Script().sampled_tokens

    @property
    def body(self) -> bytes:
        return body(self._history)

    async def scripted(self) -> None:
        """An engine that renders nothing answers with a prompt of this length from here on."""
        if not self._bench.subject.renders:
            await self._bench.script(Script(prompt_tokens=self.tokens))

    async def turn(self) -> float:
        """One turn of each session; CPU seconds of the gateway.

        Raises:
            Refused: not every call was answered.
        """
        cost = await self._bench.load(self._sessions, self.body, in_flight=4, keeps=True)
        if cost.load.ok != len(self._sessions):
            raise Refused(f"turns: {cost.load.ok} of {len(self._sessions)} calls answered 200 at {self.tokens} tokens")
        self._history += [said(cost.load), user(NEW_TOKENS)]
        self.tokens += self._sampled + NEW_TOKENS
        return cost.cpu_s


async def turns(bench: Bench, size: Size) -> Numbers:
    """CPU of a turn with 256 sampled and 1,024 new tokens in sessions that grow by such turns, 4 in flight; and what
    the bodies alone take to read and write."""
    found: Numbers = {}
    await bench.script(Script())
    grown = Growth(bench, await bench.sessions(size.turn_sessions))
    await grown.turn()
    for tokens in size.contexts:
        await grown.scripted()
        while grown.tokens < tokens:
            await grown.turn()
        await grown.scripted()
        taken = bodies_s(grown.body, grown.tokens)
        costs = [await grown.turn() for _ in range(size.turns_measured)]
        name = f"turns_{tokens // 1024}k"
        found[f"{name}_cpu_ms_per_call"] = sum(costs) / len(costs) / size.turn_sessions * 1e3
        found[f"{name}_bodies_ms"] = taken * 1e3
    if bench.subject.renders and bench.subject.ours:
        await bench.must_be_exact()
    return found


PIECE = 1 << 16
"""Bytes that a server is given at a time."""


def bodies_s(asked: bytes, tokens: int, times: int = 16) -> float:
    """CPU seconds for what is done to the bodies of one turn however it is done, here: the agent's request is put
    together from its pieces and parsed; the prompt, which is there as text, is written into the engine's; the answer,
    which holds it once more, is put together. Moving them through sockets is not in it. What is made is kept until the
    end, as it is while a call is under way, so that each repeat is given memory that it has not just used."""
    prompt = orjson.dumps([1000] * tokens)
    received = [(_pieces(asked), _pieces(prompt)) for _ in range(times)]
    kept: list[object] = []
    began = time.process_time()
    for request, answer in received:
        body = b"".join(request)
        kept += (body, orjson.loads(body), orjson.dumps({"prompt": orjson.Fragment(prompt)}), b"".join(answer))
    return (time.process_time() - began) / times


def _pieces(body: bytes) -> list[bytes]:
    return [body[at : at + PIECE] for at in range(0, len(body), PIECE)]


def growth(ours: Numbers, floor: Numbers) -> float | None:
    """How much more a turn costs in the longest context than in the shortest, apart from its bodies: less what the
    floor takes to pass on as many bytes, and less what they take to read and write. None: one lacks a number."""
    names = [n for n in ours if n.startswith("turns_") and n.endswith("_cpu_ms_per_call")]
    if len(names) < 2:
        return None
    net = []
    for name in (names[0], names[-1]):
        whole, moved = ours[name], floor.get(name)
        bodies = ours.get(name.replace("cpu_ms_per_call", "bodies_ms"))
        if whole is None or moved is None or bodies is None:
            return None
        net.append(whole - moved - bodies)
    return net[1] / net[0] if net[0] > 0 else None
