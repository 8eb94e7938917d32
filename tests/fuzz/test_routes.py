"""Every route of a running gateway and dispatcher, fed what its schema allows, what it forbids, and bodies that are
nearly right: no 500, no answer that takes long, and the service is there at the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.bodies import BODIES
from tests.kit.deadlines import until
from tests.kit.object_storage import Bucket
from tests.kit.services import Service, Services

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4"))
LONG_S = 20.0
bounded = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
AGENT_ROUTES = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    "/models",
    "/x",
)
RLLM_BODIES = (
    "/sessions", "/sessions/batch_delete", "/traces/query", "/admin/workers", "/admin/flush", "/admin/reload",
    "/admin/weight_version",
)  # fmt: skip


@pytest.fixture
def gateway(services: Services) -> Service:
    """Its upstream refuses connections at once, so agents' calls end as 503; that is its answer, not a failure."""
    env = {"ROLLWAY_GATEWAY_PORT": "0", "ROLLWAY_GATEWAY_CONNECT_TIMEOUT_S": "1"}
    return services.start("gateway", ["-m", "rollway_gateway"], env=env)


@pytest.fixture
def dispatcher(services: Services, s3: Bucket, tmp_path: Path) -> Service:
    env = {
        "PORT": "0", "S3_ENDPOINT_URL": s3.endpoint_url, "S3_BUCKET": s3.name, "REGION": s3.region,
        "STATE_PATH": str(tmp_path / "state.sqlite3"),
    }  # fmt: skip
    return services.start(
        "dispatcher", ["-m", "rollway_dispatcher"], env={f"ROLLWAY_DISPATCHER_{k}": v for k, v in env.items()}
    )


def _check(answer: Any, began: float, what: str) -> None:
    assert answer.status_code < 500 or answer.status_code == 503, f"{what}: {answer.status_code} {answer.text[:2000]}"
    assert time.monotonic() - began < LONG_S, f"{what} took {time.monotonic() - began:.1f} s"


def _operations(schema: dict[str, Any]) -> Iterator[Any]:
    for found in schemathesis.openapi.from_dict(schema).get_all_operations():
        yield found.ok()


def _fuzz_schema(url: str) -> None:
    schema = httpx.get(f"{url}/openapi.json", timeout=2 * LONG_S).json()
    for operation in _operations(schema):
        if "/stream" in operation.path or "/events" in operation.path:
            continue

        @bounded
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if isinstance(case.query, dict):
                case.query.pop("wait_s", None)  # waiting is what it asks for
            began = time.monotonic()
            _check(case.call(base_url=url, timeout=2 * LONG_S), began, case.formatted_path)

        ask()


@pytest.mark.timeout(0)
def test_no_route_of_the_gateways_schema_fails(gateway: Service) -> None:
    _fuzz_schema(gateway.url)
    until(gateway.ready, "the gateway is well")
    assert "Traceback" not in gateway.logs()


@pytest.mark.timeout(0)
def test_no_route_of_the_dispatchers_schema_fails(dispatcher: Service) -> None:
    _fuzz_schema(dispatcher.url)
    until(dispatcher.ready, "the dispatcher is well")
    assert "Traceback" not in dispatcher.logs()


def _fuzz_bodies(http: httpx.Client, path: str) -> None:
    @bounded
    @given(BODIES, st.sampled_from(["application/json", "text/plain", "application/octet-stream"]))
    def ask(body: bytes, kind: str) -> None:
        began = time.monotonic()
        answer = http.post(path, content=body, headers={"content-type": kind})
        if "/messages" in path and answer.status_code == 529:
            return  # Anthropic's word for 503
        _check(answer, began, f"{path} {body[:300]!r}")
        json.loads(answer.content)

    ask()


@pytest.mark.timeout(0)
def test_no_nearly_right_body_fails_a_route(gateway: Service) -> None:
    paths = [f"/sessions/s/v1{route}" for route in AGENT_ROUTES] + list(RLLM_BODIES)
    with httpx.Client(base_url=gateway.url, timeout=2 * LONG_S) as http:
        for path in paths:
            _fuzz_bodies(http, path)
    until(gateway.ready, "the gateway is well")
    assert "Traceback" not in gateway.logs()
