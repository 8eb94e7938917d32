"""Routed experts of a session's turns: what an engine need not send again, and what is kept of what it sent.

Kept on workers registered with ``routed_experts`` alone. A turn of theirs has its rows, from where the session's end,
or a reason in ``unrouted``; it trains either way.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence

import structlog

from rollway_gateway.capture.routing import Reported, read_rows
from rollway_gateway.tree.held import Ahead, Held
from rollway_wire.routing import RoutedExperts
from rollway_wire.tokens import Turn

log = structlog.get_logger()

SILENT = "the engine returned no routed experts"


class Routing:
    """Of one session."""

    def __init__(self) -> None:
        self._held = Held()

    @property
    def size(self) -> int:
        """Bytes kept besides the session's turns."""
        return self._held.size

    def ahead(self, prompt_ids: array[int], version: int) -> Ahead:
        """Which leading rows of a prompt are held under a policy version."""
        return self._held.ahead(prompt_ids, version)

    def add(self, turn: Turn) -> None:
        """A turn with routed experts, which later ones may go on from."""
        self._held.add(turn)

    def keep(self, turn: Turn, reports: Sequence[Reported], ahead: Ahead | None, *, streamed: bool) -> Turn:
        """The turn with its routed experts, or with the reason why it has none.

        Args:
            reports: of its answer, part by part; none: the engine sent nothing.
            ahead: what the engine was told that is held; None: nothing.
        """
        if turn.incomplete is not None:
            return turn
        if not reports:
            return self._unrouted(turn, SILENT + (" with a stream" if streamed else ""))
        try:
            routed = self._routed(turn, reports, ahead)
        except ValueError as e:
            return self._unrouted(turn, str(e))
        made = dataclasses.replace(turn, routed_experts=routed)
        self.add(made)
        return made

    def _routed(self, turn: Turn, reports: Sequence[Reported], ahead: Ahead | None) -> RoutedExperts:
        block = read_rows(reports)
        held = ahead or self.ahead(turn.prompt_token_ids, turn.policy_version_start)
        if block.first > held.start:
            raise ValueError(f"routed experts were asked for from row {block.first} on, the session holds {held.start}")
        return RoutedExperts(
            start=held.start, after=held.after, layers=block.layers, top_k=block.top_k, data=block.since(held.start)
        )

    @staticmethod
    def _unrouted(turn: Turn, why: str) -> Turn:
        log.warning("turn_unrouted", turn_id=turn.turn_id, why=why)
        return dataclasses.replace(turn, unrouted=why)
