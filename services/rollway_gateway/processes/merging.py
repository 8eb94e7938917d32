"""Several processes' answers as one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import Response

from rollway_gateway.processes.asking import Answer
from rollway_kit.app import problem_response
from rollway_wire.problems import Unavailable


def one(answers: list[Answer], merge: Callable[[list[Any]], Any]) -> Response:
    """What ``merge`` makes of their bodies; where one refused what others took, a 503 that names it."""
    failed = next((a for a in answers if not a.ok), None)
    if failed is None:
        made = merge([orjson.loads(a.body) for a in answers])
        return Response(orjson.dumps(made), max(a.status for a in answers), media_type="application/json")
    if failed.status >= 500 or any(a.ok for a in answers):
        said = failed.body[:500].decode(errors="replace")
        detail = f"process {failed.process} of {len(answers)} answered {failed.status}: {said}"
        return problem_response(Unavailable(f"{detail}; others may have done it: ask again", retry_after_s=1))
    return failed.response()
