"""An agent's report is taken past the framework; whatever is not plainly a report gets there whole."""

from __future__ import annotations

from typing import Any

import pytest

from rollway_dispatcher.api.reports_lane import ReportsLane
from rollway_wire.problems import Unauthorized
from rollway_wire.rollout import Report

BEAT = b'{"session_id":"s","event":"heartbeat"}'
HEADERS = {"content-type": "application/json", "authorization": "Bearer good"}


class Taken:
    """A dispatcher that takes reports with one key."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def report(self, report: Report, bearer: str) -> None:
        if bearer != "good":
            raise Unauthorized("refused")
        self.reports.append(report)


async def call(
    *chunks: bytes, method: str = "POST", path: str = "/v1/reports", **headers: str | None
) -> tuple[Taken, list[int], list[bytes]]:
    """What was taken, the statuses the lane itself answered, and the bodies that arrived behind it."""
    dispatcher, behind, statuses = Taken(), [], []
    given = HEADERS | {"content-length": str(sum(map(len, chunks)))}
    given |= {k.replace("_", "-"): v for k, v in headers.items()}
    messages = [
        {"type": "http.request", "body": chunk, "more_body": i + 1 < len(chunks)} for i, chunk in enumerate(chunks)
    ]

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        behind.append(body)

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "method": method, "path": path, "state": {"dispatcher": dispatcher},
        "headers": [(k.encode(), v.encode()) for k, v in given.items() if v is not None],
    }  # fmt: skip
    await ReportsLane(framework)(scope, receive, send)
    return dispatcher, statuses, behind


async def test_a_report_is_answered_without_the_framework() -> None:
    dispatcher, statuses, behind = await call(BEAT)
    assert [r.event for r in dispatcher.reports] == ["heartbeat"]
    assert (statuses, behind) == ([204], [])


@pytest.mark.parametrize(
    ("chunks", "changed"),
    [
        ((BEAT,), {"method": "PUT"}),
        ((BEAT,), {"path": "/v1/reports/"}),
        ((BEAT,), {"authorization": "Bearer bad"}),
        ((BEAT,), {"authorization": None}),
        ((BEAT,), {"authorization": "Basic good"}),
        ((BEAT,), {"content_type": "text/plain"}),
        ((BEAT,), {"content_length": None}),
        ((BEAT,), {"content_length": "9" * 30}),
        ((b"{}",), {}),
        ((b"\xff",), {}),
        ((b" " * 5000 + BEAT,), {}),
        ((BEAT[:9], BEAT[9:]), {}),
    ],
)
async def test_whatever_else_arrives_behind_it_whole(chunks: tuple[bytes, ...], changed: dict[str, Any]) -> None:
    dispatcher, statuses, behind = await call(*chunks, **changed)
    assert dispatcher.reports == statuses == []
    assert behind == [b"".join(chunks)]
