"""What each gateway hands to a trainer after a session: rows of token ids and a mask of what to train."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx

Row = tuple[list[int], list[int]]
"""Token ids, and 1 where the token is trained."""
Harvest = Callable[[httpx.AsyncClient, str], Awaitable[list[Row]]]


async def rollway(client: httpx.AsyncClient, session: str) -> list[Row]:
    """The sequences of the sealed trajectory."""
    sealed = await client.post(f"/v1/sessions/{session}/seal")
    sealed.raise_for_status()
    return [(_plain(s["token_ids"]), _plain(s["loss_mask"])) for s in sealed.json()["sequences"]]


def _plain(value: Any) -> list[int]:
    """An array of the wire's JSON tree."""
    return list(value)


async def rllm(client: httpx.AsyncClient, session: str) -> list[Row]:
    """Its traces hold one call each. One whose prompt extends a row is joined to that row here, so that the gateway
    is not charged with work that its trainers do."""
    got = await client.get(f"/sessions/{session}/traces")
    got.raise_for_status()
    rows: list[Row] = []
    for trace in sorted(got.json(), key=lambda t: t["timestamp"]):
        prompt, sampled = trace["prompt_token_ids"], trace["completion_token_ids"]
        known = [row for row in rows if prompt[: len(row[0])] == row[0]]
        ids, mask = max(known, key=lambda row: len(row[0]), default=([], []))
        rows = [row for row in rows if row[0] is not ids]
        mask = [*mask, *([0] * (len(prompt) - len(ids))), *([1] * len(sampled))]
        rows.append(([*prompt, *sampled], mask))
    return rows


async def agentcore(client: httpx.AsyncClient, session: str) -> list[Row]:
    """Its records; the mask it gives covers the tokens after the first prompt."""
    got = await client.post("/bench/finish", json={"sid": session})
    got.raise_for_status()
    return [
        (r["token_ids"], [0] * (len(r["token_ids"]) - len(r["loss_mask"])) + r["loss_mask"]) for r in got.json()
    ]  # fmt: skip
