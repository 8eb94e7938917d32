"""The gateways compared: those of `benchmarks.gateway.subjects`, in the modes that capture, and how to read each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.fidelity.harvest import Harvest, agentcore, rllm, rollway
from benchmarks.gateway.subjects import CHAT, Subject, named


@dataclass(frozen=True)
class Compared:
    subject: Subject
    harvest: Harvest
    base: str = "/sessions/{session}/v1"
    """Of the SDK's base URL."""
    key: str = "EMPTY"
    """The API key; may hold the session."""


def _ours(mode: str, label: str) -> Compared:
    (mirror,) = named("rollway")
    environment = {**mirror.environment, "ROLLWAY_GATEWAY_MODE": mode}
    return Compared(replace(mirror, name=f"rollway-{mode}", label=label, environment=environment), rollway)


def _peer(name: str, harvest: Harvest, **how: str) -> Compared:
    (subject,) = named(name)
    return Compared(subject, harvest, **how)


def _agentcore(mode: str) -> Compared:
    """Linear is its way for agents that only append; tree is its default."""
    linear = _peer("agentcore-linear", agentcore, base="/v1", key="{session}")
    subject = linear.subject
    label = subject.label.replace("linear", mode)
    made = replace(
        subject, name=f"agentcore-{mode}", label=label, command=lambda at: [*subject.command(at), "--mode", mode]
    )
    return replace(linear, subject=made)


COMPARED = (
    _ours("exact", "Rollway, exact mode"),
    _ours("mirror", "Rollway, mirror mode"),
    _peer("rllm-memory", rllm),
    _agentcore("linear"),
    _agentcore("tree"),
)

__all__ = ["CHAT", "COMPARED", "Compared"]
