"""Lane: which way one model call goes to a worker, and what its session remembers of the answer.

Past 300 lines because the choice, what the budget and routed experts add to it, and what is kept of the answer share
one call's state.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import structlog

from rollway_gateway.capture.ask import Ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.prompt_ids import KnownPrompts, PromptIds
from rollway_gateway.capture.routing import Reported
from rollway_gateway.exact.as_chat import AsChat, Begun
from rollway_gateway.exact.asking import Asking, Unsaid
from rollway_gateway.exact.budget import Budget
from rollway_gateway.exact.by_ids import read_by_engine, said_by_ids
from rollway_gateway.exact.fidelity import Fidelity
from rollway_gateway.exact.learn import learn
from rollway_gateway.exact.off_loop import off_loop
from rollway_gateway.exact.request import (
    asked_length,
    options_of,
    prompt_of_ids,
    reads_engine,
    shows_special,
    token_body,
    unplannable,
    unresumable,
)
from rollway_gateway.exact.standing import PROMPTS_OTHERWISE, Exact, Standing
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.record import CallRecord
from rollway_gateway.render import ExactSession, Plan, Refused
from rollway_gateway.render.messages import Message
from rollway_gateway.routing import Routing
from rollway_gateway.tree.held import Ahead
from rollway_gateway.tree.messages import Parent
from rollway_gateway.worker import Worker
from rollway_wire.problems import ContractViolation
from rollway_wire.tokens import IDS, NO_VERSION, Turn

log = structlog.get_logger()

CHAT, TEXT = "/chat/completions", "/completions"
SKIP = "routed_experts_prompt_start"
AGREEMENTS = 4
"""So many of a worker's first chats are checked id by id."""
OFF_LOOP_BYTES, OFF_LOOP_IDS, OFF_LOOP_MESSAGES = 1 << 12, 1 << 14, 16
"""New messages as large as this, as many known ids that no prompt was written of yet, or as many messages of a first
turn are planned in a thread."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where an attempt goes."""

    path: str
    body: bytes
    as_chat: AsChat | None = None
    """Tells the answer again as chat; None: it is what the agent asked for."""
    read: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Asks the engine what the chat answer says: the answer comes as a whole, and is streamed on where that was asked.
    Raises `Unsaid`."""
    prompt: PromptIds | None = None
    """Takes the prompt's ids out of the answer; None: the agent is shown them."""


