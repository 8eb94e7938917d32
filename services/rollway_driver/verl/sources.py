"""Where a setting may be written in verl's configuration, and what happens when two places say different things.

Our own keys stand under ``rollway`` (or ``actor_rollout_ref.rollout.custom.rollway`` with an unextended configuration).
agentcore-rl-toolkit's (``actor_rollout_ref.rollout.agentcore``, its ``config.py``) and rllm's (``rllm.remote_runtime``,
its ``engine/remote_runtime/protocol.py``) mean here what they mean there. Null and "" say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OWN = ("rollway", "actor_rollout_ref.rollout.custom.rollway")
TOOLKIT = "actor_rollout_ref.rollout.agentcore"
RLLM = "rllm.remote_runtime"

TOOLKIT_KEYS = {
    "agent_runtime_arn": "agent_runtime_arn",
    "s3_bucket": "s3_bucket",
    "reqs_per_sec": "tps_limit",
    "max_rollout_time": "rollout_timeout_s",
    "max_pool_connections": "max_pool_connections",
    "gateway_port": "gateway_port",
    "gateway_store": "gateway_store",
    "gateway_cumulative_token_mode": "gateway_cumulative_token_mode",
    "gateway_renderer_model_family": "gateway_renderer_model_family",
}
RLLM_KEYS = {
    "session_timeout": "rollout_timeout_s",
    "agentcore.agent_runtime_arn": "agent_runtime_arn",
    "agentcore.s3_bucket": "s3_bucket",
    "agentcore.tps_limit": "tps_limit",
}


class SettingsError(ValueError):
    """The configuration cannot be used; the message names the key and the fix."""


def select(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path, or ``default`` where any part of it is missing."""
    at: Any = config
    for part in path.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return default
        at = at[part]
    return at


def _section(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found = select(config, path)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise SettingsError(f"{path} must hold keys, got {found!r:.80}")
    return {k: v for k, v in found.items() if k != "_target_"}


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _renamed(
    section: Iterator[tuple[str, Any]], where: str, names: Mapping[str, str]
) -> Iterator[tuple[str, str, Any]]:
    for key, value in section:
        if key not in names:
            raise SettingsError(f"{where}.{key} is not a known key: choose from {', '.join(sorted(names))}")
        yield names[key], f"{where}.{key}", value


def _rllm(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    section = dict(_section(config, RLLM))
    if not section.pop("enabled", False):
        return
    backend = section.pop("backend", "agentcore")
    if backend != "agentcore":
        raise SettingsError(f"{RLLM}.backend={backend!r}: only agentcore runs here; set it, or rollway.runtime")
    section.pop("harbor", None)
    yield from _renamed(_leaves(section), RLLM, RLLM_KEYS)


def gather(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting that is written anywhere, by its own name.

    Raises:
        SettingsError: a key that no source knows, or two places that disagree.
    """
    found: dict[str, tuple[str, Any]] = {}

    def say(name: str, where: str, value: Any) -> None:
        if value is None or value == "":
            return
        if name in found and found[name][1] != value:
            other, said = found[name]
            raise SettingsError(f"{where}={value!r} but {other}={said!r}: set one of them")
        found[name] = (where, value)

    for root in OWN:
        for key, value in _section(config, root).items():
            say(key, f"{root}.{key}", value)
    for name, where, value in _renamed(_leaves(_section(config, TOOLKIT)), TOOLKIT, TOOLKIT_KEYS):
        say(name, where, value)
    for name, where, value in _rllm(config):
        say(name, where, value)
    say(
        "ppo_mini_steps",
        "actor_rollout_ref.actor.ppo_mini_steps",
        select(config, "actor_rollout_ref.actor.ppo_mini_steps"),
    )
    return {name: value for name, (_, value) in found.items()}
