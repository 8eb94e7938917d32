"""One invocation: the request's payload read, its ``_rollout`` checked before anything runs, its secrets kept apart."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from rollway_wire.rollout import ROLLOUT_KEY, Receipt, ReportTarget, RolloutConfig

REDACTED = "[redacted]"
M = TypeVar("M", bound=BaseModel)
_S3_FIELDS = ("exp_id", "input_id", "s3_bucket")
_SHORTEST_SECRET = 8  # "EMPTY", which many clients send as a key, is no secret and a common word in a traceback


class Refused(HTTPException):
    """An invocation that does not start. Reads as its detail alone, because older bedrock-agentcore answers 500 with
    ``str(error)`` where newer ones answer ``status_code`` with ``detail``."""

    def __str__(self) -> str:
        return self.detail


@dataclass(frozen=True, slots=True)
class Invocation:
    """What is to be run, and where its result goes."""

    session_id: str
    payload: dict[str, Any]
    """As received; the agent's own, which it may change."""
    config: RolloutConfig | None
    """None: no ``exp_id``, ``input_id`` and ``s3_bucket``, so nothing is saved."""
    report: ReportTarget | None

    @property
    def result_key(self) -> str | None:
        return self.config.result_key(self.session_id) if self.config else None

    @property
    def receipt(self) -> dict[str, Any]:
        """The immediate answer: ``status``, and ``s3_bucket`` and ``result_key`` where a result is saved."""
        bucket = self.config.s3_bucket if self.config else None
        return Receipt(status="processing", s3_bucket=bucket, result_key=self.result_key).model_dump(exclude_none=True)

    def echo(self) -> dict[str, Any]:
        """A copy of the payload to save beside the result, without `_rollout.api_key` and `_rollout.report.key`."""
        shown: dict[str, Any] = json.loads(
            json.dumps(self.payload)
        )  # it came as JSON; deepcopy is slower and shallower
        rollout = shown.get(ROLLOUT_KEY)
        if not isinstance(rollout, dict):
            return shown
        if rollout.get("api_key"):
            rollout["api_key"] = REDACTED
        if isinstance(rollout.get("report"), dict) and rollout["report"].get("key"):
            rollout["report"]["key"] = REDACTED
        if isinstance(rollout.get("base_url"), str):  # agents that send a fixed key get theirs inside the URL
            rollout["base_url"] = self.scrub(rollout["base_url"])
        return shown

    def scrub(self, text: str) -> str:
        """``text`` with this invocation's keys taken out."""
        rollout = self.payload.get(ROLLOUT_KEY)
        keys = [rollout.get("api_key")] if isinstance(rollout, dict) else []
        keys += [self.report.key] if self.report else []
        for key in keys:
            if isinstance(key, str) and len(key) >= _SHORTEST_SECRET:
                text = text.replace(key, REDACTED)
        return text


def read_invocation(payload: Any, session_id: str | None) -> Invocation:
    """The invocation that ``payload`` asks for. Without a session id (a local call) it gets one of its own.

    Raises:
        Refused: 400, naming the field that is missing or wrong.
    """
    if not isinstance(payload, dict):
        raise Refused(400, f"the payload must be a JSON object, got {type(payload).__name__}")
    rollout = payload.get(ROLLOUT_KEY)
    if rollout is None:
        rollout = {}
    if not isinstance(rollout, dict):
        raise Refused(400, f"{ROLLOUT_KEY} must be an object, got {type(rollout).__name__}")
    present = [f for f in _S3_FIELDS if rollout.get(f) is not None]
    missing = [f for f in _S3_FIELDS if f not in present]
    if present and missing:
        names = " and ".join(f"{ROLLOUT_KEY}.{f}" for f in missing)
        raise Refused(400, f"{names} missing: give exp_id, input_id and s3_bucket, or none of them to save nothing")
    config = _read(RolloutConfig, rollout, ROLLOUT_KEY) if present else None
    target = rollout.get("report")
    report = _read(ReportTarget, target, f"{ROLLOUT_KEY}.report") if target is not None else None
    if report and (urlsplit(report.url).scheme not in ("http", "https") or not urlsplit(report.url).hostname):
        raise Refused(400, f"{ROLLOUT_KEY}.report.url must be an http or https URL, got {report.url!r:.200}")
    return Invocation(session_id or str(uuid.uuid4()), payload, config, report)


def _read(model: type[M], value: Any, where: str) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        path = ".".join([where, *map(str, first["loc"])])
        raise Refused(400, f"{path}: {first['msg']}") from e
