"""Counting a prompt's tokens without sampling: Anthropic's count_tokens, by the ``/tokenize`` route of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import Send

from rollway_gateway.capture.answer import UNKNOWN_FORM
from rollway_gateway.dialects.messages.request import to_count
from rollway_gateway.dialects.sending import failure_of
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.replies import send_whole
from rollway_gateway.session import Session
from rollway_gateway.upstream import WorkerLost, WorkerSilent, post

if TYPE_CHECKING:
    from rollway_gateway.gateway import Gateway


async def count_tokens(gateway: Gateway, session: Session, body: dict[str, Any], send: Send) -> None:
    """Answer a count_tokens request.

    Raises:
        AgentError: 400 for what chat cannot say, 404 where the worker has no ``/tokenize``, 502 where it fails.
    """
    worker = gateway.pool(session.pool).choose(session.worker_id, ())
    asked = {**to_count(body), "model": worker.model_for(body.get("model"))}
    try:
        async with post(gateway.connections, worker.url + "/tokenize", orjson.dumps(asked), {}) as response:
            status, answer = response.status, await response.read()
    except (WorkerLost, WorkerSilent) as e:
        raise AgentError(502, f"worker {worker.worker_id} failed: {e}") from e
    if status != 200:
        failure = failure_of(answer, status)
        known = failure.status in (400, 404)
        raise AgentError(failure.status if known else 502, f"worker {worker.worker_id}: {failure.message}")
    try:
        count = int(orjson.loads(answer)["count"])
    except UNKNOWN_FORM as e:
        raise AgentError(502, f"worker {worker.worker_id} counted in an unknown form: {e}") from e
    said = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
    await send_whole(send, 200, [(b"content-type", b"application/json")], orjson.dumps(said))
