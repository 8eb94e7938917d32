"""Problems: each error is its status, RFC 9457 on the wire, and the same error again on the other side."""

from __future__ import annotations

import pytest

from rollway_wire import problems
from rollway_wire.failures import RETRYABLE, FailureType


@pytest.mark.parametrize("status", sorted(problems.BY_STATUS))
def test_an_error_becomes_a_problem_and_the_same_error_again(status: int) -> None:
    cls = problems.BY_STATUS[status]
    body = cls("it broke", retry_after_s=1.5, pool="p").problem("/v1/x")
    assert body["status"] == status == cls.status
    assert body["type"] == f"urn:rollway:problem:{cls.code}"
    assert (body["detail"], body["instance"], body["pool"]) == ("it broke", "/v1/x", "p")
    back = problems.from_problem(status, body)
    assert type(back) is cls
    assert (back.detail, back.retry_after_s) == ("it broke", 1.5)


def test_every_error_of_the_tree_has_a_status_and_a_code_of_its_own() -> None:
    classes = [c for c in problems.RollwayError.__subclasses__() if c.__module__ == problems.__name__]
    assert set(problems.BY_STATUS.values()) == set(classes)
    assert len({c.code for c in classes}) == len(classes)


def test_members_of_the_problem_cannot_be_overwritten_by_extras() -> None:
    assert problems.BadRequest("real", detail2="x", status=200).problem()["status"] == 400


@pytest.mark.parametrize(
    ("status", "body", "cls", "detail"),
    [
        (500, "<html>boom", problems.ContractViolation, "<html>boom"),
        (599, {"detail": ""}, problems.BadGateway, "{'detail': ''}"),
        (418, None, problems.BadRequest, "None"),
        (503, {"detail": "later", "retry_after_s": "soon"}, problems.Unavailable, "later"),
        (404, ["x"], problems.NotFound, "['x']"),
    ],
)
def test_a_peers_odd_answer_still_becomes_an_error(status: int, body: object, cls: type, detail: str) -> None:
    error = problems.from_problem(status, body)
    assert type(error) is cls
    assert error.detail == detail
    assert error.retry_after_s is None


def test_a_peers_endless_answer_is_cut() -> None:
    assert len(problems.from_problem(500, "x" * 10_000).detail) == 500


def test_what_another_attempt_cannot_mend_is_not_retried() -> None:
    final = {"agent_error", "timed_out", "cancelled", "no_turns", "contract_error"}
    assert final.isdisjoint(RETRYABLE)
    assert final | RETRYABLE == set(FailureType)
