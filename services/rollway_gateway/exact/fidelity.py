"""Fidelity: what of a session was exact, by the turn. Stamped into its trajectory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rollway_gateway.exact.standing import UNKNOWN, Exact, Standing
from rollway_gateway.kept_turn import KeptTurn
from rollway_gateway.render import ExactSession
from rollway_gateway.tree.messages import ExactTurn, Growth, MessageTree


class Told:
    """A standing as it was written down."""

    def __init__(self, said: dict[str, Any]) -> None:
        self._said = said

    def as_json(self) -> dict[str, Any]:
        return self._said


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
        self._standing: Standing | Told = UNKNOWN
        self._is_exact = False
        """That standing is."""
        self._trees: dict[str, MessageTree] = {}
        """Conversations told again, until a call goes on with them."""
        self._told = (0, 0)
        """How many branches and truncations `news` has told."""
        self._grown: list[dict[str, Any]] | None = None

    def enter(self, standing: Standing) -> None:
        """A call goes to a worker of this standing. One that is not exact is what the trajectory tells."""
        if self._is_exact or self._standing is UNKNOWN:
            self._standing, self._is_exact = standing, standing.exact is not None

    def session(self, exact: Exact) -> ExactSession:
        key = exact.template.sha256
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = ExactSession(
                exact.template, exact.bridge, tree=self._trees.pop(key, None),
                on_growth=None if self._grown is None else lambda turn, growth: self._grew(key, turn, growth),
            )  # fmt: skip
        return found

    def count(self, turn_id: str, reason: str | None) -> None:
        """A whole turn; ``reason``: why it is not exact."""
        self.turns += 1
        if reason is None:
            self.exact += 1
        elif self._is_exact:
            self._branches.append({"turn_id": turn_id, "reason": reason})

    def seal(self) -> None:
        """No further call: the conversations are no longer needed."""
        self._sessions.clear()
        self._trees.clear()

    # -- written down, and told again

    def write_down(self) -> None:
        """From here on `news` will be asked for."""
        self._grown = []

    def news(self, number_of: Callable[[Standing], int]) -> dict[str, Any]:
        """What happened since the last time, as JSON values; O(what is new).

        Args:
            number_of: names a standing.
        """
        branches, truncated = self._told
        self._told = (len(self._branches), len(self.truncated))
        grown, self._grown = self._grown or [], []
        return {
            "standing": None if isinstance(self._standing, Told) else number_of(self._standing),
            "turns": self.turns,
            "exact": self.exact,
            "first_prompt": self.first_prompt,
            "branches": self._branches[branches:],
            "truncated": self.truncated[truncated:],
            "grown": grown,
        }

    def tell(
        self, news: Mapping[str, Any], standings: Mapping[int, Mapping[str, Any]], turns: Mapping[str, KeptTurn],
        known: dict[str, ExactTurn],
    ) -> None:  # fmt: skip
        """Take news again, each once and in their order.

        Args:
            standings: by number.
            turns: of the session, by id.
            known: exact turns told so far, by id; added to.

        Raises:
            KeyError: something that the news go on from is missing.
        """
        if news["standing"] is not None:
            said = dict(standings[news["standing"]])
            unknown = said == UNKNOWN.as_json()
            self._standing, self._is_exact = UNKNOWN if unknown else Told(said), said["mode"] == "exact"
        self.turns, self.exact, self.first_prompt = news["turns"], news["exact"], news["first_prompt"]
        self._branches += news["branches"]
        self.truncated += news["truncated"]
        self._told = (len(self._branches), len(self.truncated))
        for grown in news["grown"]:
            extends = None if grown["extends"] is None else known[grown["extends"]]
            kept = turns[grown["turn_id"]]
            turn = ExactTurn(
                kept.turn_id, extends, _suffix(kept, extends), kept.completion_token_ids, grown["answer"]
            )  # fmt: skip
            root = None if grown["root"] is None else bytes.fromhex(grown["root"])
            growth = Growth(grown["under"], root, tuple(map(bytes.fromhex, grown["digests"])))
            self._trees.setdefault(grown["template"], MessageTree()).grow(growth, turn)
            known[turn.turn_id] = turn

    def _grew(self, template: str, turn: ExactTurn, growth: Growth) -> None:
        if self._grown is not None:
            self._grown.append(
                {
                    "template": template,
                    "turn_id": turn.turn_id,
                    "extends": None if turn.extends is None else turn.extends.turn_id,
                    "under": growth.under,
                    "root": None if growth.root is None else growth.root.hex(),
                    "digests": [d.hex() for d in growth.digests],
                    "answer": turn.answer,
                }
            )

    @property
    def mode(self) -> Literal["exact", "mirror"]:
        """exact: every turn was."""
        return "exact" if self._is_exact and self.exact == self.turns > 0 else "mirror"

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


def _suffix(kept: KeptTurn, extends: ExactTurn | None) -> array[int]:
    """The prompt after the turn that was gone on from, which need not be the one it is stored against."""
    stored = None if kept.extends is None else kept.extends.turn_id
    if stored == (None if extends is None else extends.turn_id):
        return kept.suffix
    return kept.prompt()[0 if extends is None else extends.end :]
