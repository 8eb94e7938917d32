"""One HTTP call as a value: what to send, and how to read the answer. No I/O; the transports send it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ValidationError

from rollway_driver.client.errors import DamagedAnswer
from rollway_wire.batch import ARROW
from rollway_wire.codec import MEDIA_TYPE, load_packed
from rollway_wire.problems import BadGateway, BadRequest, ContractViolation, RollwayError, from_problem

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

ANSWER_TIMEOUT_S = 30.0
"""Seconds a service may take to answer a call that does not wait for anything."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    media_type: str
    """Without parameters, lower case."""
    content: bytes
    retry_after: str | None = None
    next_path: str | None = None
    """Path and query of a list's next page."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """``read`` turns the decoded body of a 2xx answer into a value; what it raises is told apart in `read_answer`."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    timeout_s: float = ANSWER_TIMEOUT_S
    """How long the answer may take, waiting that the call itself asks for included."""


def segment(value: str) -> str:
    """``value`` as one segment of a URL path."""
    return quote(value, safe="")


def json_body(value: Any) -> bytes:
    """``value`` as JSON; pydantic models by their fields, numpy scalars and arrays as numbers and lists.

    Raises:
        BadRequest: something in it has no JSON form.
    """
    tree = value.model_dump() if isinstance(value, BaseModel) else value
    try:
        return orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as e:
        raise BadRequest(f"the request cannot be written as JSON: {e}") from e


def model(cls: type[M]) -> Callable[[Any], M]:
    """A reader for one wire type."""
    return cls.model_validate


def models(cls: type[M]) -> Callable[[Any], list[M]]:
    """A reader for a list of one wire type."""

    def read(body: Any) -> list[M]:
        if not isinstance(body, list):
            raise ValueError(f"expected a list of {cls.__name__}, got {type(body).__name__}")
        return [cls.model_validate(item) for item in body]

    return read


def nothing(_: Any) -> None:
    """A reader for 204."""


def _decoded(answer: Answer) -> Any:
    if not answer.content:
        return None
    if answer.media_type == ARROW:
        return answer.content
    return load_packed(answer.content) if answer.media_type == MEDIA_TYPE else orjson.loads(answer.content)


def read_answer(call: Call[T], answer: Answer, where: str) -> T:
    """The value of a 2xx answer.

    Raises:
        RollwayError: the problem a 4xx or 5xx stands for.
        DamagedAnswer: a 2xx body that is cut short, damaged, or not of this API.
        ContractViolation: a trajectory whose arrays disagree: never retried, it would come again.
    """
    if answer.status >= 400:
        raise _problem(answer)
    if answer.status >= 300:
        raise BadGateway(f"{where} answered {answer.status}: is this the service's own base URL?")
    try:
        return call.read(_decoded(answer))
    except ContractViolation:
        raise
    except (BadRequest, ValidationError, ValueError, KeyError, TypeError, IndexError) as e:
        raise DamagedAnswer(f"{where}: {answer.status} answer cannot be read: {type(e).__name__}: {e!s:.500}") from e


def _problem(answer: Answer) -> RollwayError:
    try:
        body: Any = orjson.loads(answer.content)
    except ValueError:
        body = answer.content.decode("utf-8", "replace") or f"HTTP {answer.status} without a body"
    error = from_problem(answer.status, body)
    if error.retry_after_s is None and answer.retry_after is not None and answer.retry_after.isdigit():
        error.retry_after_s = float(answer.retry_after)
    return error
