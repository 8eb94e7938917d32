"""A vLLM server's own word: what it counts and what it thinks of ids, asked past the gateway."""

from __future__ import annotations

import re
from typing import Any

import httpx

from rollway_wire.tokens import Sequence, Turn

LARGEST = 1e-4
"""Difference of two float32 log-probs of one token that is rounding."""


async def generated(http: httpx.AsyncClient, url: str) -> int:
    """Tokens the engine has sampled since it began."""
    return await _metric(http, url, "generation_tokens_total")


async def running(http: httpx.AsyncClient, url: str) -> int:
    """Requests it is answering."""
    return await _metric(http, url, "num_requests_running")


async def worker_ledger(gateway: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """The gateway's own ledger of the worker at ``url``, compared with the engine's counter now: it closes, and the
    engine sampled for nobody else."""
    pool = (await gateway.get("/v1/pools/default", params={"reconcile": True}, timeout=300)).json()
    (ledger,) = (worker["ledger"] for worker in pool["workers"] if worker["url"] == url)
    assert ledger["closes"] and not ledger["pending"], ledger
    assert (ledger["foreign"], ledger["uncounted"]) == (0, 0), ledger
    found: dict[str, Any] = ledger
    return found


async def _metric(http: httpx.AsyncClient, url: str, name: str) -> int:
    text = (await http.get(f"{url}/metrics")).text
    found = re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", text, re.M)
    assert found, f"no vllm:{name} among the metrics"
    return sum(int(float(n)) for n in found)


async def prompt_logprobs(http: httpx.AsyncClient, url: str, model: str, ids: list[int]) -> list[float]:
    """The engine's log-prob of each id after those before it, shape (length,); NaN for the first. Samples one token."""
    body = {"model": model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0, "add_special_tokens": False}
    answer = await http.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()["choices"][0]["prompt_logprobs"]
    assert len(told) == len(ids) and told[0] is None
    return [float("nan")] + [said[str(i)]["logprob"] for said, i in zip(told[1:], ids[1:], strict=True)]


def turn_differences(turn: Turn, theirs: list[float]) -> list[float]:
    """Between a turn's log-probs and ``theirs`` of a sequence that holds it, shape (completion,)."""
    at = len(turn.prompt_token_ids)
    return [abs(a - b) for a, b in zip(turn.logprobs, theirs[at : at + len(turn.logprobs)], strict=True)]


def largest_difference(row: Sequence, theirs: list[float]) -> float:
    """Between a sequence's log-probs and ``theirs`` where it trains."""
    rows = zip(row.logprobs, theirs, row.loss_mask, strict=True)
    return max(abs(ours - own) for ours, own, trained in rows if trained)
