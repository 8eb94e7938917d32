"""A call as rllm-model-gateway's trace record: same fields, first choice.

A call whose evidence is not whole gives a trace without completion tokens and log-probs, its reason in
``metadata.incomplete``: that format has no other word for it, and nothing may train on it. A call whose answer did not
reach the agent gives none.
"""

from __future__ import annotations

from typing import Any

import orjson

from rollway_gateway.record import CallRecord
from rollway_gateway.session import Session
from rollway_wire.tokens import NO_VERSION


def traces(session: Session, since: float | None, limit: int | None) -> list[dict[str, Any]]:
    """A session's traces in the order of calls; ``since`` in Unix seconds."""
    answered = [r for r in session.records if r.answered and (since is None or r.kept[0].ended_at >= since)]
    answered.sort(key=lambda r: r.kept[0].index)
    return [trace(session, r) for r in (answered if limit is None else answered[:limit])]


def trace(session: Session, record: CallRecord) -> dict[str, Any]:
    turn = record.kept[0].turn()
    whole = turn.incomplete is None
    request: dict[str, Any] = orjson.loads(record.request) if record.request else {}
    answer: dict[str, Any] = orjson.loads(record.answer) if record.answer else {}
    counts = {"prompt": record.prompt_tokens, "completion": record.completion_tokens}
    return {
        "trace_id": record.call_id,
        "session_id": session.session_id,
        "model": turn.model,
        "messages": request.get("messages") or [],
        "prompt_token_ids": turn.prompt_token_ids.tolist(),
        "response_message": _message(answer),
        "completion_token_ids": turn.completion_token_ids.tolist() if whole else [],
        "logprobs": turn.logprobs.tolist() if whole else None,
        "routing_matrices": None,
        "finish_reason": turn.finish_reason,
        "weight_version": None if turn.policy_version_start == NO_VERSION else turn.policy_version_start,
        "latency_ms": (turn.ended_at - turn.started_at) * 1e3,
        "token_counts": {name: n for name, n in counts.items() if n is not None},
        "timestamp": turn.ended_at,
        "metadata": {} if whole else {"incomplete": turn.incomplete},
        "raw_request": request or None,
        "raw_response": answer if "choices" in answer else None,
    }


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    if "message" in answer:
        streamed: dict[str, Any] = answer["message"]
        return streamed
    first = (answer.get("choices") or [{}])[0]
    message: dict[str, Any] | None = first.get("message")
    return message if message is not None else ({"text": first["text"]} if "text" in first else {})
