"""Requests: a field that is unknown, missing, of the wrong type or out of range is named in the refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rollway_wire.batch import BatchRequest
from rollway_wire.gateway import FencePool, OpenPool, SessionSpec, WorkerSpec
from rollway_wire.rollout import Receipt, Report, RolloutConfig, SavedResult
from tests.wire.examples import ARN, MODELS

GROUP = {"group_id": "g1", "payload": {"prompt": "2+2?"}}
RUNTIME = {"kind": "agentcore", "agent_runtime_arn": ARN}
BATCH: dict[str, Any] = {"groups": [GROUP], "runtime": RUNTIME}

BAD_BATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "no groups": ({"groups": []}, "groups"),
    "no runtime": ({"runtime": None}, "runtime"),
    "unknown field": ({"grups": []}, "grups"),
    "unknown runtime": ({"runtime": {"kind": "lambda"}}, "kind"),
    "runtime without kind": ({"runtime": {"agent_runtime_arn": ARN}}, "kind"),
    "not an ARN": ({"runtime": {"kind": "agentcore", "agent_runtime_arn": "math-agent"}}, "agent_runtime_arn"),
    "endpoint is no URL": ({"runtime": {**RUNTIME, "endpoint_url": "localhost:9000"}}, "endpoint_url"),
    "no calls a second": ({"runtime": {**RUNTIME, "tps_limit": 0}}, "tps_limit"),
    "endless calls a second": ({"runtime": {**RUNTIME, "tps_limit": "inf"}}, "tps_limit"),
    "http without urls": ({"runtime": {"kind": "http", "urls": []}}, "urls"),
    "http url without scheme": ({"runtime": {"kind": "http", "urls": ["10.0.0.1:8080"]}}, "urls"),
    "empty command": ({"runtime": {"kind": "process", "command": []}}, "command"),
    "group twice": ({"groups": [GROUP, GROUP]}, "group_id must be unique"),
    "group id with a slash": ({"groups": [{**GROUP, "group_id": "a/b"}]}, "group_id must be"),
    "experiment with a slash": ({"experiment_id": "a/b"}, "experiment_id must be"),
    "no rollouts": ({"groups": [{**GROUP, "n": 0}]}, "groups.0.n"),
    "too many rollouts": ({"groups": [{**GROUP, "n": 4097}]}, "groups.0.n"),
    "payload is no object": ({"groups": [{**GROUP, "payload": "2+2?"}]}, "payload"),
    "payload holds our key": ({"groups": [{**GROUP, "payload": {"_rollout": {}}}]}, "_rollout"),
    "no time": ({"limits": {"rollout_timeout_s": 0}}, "rollout_timeout_s"),
    "over AgentCore's lifetime": ({"limits": {"rollout_timeout_s": 8 * 3600 + 1}}, "rollout_timeout_s"),
    "no attempts": ({"limits": {"max_attempts": 0}}, "max_attempts"),
    "pool name": ({"capture": {"pool": "a/b"}}, "pool"),
}


@pytest.mark.parametrize("what", sorted(BAD_BATCHES))
def test_a_bad_batch_names_what_is_wrong(what: str) -> None:
    change, named = BAD_BATCHES[what]
    with pytest.raises(ValidationError, match=named.replace(".", r"\.")):
        BatchRequest.model_validate(BATCH | change)


def test_defaults_are_the_documented_ones() -> None:
    made = BatchRequest.model_validate(BATCH)
    assert made.groups[0].n == 1
    assert made.capture is not None and made.capture.pool == "default"
    assert (made.limits.max_attempts, made.require_rewards, made.s3_bucket) == (2, True, None)


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (SessionSpec, {"pool": ""}),
        (SessionSpec, {"sampling_params": []}),
        (SessionSpec, {"session": "x"}),
        (WorkerSpec, {}),
        (WorkerSpec, {"url": "http://w", "weight": 0}),
        (OpenPool, {"policy_version": "new"}),
        (FencePool, {"drain_timeout_s": -1}),
        (FencePool, {"drain_timeout_s": "nan"}),
        (Report, {"session_id": "s", "event": "finished"}),
        (Report, {"session_id": "s", "event": "done", "rewards": 1}),
        (Receipt, {"status": "accepted"}),
        (RolloutConfig, {"exp_id": "", "input_id": "g", "s3_bucket": "b"}),
        (RolloutConfig, {"exp_id": "e", "input_id": "g"}),
        (SavedResult, {"status_code": 200}),
    ],
)
def test_other_bad_requests_are_refused(model: Any, value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(value)


def test_the_agents_own_fields_pass_through_config_and_result() -> None:
    config = RolloutConfig.model_validate({"exp_id": "e", "input_id": "g", "s3_bucket": "b", "seed": 7})
    assert json.loads(config.model_dump_json())["seed"] == 7
    assert config.result_key("s") == "e/g/s.json"
    saved = SavedResult.model_validate(MODELS["saved_result"].model_dump() | {"trace": [1]})
    assert saved.model_dump()["trace"] == [1]


@pytest.mark.parametrize("name", sorted(n for n, m in MODELS.items() if m.model_config.get("frozen")))
def test_frozen_values_stay_as_they_were_made(name: str) -> None:
    field = next(iter(type(MODELS[name]).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(MODELS[name], field, None)
