"""What a call left behind: ids and log-probs per choice, the engine's usage, and whether they agree."""

from __future__ import annotations

import math
from array import array
from typing import Any, cast

from rollway_wire.tokens import IDS, LOGPROB_SLACK, LOGPROBS, are_usual_logprobs

CLAMPED = -9999.0
"""vLLM writes minus infinity as this, and fills a missing log-prob with it."""


class ChoiceEvidence:
    """Of one choice; grows event by event."""

    __slots__ = ("finish_reason", "ids", "logprobs", "prompt", "routed_experts", "unreadable")

    def __init__(self) -> None:
        self.prompt: array[int] | None = None
        self.ids: array[int] = array(IDS)
        self.logprobs: array[float] = array(LOGPROBS)
        self.finish_reason: str | None = None
        self.routed_experts: str | None = None
        """As the engine wrote them (`routing.read_rows`), of the answer's latest part."""
        self.unreadable: str | None = None

    def take(self, ids: list[int] | None, logprobs: list[float | None] | None) -> None:
        """Add the tokens of one event or of the whole answer."""
        try:
            if ids is not None:
                self.ids.fromlist(ids)
            if logprobs is not None:
                if None in logprobs:
                    logprobs = [math.nan if x is None else x for x in logprobs]
                self.logprobs.fromlist(cast("list[float]", logprobs))
        except (TypeError, OverflowError) as e:
            self.unreadable = f"token ids or log-probs of an unknown form: {e}"

    def take_prompt(self, ids: list[int] | array[int]) -> None:
        try:
            self.prompt = ids if isinstance(ids, array) else array(IDS, ids)
        except (TypeError, OverflowError) as e:
            self.unreadable = f"prompt token ids of an unknown form: {e}"

    def end(self, reason: str) -> None:
        if self.finish_reason is not None:
            self.unreadable = "the choice ended twice"
        self.finish_reason = reason


class Evidence:
    """Of one call. ``problem`` is the first thing that went wrong for the call as a whole."""

    __slots__ = (
        "aborted",
        "choices",
        "completion_tokens",
        "echo",
        "errored",
        "n",
        "problem",
        "prompt",
        "prompt_tokens",
    )

    def __init__(self, n: int, *, echo: bool = False) -> None:
        self.n = n
        self.echo = echo
        self.prompt: array[int] | None = None
        """Of a chat call: shared by its choices."""
        self.choices: dict[int, ChoiceEvidence] = {}
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.aborted = False
        """The engine gave a generation up (finish_reason "abort")."""
        self.errored = False
        """The engine ended its stream with an error: the agent has no whole answer."""
        self.problem: str | None = None

    def choice(self, index: int) -> ChoiceEvidence:
        found = self.choices.get(index)
        if found is None:
            found = self.choices[index] = ChoiceEvidence()
        return found

    def fail(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem

    def take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.completion_tokens = _count(usage.get("completion_tokens"))

    def take_prompt(self, ids: list[int] | array[int]) -> None:
        """
        Args:
            ids: int32 where it is an array, which is kept as it is.
        """
        if self.prompt is None:
            try:
                self.prompt = ids if isinstance(ids, array) else array(IDS, ids)
            except (TypeError, OverflowError) as e:
                self.fail(f"prompt token ids of an unknown form: {e}")

    def prompt_of(self, index: int) -> array[int] | None:
        own = self.choices[index].prompt if index in self.choices else None
        return own if own is not None else self.prompt

    def reopen(self) -> None:
        """The answer that was cut goes on."""
        self.aborted = False
        for choice in self.choices.values():
            choice.finish_reason = None

    def finished(self) -> bool:
        """Every choice that began has ended, and one did."""
        return bool(self.choices) and all(c.finish_reason is not None for c in self.choices.values())

    def settle(self) -> None:
        """After the last byte: drop what an echoed prompt put before the log-probs, and check the sums.

        The engine's usage must equal what was captured, completion tokens over all choices and prompt tokens over all
        prompts; otherwise the call as a whole is in doubt and `problem` says so.
        """
        if self.echo:
            for index, c in self.choices.items():
                del c.logprobs[: len(self.prompt_of(index) or ())]
        if self.completion_tokens is None or self.prompt_tokens is None:
            self.fail("the engine reported no usage")
            return
        sampled = self.captured_tokens
        if sampled != self.completion_tokens:
            self.fail(f"{sampled} completion tokens captured, the engine's usage says {self.completion_tokens}")
        asked = sum(len(self.prompt_of(i) or ()) for i in self.choices if i % self.n == 0)
        if asked != self.prompt_tokens:
            self.fail(f"{asked} prompt tokens captured, the engine's usage says {self.prompt_tokens}")

    @property
    def captured_tokens(self) -> int:
        return sum(len(c.ids) for c in self.choices.values())

    @property
    def lost_tokens(self) -> int:
        """Tokens of the engine's usage that no choice holds."""
        return max(0, (self.completion_tokens or 0) - self.captured_tokens)

    def flaw(self, index: int) -> str | None:
        """Why this choice may not train; None when its evidence is whole.

        A log-prob of -9999.0 is how vLLM writes minus infinity or a value it does not have. A token of probability 0
        cannot have been sampled, so either way the number is not evidence and the turn is incomplete.
        """
        if self.problem is not None:
            return self.problem
        c = self.choices[index]
        if c.unreadable is not None:
            return c.unreadable
        if not c.ids:
            return "the engine returned no token ids"
        if not self.prompt_of(index):
            return "the engine returned no prompt token ids"
        if len(c.ids) != len(c.logprobs):
            return f"{len(c.ids)} token ids but {len(c.logprobs)} log-probs"
        if not are_usual_logprobs(c.logprobs):
            if not math.isfinite(sum(c.logprobs)):
                return "a log-prob is missing or not a number"
            if min(c.logprobs) <= CLAMPED:
                return f"a log-prob is {CLAMPED}: minus infinity, or missing at the engine"
            if max(c.logprobs) > LOGPROB_SLACK:
                return "a log-prob is above 0"
        return None if c.finish_reason is not None else "the answer has no finish reason"


def _count(value: Any) -> int | None:
    """A number of tokens; None: it is none, as good as not said."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
