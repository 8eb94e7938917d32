"""A result that cannot be saved as it is becomes an error that says what to mend."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rollway_shim import RolloutApp
from tests.shim.conftest import Bucket
from tests.shim.servers import serving


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"rewards": [0.5, math.nan]}, "result.rewards[1] is nan"),
        ({"rewards": 1.0, "metrics": {"model": object()}}, "result.metrics.model is a builtins.object"),
        ([1.0], "the agent must return a dict, got list"),
        (None, "the agent must return a dict, got NoneType"),
        ({"status_code": "fine"}, "result.status_code must be an integer"),
        ({"stop_reason": 3}, "result.stop_reason must be text"),
    ],
)
def test_a_bad_result_is_saved_as_an_error_that_names_the_place(value: Any, named: str, bucket: Bucket) -> None:
    app = RolloutApp()
    app.rollout_entrypoint(lambda payload: value)
    with serving(app) as client:
        document = bucket.saved(client.invoke({"prompt": "p", "_rollout": bucket.rollout()})[1])
    assert document["status_code"] == 500 and named in document["stop_reason"]
    assert "traceback" in document and "rewards" not in document and document["payload"]["prompt"] == "p"


def test_nan_in_the_payload_is_an_error_without_the_echo(bucket: Bucket) -> None:
    """Python reads NaN from a request; JSON cannot echo it, so the error says so and the echo is left out."""
    app = RolloutApp()
    app.rollout_entrypoint(lambda payload: {"rewards": 1})
    with serving(app) as client:
        document = bucket.saved(client.invoke({"x": math.nan, "_rollout": bucket.rollout()})[1])
    assert (document["status_code"], document["payload"]) == (500, None)
    assert document["stop_reason"].startswith("payload.x is nan")


def test_a_payload_too_deep_to_echo_is_an_error_without_the_echo(bucket: Bucket) -> None:
    app = RolloutApp()
    app.rollout_entrypoint(lambda payload: {"rewards": 1})
    deep = b"[" * 700 + b"]" * 700
    body = json.dumps({"x": "DEEP", "_rollout": bucket.rollout()}).encode().replace(b'"DEEP"', deep)
    with serving(app) as client:
        document = bucket.saved(client.invoke(body)[1])
    assert (document["status_code"], document["payload"]) == (500, None)
    assert document["stop_reason"] == "payload is nested too deeply"
