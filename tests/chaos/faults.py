"""Which fault meets which request: drawn by seed, at each of the four places where something crosses a network."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from aiohttp import web

from tests.kit.faulty_proxy import NOTHING, Fault

Draw = Callable[[web.BaseRequest], Fault]
Choices = list[tuple[float, Callable[[random.Random], Fault]]]
"""Probability and fault; what is left of 1 is no fault."""

INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
S3_SILENCE_S = 33.0
"""Longer than the dispatcher waits for a byte of S3."""


def kind_of(request: web.BaseRequest) -> str:
    """What a request is for, in one word or two."""
    path = request.path
    if path.endswith("/v1/reports"):
        return "report"
    if path.endswith("/v1/batches") and request.method == "POST":
        return "submit"
    if path.startswith("/v1/batches"):
        return "read"
    if path.endswith("/invocations"):
        return "invoke"
    if path.endswith("/stopruntimesession"):
        return "stop"
    if path.endswith("/seal"):
        return "seal"
    if path == "/v1/sessions" and request.method == "POST":
        return "open"
    if "list-type" in request.query_string:
        return "list"
    return f"s3 {request.method.lower()}"


def twice(listing: bytes) -> bytes:
    """Every entry of a listing is there twice."""
    return re.sub(rb"(<Contents>.*?</Contents>)", rb"\1\1", listing, flags=re.DOTALL)


def short(listing: bytes) -> bytes:
    """A listing that lags: its last entry is missing."""
    return re.sub(rb"<Contents>(?:(?!<Contents>).)*</Contents>(?!.*<Contents>)", b"", listing, flags=re.DOTALL)


def of_s3(dice: random.Random, silences: float = 0.0) -> Draw:
    """``silences``: probability of an answer that does not come at all, which costs the dispatcher half a minute."""
    common: Choices = [
        (0.05, lambda _: Fault("S3 answers 500", times=0, answer=(500, INTERNAL))),
        (0.03, lambda _: Fault("S3 answers 503", times=0, answer=(503, SLOW_DOWN))),
        (0.05, lambda d: Fault("S3 slow", delay_s=d.uniform(0.2, 1.5))),
        (0.03, lambda d: Fault("S3 breaks off", delay_s=d.uniform(0.1, 1.0), times=0, breaks=True)),
        (0.03, lambda _: Fault("S3 answer lost", breaks=True)),
        (silences, lambda _: Fault("S3 silent", delay_s=S3_SILENCE_S, times=0, breaks=True)),
    ]
    read: Choices = [*common, (0.03, lambda _: Fault("S3 answer cut short", cuts=True))]
    listing: Choices = [
        *read,
        (0.3, lambda _: Fault("S3 listing doubled", rewrite=twice)),
        (0.1, lambda _: Fault("S3 listing lags", rewrite=short)),
    ]
    return _draw(dice, {"list": listing, "s3 get": read, "s3 head": common[:3], "s3 put": common})


def of_front(dice: random.Random) -> Draw:
    """Between agents or trainers and the dispatcher."""
    report: Choices = [
        (0.10, lambda _: Fault("push lost", times=0, answer=(204, b""))),
        (0.05, lambda _: Fault("push refused", times=0, answer=(503, b""))),
        (0.15, lambda _: Fault("push doubled", times=2)),
        (0.15, lambda d: Fault("push late", delay_s=d.uniform(0.1, 2.0))),
    ]
    submit: Choices = [
        (0.15, lambda _: Fault("batch posted, answer lost", breaks=True)),
        (0.10, lambda _: Fault("batch posted twice", times=2)),
    ]
    read: Choices = [(0.03, lambda _: Fault("results' answer lost", breaks=True))]
    return _draw(dice, {"report": report, "submit": submit, "read": read})


def of_runtime(dice: random.Random) -> Draw:
    common: Choices = [
        (0.03, lambda d: Fault("runtime slow", delay_s=d.uniform(0.2, 1.0))),
        (0.02, lambda _: Fault("runtime answer lost", breaks=True)),
        (0.01, lambda _: Fault("runtime answers 500", times=0, answer=(500, b"{}"))),
    ]
    return _draw(dice, {"invoke": common, "stop": common})


def of_gateway(dice: random.Random) -> Draw:
    common: Choices = [
        (0.03, lambda d: Fault("gateway slow", delay_s=d.uniform(0.2, 1.0))),
        (0.03, lambda _: Fault("gateway answer lost", breaks=True)),
        (0.02, lambda _: Fault("gateway answers 503", times=0, answer=(503, b"{}"))),
    ]
    return _draw(dice, {"open": common, "seal": common})


def _draw(dice: random.Random, by_kind: dict[str, Choices]) -> Draw:
    def draw(request: web.BaseRequest) -> Fault:
        chance = dice.random()
        for probability, fault in by_kind.get(kind_of(request), []):
            chance -= probability
            if chance < 0:
                return fault(dice)
        return NOTHING

    return draw
