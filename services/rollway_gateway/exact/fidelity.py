"""Fidelity: what of a session was exact, by the turn. Stamped into its trajectory."""

from __future__ import annotations

from typing import Any, Literal

from rollway_gateway.exact.standing import UNKNOWN, Exact, Standing
from rollway_gateway.render import ExactSession


class Fidelity:
    """Of one session. A turn is exact when its prompt is what was prompted and sampled before plus what is new, or when
    nothing came before it; the others are branches, each with its reason."""

    def __init__(self) -> None:
        self.turns = 0
        """Whole turns."""
        self.exact = 0
        self.first_prompt: int | None = None
        """Length of the session's first prompt, as far as known."""
        self.truncated: list[str] = []
        """What the session's budget cut: ids of turns, or "refused" for a call it left no room for."""
        self._branches: list[dict[str, Any]] = []
        self._sessions: dict[str, ExactSession] = {}
        """By template: workers of one pool may differ."""
        self._standing = UNKNOWN

    def enter(self, standing: Standing) -> None:
        """A call goes to a worker of this standing. One that is not exact is what the trajectory tells."""
        if self._standing.exact is not None or self._standing is UNKNOWN:
            self._standing = standing

    def session(self, exact: Exact) -> ExactSession:
        key = exact.template.sha256
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = ExactSession(exact.template, exact.bridge)
        return found

    def count(self, turn_id: str, reason: str | None) -> None:
        """A whole turn; ``reason``: why it is not exact."""
        self.turns += 1
        if reason is None:
            self.exact += 1
        elif self._standing.exact is not None:
            self._branches.append({"turn_id": turn_id, "reason": reason})

    def seal(self) -> None:
        """No further call: the conversations are no longer needed."""
        self._sessions.clear()

    @property
    def mode(self) -> Literal["exact", "mirror"]:
        """exact: every turn was."""
        return "exact" if self._standing.exact is not None and self.exact == self.turns > 0 else "mirror"

    def metadata(self) -> dict[str, Any]:
        """JSON values for the trajectory."""
        said = self._standing.as_json()
        return {
            "fidelity": {"turns": self.turns, "exact": self.exact},
            "mode_reason": said["why"],
            "certificate": said["certificate"],
            "branches": list(self._branches),
            "truncated": list(self.truncated),
        }
