"""The driver's settings: the same keys as the toolkit's and rllm's, merged, and refused when they contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollway_driver.verl import settings as settings_module
from rollway_driver.verl.settings import DriverSettings, read_settings
from rollway_driver.verl.sources import RLLM_KEYS, TOOLKIT_KEYS, SettingsError
from rollway_wire.batch import AgentCoreRuntime, HttpRuntime
from tests.driver_verl.made import ARN, config

CONFIG = Path(settings_module.__file__).parent / "config"
TOOLKIT = "actor_rollout_ref__rollout__agentcore"


def test_the_toolkits_keys_mean_what_they_mean_there() -> None:
    keys = {
        "agent_runtime_arn": ARN, "s3_bucket": "rewards", "reqs_per_sec": 7, "max_pool_connections": 3,
        "max_rollout_time": 180, "gateway_port": 9191, "gateway_store": "memory",
        "gateway_cumulative_token_mode": True, "gateway_renderer_model_family": "qwen3",
    }  # fmt: skip
    made = read_settings(config(**{TOOLKIT: keys}, actor_rollout_ref__actor__ppo_mini_steps=2))
    assert made.runtime == AgentCoreRuntime(agent_runtime_arn=ARN, tps_limit=7)
    assert (made.s3_bucket, made.rollout_timeout_s, made.ppo_mini_steps) == ("rewards", 180, 2)
    assert made.gateway_url == "http://127.0.0.1:9191"
    assert made.gateway_cumulative_token_mode and made.gateway_renderer_model_family == "qwen3"


def test_rllms_keys_mean_what_they_mean_there() -> None:
    rllm = {
        "enabled": True, "backend": "agentcore", "session_timeout": 300,
        "agentcore": {"agent_runtime_arn": ARN, "s3_bucket": "rewards", "tps_limit": 5},
    }  # fmt: skip
    made = read_settings(config(**{TOOLKIT: {}}, rllm__remote_runtime=rllm))
    assert made.runtime == AgentCoreRuntime(agent_runtime_arn=ARN, tps_limit=5)
    assert (made.s3_bucket, made.rollout_timeout_s) == ("rewards", 300)


def test_rllms_keys_say_nothing_until_enabled() -> None:
    made = read_settings(config(rllm__remote_runtime={"enabled": False, "session_timeout": 300}))
    assert made.rollout_timeout_s == 1800


def test_defaults_are_the_toolkits_and_unique_to_the_run() -> None:
    one, two = read_settings(config()), read_settings(config())
    assert isinstance(one.runtime, AgentCoreRuntime) and one.runtime.tps_limit == 25
    assert (one.rollout_timeout_s, one.reward, one.min_group_survivors) == (1800, "last", 2)
    assert one.gateway_url == "http://127.0.0.1:9090"
    assert one.pool != two.pool and one.experiment_id != two.experiment_id
    assert one.pool.startswith("exp-")


@pytest.mark.parametrize("name", ["a/b c", "", None, "_" * 200, "ümläut", "-x-"])
def test_any_experiment_name_gives_a_usable_pool(name: str | None) -> None:
    made = read_settings(config(trainer__experiment_name=name))
    assert len(made.pool) <= 64


def test_our_keys_may_stand_in_rollout_custom_of_an_unextended_configuration() -> None:
    made = read_settings(
        config(rollway={}, actor_rollout_ref__rollout__custom={"rollway": {"dispatcher_url": "http://d:1/"}, "x": 1})
    )
    assert made.dispatcher_url == "http://d:1"


def test_another_runtime_needs_no_arn() -> None:
    made = read_settings(config(**{TOOLKIT: {}}, rollway__runtime={"kind": "http", "urls": ["http://a:1"]}))
    assert made.runtime == HttpRuntime(urls=["http://a:1"])


def test_several_gateways_are_a_list_or_comma_separated() -> None:
    for said in (["http://a:1/", "http://b:2"], "http://a:1, http://b:2", ["http://a:1", "http://b:2", "http://a:1"]):
        assert read_settings(config(rollway__gateway_url=said)).gateway_urls == ["http://a:1", "http://b:2"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rollway": {}}, "rollway.dispatcher_url is not set"),
    ({"rollway__dispatcher_url": "localhost:9000"}, "rollway.dispatcher_url: .*must be an http"),
    ({"rollway__dispatcherurl": "http://x"}, "rollway.dispatcherurl: Extra inputs"),
    ({"rollway__reward": "mean"}, "rollway.reward"),
    ({"rollway__pool": "a b"}, "rollway.pool"),
    ({"rollway__gateway_url": "http://a:1,b:2"}, "rollway.gateway_url"),
    ({"rollway__gateway_url": ["http://a:1", 7]}, "rollway.gateway_url"),
    ({"rollway__gateway_url": {"a": "http://a:1"}}, "rollway.gateway_url"),
    ({"rollway__experiment_id": "a/b"}, "experiment_id must be"),
    ({"rollway__metrics_path": "metrics.jsonl"}, "metrics_path must be absolute"),
    ({"rollway__rollout_timeout_s": 0}, "rollway.rollout_timeout_s"),
    ({"rollway__min_group_survivors": 0}, "rollway.min_group_survivors"),
    ({"rollway__max_refills_per_step": -1}, "rollway.max_refills_per_step"),
    ({"rollway": 3}, "rollway must hold keys"),
    ({TOOLKIT: {}}, "no runtime: set actor_rollout_ref.rollout.agentcore.agent_runtime_arn"),
    ({TOOLKIT: {"agent_runtime_arn": "math-agent"}}, "agent_runtime_arn='math-agent'"),
    ({TOOLKIT: {"agent_runtime_arn": ARN, "s3_buckets": "b"}}, "agentcore.s3_buckets is not a known key: choose from"),
    ({f"{TOOLKIT}__gateway_store": "redis"}, "rollway.gateway_store"),
    ({"rllm__remote_runtime": {"enabled": True, "backend": "harbor"}}, "backend='harbor': only agentcore"),
    ({"rllm__remote_runtime": {"enabled": True, "timeout": 3}}, "rllm.remote_runtime.timeout is not a known key"),
    (
        {"rllm__remote_runtime": {"enabled": True, "agentcore": {"s3_bucket": "other"}}},
        "rllm.remote_runtime.agentcore.s3_bucket='other' but actor_rollout_ref.rollout.agentcore.s3_bucket='bucket'",
    ),
    ({"rollway__runtime": {"kind": "http", "urls": ["http://a:1"]}}, "name different runtimes: set one of them"),
    ({TOOLKIT: {}, "rollway__runtime": {"kind": "docker"}}, "rollway.runtime"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_settings(config(**changes))


def test_the_shipped_configuration_holds_every_key_and_no_other() -> None:
    shipped = yaml.safe_load((CONFIG / "rollway_base.yaml").read_text())
    theirs = set(TOOLKIT_KEYS) | {"_target_"}
    assert set(shipped["actor_rollout_ref"]["rollout"]["agentcore"]) == theirs
    remote = shipped["rllm"]["remote_runtime"]
    said = {k for k in remote if k != "agentcore"} | {f"agentcore.{k}" for k in remote["agentcore"]}
    assert said == set(RLLM_KEYS) | {"enabled", "backend"}
    toolkit_only = {
        "max_pool_connections", "gateway_store", "gateway_cumulative_token_mode", "gateway_renderer_model_family",
        "ppo_mini_steps",
    }  # fmt: skip
    assert set(shipped["rollway"]) == set(DriverSettings.model_fields) - toolkit_only


def test_both_shipped_configurations_start_from_ours_and_find_verls() -> None:
    for name in ("rollway_grpo", "rollway_cpu"):
        shipped = yaml.safe_load((CONFIG / f"{name}.yaml").read_text())
        assert shipped["defaults"] == ["rollway_base", "_self_"]
        assert shipped["hydra"]["searchpath"] == ["pkg://verl.trainer.config"]
