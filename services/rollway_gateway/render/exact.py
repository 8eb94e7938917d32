"""A session in exact mode: which ids to prompt with, and what to remember of the answer."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollway_gateway.render.bridge import Bridge, Drift, DriftReason
from rollway_gateway.render.messages import Message, engine_messages
from rollway_gateway.render.template import Options, Refused, Template
from rollway_gateway.tree.messages import ExactTurn, Growth, MessageTree, Name, Parent
from rollway_wire.problems import BadRequest, ContractViolation


@dataclass(frozen=True, slots=True)
class Plan:
    """How to prompt for one request."""

    prompt_ids: array[int] | None
    """int32, the whole prompt. None: it is the engine's to render; pass the chat on."""
    written: bytes | None
    """``prompt_ids`` as a JSON array, where they extend a turn."""
    extends: ExactTurn | None
    """The turn whose ids ``prompt_ids`` starts with; None for a first turn or a branch."""
    drift: Drift | None
    """Why a known history is not extended. A first turn, or a history not known, is no drift."""
    parent: Parent
    names: Sequence[Name]
    """Of the messages below the parent's node."""
    says_all: bool
    """The ids of the prompt say all of it, so a later turn can go on from them. Not with images, which only the engine
    renders, nor where it refuses to."""


class ExactSession:
    """One session. Not thread-safe; plan and record are quick, and separate because sampling lies between them."""

    def __init__(
        self, template: Template, bridge: Bridge, *, tree: MessageTree | None = None,
        on_growth: Callable[[ExactTurn, Growth], None] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            tree: the conversations so far, grown again.
            on_growth: told of every answer that is remembered.
        """
        self._template, self._bridge = template, bridge
        self._tree = MessageTree() if tree is None else tree
        self._on_growth = on_growth

    def find(self, messages: Sequence[Message], options: Options) -> Parent:
        """Where a request stands in the session, for `plan`."""
        return self._tree.find_parent(messages, options.tools, options.kwargs)

    def plan(
        self, messages: Sequence[Message], options: Options, *, render: bool = True, parent: Parent | None = None
    ) -> Plan:
        """The prompt of a request: the exact ids so far and what its new messages add, or a full rendering.

        Changes nothing: a plan that is never recorded leaves no trace.

        Args:
            render: False leaves a full rendering to the engine: its ids are then those the engine reports, and
                ``prompt_ids`` is None where nothing is extended.
            parent: as `find` found it. With it, a plan changes nothing of the session and may be made in a thread.
        """
        parent = self.find(messages, options) if parent is None else parent
        names = parent.names()
        drift: Drift | None = None
        if parent.turn is not None:
            history = messages[: parent.known - 1]
            added = self._bridge.extend(parent.turn, history, parent.new_messages, options)
            if not isinstance(added, Drift):
                return Plan(*parent.turn.prompt(added), parent.turn, None, parent, names, says_all=True)
            drift = added
        try:
            if render:
                return Plan(
                    self._template.prompt_ids(messages, options), None, None, drift, parent, names, says_all=True
                )
            engine_messages(messages, "string")
            return Plan(None, None, None, drift, parent, names, says_all=True)
        except (Refused, BadRequest) as e:
            return Plan(None, None, None, drift or Drift(DriftReason.REFUSED, e.detail), parent, names, says_all=False)

    def record(
        self, plan: Plan, *, turn_id: str, prompt_ids: array[int], completion_ids: array[int], answer: Message
    ) -> ExactTurn | None:
        """Remember an answer, so that the next request goes on from its ids. Once a choice.

        None, and nothing is remembered, where ids alone do not say the prompt again (images): the session stays with
        whole chats from there on.

        Args:
            prompt_ids: what the engine says it was prompted with.
            completion_ids: as sampled, closing token included.
            answer: the assistant message as the agent is given it, with reasoning and tool calls.

        Raises:
            ContractViolation: the engine's prompt is not the planned one.
        """
        if not plan.says_all:
            return None
        planned = plan.prompt_ids
        if plan.extends is not None and prompt_ids is not planned and prompt_ids != planned:
            raise ContractViolation(f"turn {turn_id}: the engine was prompted with other ids than planned")
        start = 0 if plan.extends is None else plan.extends.end
        suffix = prompt_ids[start:] if start else prompt_ids
        turn = ExactTurn(turn_id, plan.extends, suffix, completion_ids, answer)
        growth = self._tree.add(plan.parent, answer, turn, plan.names)
        if self._on_growth is not None:
            self._on_growth(turn, growth)
        return turn
