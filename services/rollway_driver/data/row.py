"""`Row`: one task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    prompt: str
    """What the agent is asked."""
    answer: str
    """What it should find, as plain text without separators."""
    data_source: str
    """Names the kind of task; validation scores are averaged by it."""
