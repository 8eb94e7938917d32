"""What a pool's engines have to do, asked of them through the gateway."""

from __future__ import annotations

import pytest

from rollway_gateway.engine_load import read_load
from tests.gateway.conftest import RunningGateway
from tests.kit.scripted_engine import ScriptedEngine

METRICS = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="a \\"b\\" } c"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:num_requests_waiting{engine="1"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
"""


def test_a_servers_engines_are_summed_and_its_fullest_cache_counts() -> None:
    load = read_load("w", METRICS)
    assert load is not None
    assert (load.running, load.waiting, load.kv_usage) == (7, 2, 0.75)


@pytest.mark.parametrize("said", [b"", b"vllm:num_requests_running 1\n", METRICS.replace(b" 3.0", b" NaN")])
def test_what_does_not_say_it_says_nothing(said: bytes) -> None:
    assert read_load("w", said) is None


async def test_the_pool_tells_what_each_healthy_engine_says(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.waiting, engine.kv_usage = 5, 0.5
    answer = (await gateway.http.get("/v1/pools/default/load")).raise_for_status().json()
    (load,) = answer["workers"]
    assert (load["running"], load["waiting"], load["kv_usage"]) == (0, 5, 0.5)
    engine.counts = False
    assert (await gateway.http.get("/v1/pools/default/load")).json() == {"workers": []}
    assert (await gateway.http.get("/v1/pools/nowhere/load")).status_code == 404