class Lane:
    """Of one call."""

    def __init__(
        self,
        ask: Ask,
        fidelity: Fidelity,
        *,
        budget: Budget,
        routing: Routing,
        count: Callable[[Worker], Awaitable[int | None]],
        asking: Asking,
        prompts: KnownPrompts,
    ) -> None:
        """
        Args:
            count: asks a worker how long the request's prompt is; None: it does not say.
            asking: asks a worker what else there is to know.
        """
        self._ask, self._fidelity = ask, fidelity
        self._budget, self._routing, self._count, self._asking = budget, routing, count, asking
        self._prompts = prompts
        self._limit: int | None = None
        """Tokens that the budget leaves for the answer."""
        self._worker: Worker | None = None
        self._session: ExactSession | None = None
        self._plan: Plan | None = None
        self._reason: str | None = None
        """Why the turn is not exact."""
        self._begun: Begun | None = None
        """The answer was cut, and goes on from here."""
        self._expected: array[int] | None = None
        """The engine's prompt as its template renders it here, where that is checked."""
        self._declined: str | None = None
        """Why ids cannot be sent although the plan has some."""
        self._version = NO_VERSION
        self._ahead: Ahead | None = None
        """The routed experts that the engine was told are held."""
        self._reported: list[Reported] = []
        """Routed experts of the answer's parts before the last."""
        self._by_chat = False
        """The engine's chat route answers."""
        self._own_ids = prompt_of_ids(ask.body) if ask.kind == "text" else None
        """The agent prompts with ids itself: nothing is between what it says and what the engine is prompted with."""

    async def way(self, worker: Worker, model: str, version: int) -> Way:
        """Choose for an attempt on ``worker``, under a policy version.

        Raises:
            AgentError: 400, the session's budget leaves no room for an answer.
        """
        self._worker, self._version, self._expected = worker, version, None
        if self._begun is not None:
            return self._going_on(self._begun, worker, model)
        self._fidelity.enter(worker.standing)
        self._plan = self._ahead = None
        body, as_chat = await self._chosen(worker, model)
        if self._budget:
            body = self._clipped(body, await self._room(worker, body if as_chat is not None else None))
        self._by_chat = as_chat is None and self._ask.kind == "chat"
        if as_chat is None:
            path = TEXT if self._ask.kind == "text" else CHAT
            return Way(path, orjson.dumps({**body, "model": model}), prompt=self._taken_out())
        exact = worker.standing.exact
        if exact is None or not reads_engine(self._ask.body, exact):
            return Way(TEXT, orjson.dumps({**body, "model": model}), as_chat, prompt=self._taken_out())
        whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        read = partial(read_by_engine, self._asking, worker, {**self._ask.body, "model": model}, exact, as_chat)
        return Way(TEXT, orjson.dumps({**whole, "model": model}), as_chat, read)

    async def _chosen(self, worker: Worker, model: str) -> tuple[dict[str, Any], AsChat | None]:
        """The request's body, and who tells the answer again where it is one of ids."""
        asked, standing = self._ask.body, worker.standing
        exact = standing.exact
        self._reason = standing.why if exact is None else self._unplannable()
        if self._reason is not None or exact is None or self._own_ids is not None:
            return asked, None
        plan = await self._planned(exact)
        self._reason = None if plan.drift is None else f"{plan.drift.reason}: {plan.drift.detail}"
        if plan.prompt_ids is None:
            await self._expect(exact, plan)
            return asked, None
        if self._declined is None:
            try:
                told = {**asked, "model": model}
                body = await said_by_ids(self._asking, worker, told, exact, plan.prompt_ids, plan.written)
                return body | self._skipping(plan.prompt_ids), AsChat(asked, exact, plan.prompt_ids)
            except Unsaid as e:
                self._declined = str(e)
        self._reason = self._declined
        self._plan = replace(
            plan, prompt_ids=None, written=None, extends=None
        )  # the engine renders all of it: a branch
        return asked, None

    def _taken_out(self) -> PromptIds | None:
        if self._ask.shows_ids or self._ask.echo or not self._ask.captured:
            return None
        sent = (None, None) if self._plan is None else (self._plan.written, self._plan.prompt_ids)
        return PromptIds(self._prompts, *sent)

    def _unplannable(self) -> str | None:
        if self._ask.kind == "text":
            return None if self._own_ids is not None else "a text completion: its prompt is the agent's own text"
        return unplannable(self._ask.body) if self._ask.captured else "not captured"

    async def _room(self, worker: Worker, body: Mapping[str, Any] | None) -> int | None:
        """What the budget leaves. ``body``: the request, where it is one of ids."""
        plan, first = self._plan, self._fidelity.first_prompt
        if body is not None:
            assert plan is not None and plan.prompt_ids is not None
            length: int | None = len(plan.prompt_ids)
        else:
            length = await self._count(worker)
        if length is None:
            return self._budget.response
        if first is None:
            self._fidelity.first_prompt = length
        if plan is not None:
            first = length if plan.extends is None else plan.extends.first_prompt
        try:
            return self._budget.room(length if first is None else first, length)
        except AgentError:
            self._fidelity.truncated.append("refused")
            raise

    def _clipped(self, body: dict[str, Any], room: int | None) -> dict[str, Any]:
        asked = asked_length(body)
        if room is None or (isinstance(asked, int) and asked <= room):
            return body
        self._limit = room
        return {**{k: v for k, v in body.items() if k != "max_completion_tokens"}, "max_tokens": room}

    @property
    def goes_on(self) -> bool:
        """The answer was cut, and the next `way` goes on with it."""
        return self._begun is not None

    @property
    def remembers(self) -> bool:
        """The answer is wanted by `keep`."""
        return self._plan is not None

    async def _planned(self, exact: Exact) -> Plan:
        self._session = session = self._fidelity.session(exact)
        messages, options = self._ask.body["messages"], options_of(self._ask.body)
        parent = session.find(messages, options)
        plan = partial(session.plan, messages, options, render=False, parent=parent)
        self._plan = plan() if exact.quick and _is_light(parent) else await off_loop(plan)
        return self._plan

    async def _expect(self, exact: Exact, plan: Plan) -> None:
        """What the engine should prompt with, of a worker's first chats: not all that its configuration does to a chat
        shows in its /tokenize."""
        if plan.says_all and self._worker is not None and self._worker.agreements < AGREEMENTS:
            messages, options = self._ask.body["messages"], options_of(self._ask.body)
            try:
                self._expected = await off_loop(partial(exact.template.prompt_ids, messages, options))
            except Refused:  # the engine will say so itself
                self._expected = None

    def refused(self, status: int, body: bytes) -> None:
        """The engine would not take the ids. The next `way` is chat, which refuses in its own words, or serves."""
        self._declined = f"the engine refused prompt ids with {status}: {body[:200].decode(errors='replace')}"

    def keep(self, record: CallRecord, answers: Mapping[int, Message]) -> None:
        """Take a finished call into its session.

        Args:
            answers: the assistant messages by choice, reasoning included.
        """
        if self._by_chat and self._worker is not None and record.answered:
            turns = [t for t in record.turns if t.incomplete is None and t.choice in answers]
            if (why := learn(self._worker, self._ask.body, turns, answers)) is not None:
                self._distrust(why)
        if self._expected is not None and self._worker is not None:
            prompt = record.turns[0].prompt_token_ids
            if prompt == self._expected:
                self._worker.agreements += 1
            elif prompt:
                self._distrust(PROMPTS_OTHERWISE)
        self._keep_routing(record)
        plan = self._plan
        if plan is not None and plan.extends is not None and record.turns[0].prompt_token_ids is plan.prompt_ids:
            record.extends = plan.extends.turn_id
        for turn in record.turns:
            if turn.incomplete is not None:
                continue
            if self._limit is not None and turn.finish_reason == "length":
                self._fidelity.truncated.append(turn.turn_id)
            reason = self._reason
            if self._own_ids is not None and turn.prompt_token_ids != self._own_ids:
                reason = reason or "the engine was prompted with other ids than the agent gave"
            if record.answered and turn.choice in answers:
                reason = self._remember(turn, answers[turn.choice]) or reason
            self._fidelity.count(turn.turn_id, reason)

    def fits(self, worker: Worker) -> bool:
        """Whether an answer that broke off may go on there: its ids mean the same."""
        was, other = None if self._worker is None else self._worker.standing.exact, worker.standing.exact
        return was is not None and other is not None and was.template.sha256 == other.template.sha256

    def resume(self, evidence: Evidence, head: Mapping[str, Any], logprobs: list[dict[str, Any]]) -> bool:
        """Whether an answer that the engine cut can go on; if so, the next `way` does.

        Args:
            evidence: of the answer so far.
            head: its ``id`` and ``created``.
            logprobs: its chat entries, where it does not stream.
        """
        exact = None if self._worker is None else self._worker.standing.exact
        found, prompt = evidence.choices.get(0), evidence.prompt_of(0)
        if exact is None or self._plan is None or found is None or prompt is None:
            return False
        if len(found.ids) != len(found.logprobs) or unresumable(self._ask.body, exact) is not None:
            return False
        if token_body(self._ask.body, prompt + found.ids, exact, sampled=len(found.ids)) is None:
            return False
        if found.routed_experts is not None:
            self._reported.append(Reported(found.routed_experts, self._skipped, len(prompt) + len(found.ids)))
            found.routed_experts = None
        text = exact.template.vocabulary.shown(found.ids, special=shows_special(self._ask.body, exact))
        self._begun = Begun(prompt.tolist(), found.ids.tolist(), text, head, logprobs)
        return True

    def _going_on(self, begun: Begun, worker: Worker, model: str) -> Way:
        exact = worker.standing.exact
        ids = array(IDS, begun.prompt_ids + begun.ids)
        asked = self._clipped(self._ask.body, self._limit)
        body = None if exact is None else token_body(asked, ids, exact, sampled=len(begun.ids))
        if exact is None or body is None:
            raise AgentError(503, "the generation was cut and cannot go on: try again", retry_after_s=1)
        body |= self._skipping(ids)
        as_chat = AsChat(self._ask.body, exact, array(IDS, begun.prompt_ids), begun)
        return Way(TEXT, orjson.dumps({**body, "model": model}), as_chat)

    # -- routed experts

    def _skipping(self, prompt_ids: array[int]) -> dict[str, Any]:
        """What tells the engine which routed experts of a prompt of ids are held; a wish in the request stands."""
        if self._worker is None or not self._worker.routed_experts or self._ask.body.get(SKIP) is not None:
            return {}
        if self._begun is None:
            self._ahead = self._routing.ahead(prompt_ids, self._version)
        return {SKIP: self._skipped} if self._skipped else {}

    @property
    def _skipped(self) -> int:
        """Leading rows that the engine is asked to leave out."""
        if isinstance(asked := self._ask.body.get(SKIP), int):
            return asked
        if self._reported:
            return self._reported[-1].tokens - 1
        return 0 if self._ahead is None else self._ahead.start

    def _keep_routing(self, record: CallRecord) -> None:
        found, record.routed_experts = record.routed_experts, {}
        if self._worker is not None and self._worker.routed_experts:
            record.turns = tuple(self._routed(turn, found.get(turn.choice)) for turn in record.turns)

    def _routed(self, turn: Turn, text: str | None) -> Turn:
        reports = [] if text is None else [*self._reported, Reported(text, self._skipped, turn.length)]
        return self._routing.keep(turn, reports, self._ahead, streamed=self._ask.stream)

    def _distrust(self, why: str) -> None:
        """The worker is not what its probe made of it: its calls are mirrored from here on."""
        worker = self._worker
        if worker is not None and worker.standing.exact is not None:
            log.warning("worker_standing", worker=worker.worker_id, mode="mirror", why=why)
            worker.standing = Standing(why=why, certificate=worker.standing.certificate)

    def _remember(self, turn: Turn, answer: Message) -> str | None:
        """Why the turn is not what was planned; None: it is."""
        if self._session is None or self._plan is None:
            return None
        try:
            self._session.record(
                self._plan, turn_id=turn.turn_id, prompt_ids=turn.prompt_token_ids,
                completion_ids=turn.completion_token_ids, answer=answer,
            )  # fmt: skip
        except ContractViolation as e:
            log.warning("turn_not_as_planned", turn_id=turn.turn_id, detail=e.detail)
            return e.detail
        return None


def _is_light(parent: Parent) -> bool:
    """A plan takes less than what handing it to a thread is worth. Where nothing is extended nothing is rendered, but
    many messages are named."""
    if parent.turn is None:
        return len(parent.unknown) <= OFF_LOOP_MESSAGES
    return parent.turn.unwritten < OFF_LOOP_IDS and len(orjson.dumps(parent.new_messages)) < OFF_LOOP_BYTES
