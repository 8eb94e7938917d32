"""An agent's request, read once: what goes to the engine, and what of the answer the agent asked to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollway_gateway.capture.json_body import read_object
from rollway_gateway.openai_errors import AgentError

Kind = Literal["chat", "text"]
_LENGTH_NAMES = ("max_tokens", "max_completion_tokens")


@dataclass(slots=True)
class Ask:
    """One model call as asked. ``body`` is what the engine gets, but for the model's name."""

    kind: Kind
    body: dict[str, Any]
    stream: bool
    n: int
    """Choices per prompt."""
    model: str | None
    """As the agent named it."""
    shows_logprobs: bool
    shows_ids: bool
    shows_usage: bool
    """Of a stream: its last chunk."""
    shows_reasoning: bool
    shows_routing: bool = False
    """The agent said which routed experts it wants. An engine started to return them sends them asked or not."""
    captured: bool = True
    """False where capture would change the answer; see `_prepare_text`."""
    echo: bool = False
    """Text completions: the answer repeats the prompt."""
    echoed: tuple[str, ...] = ()
    """Prompt texts to put back before echoed answers: an engine asked for token ids leaves them out."""
    hides_prompt_logprobs: bool = False
    """Log-probs added to an echoing request bring the prompt's along."""

    @property
    def shows_text_alone(self) -> bool:
        """Nothing that capture asks for is shown, and all text is, of one choice: the usual call."""
        hidden = not (self.shows_logprobs or self.shows_ids or self.echo)
        return self.n == 1 and self.captured and self.shows_reasoning and hidden


def read_ask(kind: Kind, raw: bytes, overrides: Mapping[str, Any]) -> Ask:
    """Read an agent's request body and prepare the engine's.

    Args:
        overrides: the session's sampling parameters; each replaces the agent's own, and a length limit replaces both
            names of it.

    Raises:
        AgentError: 400, not a JSON object within bounds, or a field this proxy must understand has a wrong type.
    """
    body = read_object(raw)
    _check_types(body)
    stream = bool(body.get("stream"))
    ask = Ask(
        kind=kind, body=body, stream=stream, n=body.get("n") or 1, model=body.get("model"),
        shows_logprobs=_shows_logprobs(kind, body), shows_ids=bool(body.get("return_token_ids")),
        shows_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        shows_reasoning=body.get("include_reasoning") is not False,
        shows_routing=body.get("routed_experts_prompt_start") is not None,
    )  # fmt: skip
    _override(body, overrides)
    ask.n = body.get("n") or 1
    if kind == "chat":
        _prepare_chat(body)
    else:
        _prepare_text(ask)
    if stream and ask.captured:
        _ask_usage(body)
    return ask


def _check_types(body: dict[str, Any]) -> None:
    expected = {
        "stream": (bool, "a boolean"), "n": (int, "an integer"), "model": (str, "a string"),
        "stream_options": (dict, "an object"), "include_reasoning": (bool, "a boolean"),
        "return_token_ids": (bool, "a boolean"), "echo": (bool, "a boolean"),
        "routed_experts_prompt_start": (int, "an integer"),
    }  # fmt: skip
    for name, (kind, words) in expected.items():
        value = body.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise AgentError(400, f"{name} must be {words}, got {type(value).__name__}", param=name)


def _shows_logprobs(kind: Kind, body: dict[str, Any]) -> bool:
    if kind == "text":
        return body.get("logprobs") is not None
    # vLLM shows none for an explicit null, whatever `logprobs` says.
    counted = body.get("top_logprobs", 0) is not None or bool(body.get("logprob_token_ids"))
    return bool(body.get("logprobs")) and counted


def _override(body: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    # Parameters OpenAI's API does not know reach agents under `extra_body`, as their SDK takes them; on the wire that
    # SDK puts them at top level, where an engine looks.
    extra = overrides.get("extra_body")
    if isinstance(extra, Mapping):
        overrides = {**extra, **{k: v for k, v in overrides.items() if k != "extra_body"}}
    if any(name in overrides for name in _LENGTH_NAMES):
        for name in _LENGTH_NAMES:
            body.pop(name, None)
    body.update(overrides)


def _prepare_chat(body: dict[str, Any]) -> None:
    if not body.get("logprobs") and (body.get("top_logprobs") or body.get("logprob_token_ids")):
        return  # the engine refuses this; with log-probs switched on it would not
    body["logprobs"] = True
    if body.get("top_logprobs", 0) is None:
        body["top_logprobs"] = 0
    body["return_token_ids"] = True
    if body.get("include_reasoning") is False:
        body["include_reasoning"] = True  # otherwise vLLM withholds ids and log-probs


def _prepare_text(ask: Ask) -> None:
    """With ``echo``, an engine asked for token ids leaves the prompt's text out of the answer. Text prompts are put
    back; a prompt of token ids cannot be, so such a call is passed on as it is and its turn is marked incomplete."""
    body = ask.body
    ask.echo = bool(body.get("echo"))
    if ask.echo and not ask.shows_ids:
        prompt = body.get("prompt")
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(prompts, list) or not all(isinstance(p, str) for p in prompts):
            ask.captured = False
            return
        ask.echoed = tuple(prompts)
    if body.get("logprobs") is None:
        ask.hides_prompt_logprobs = ask.echo and body.get("prompt_logprobs") is None
        body["logprobs"] = 0
    body["return_token_ids"] = True


def _ask_usage(body: dict[str, Any]) -> None:
    options = body.get("stream_options") or {}
    if not options.get("include_usage"):
        # Continuous usage counts only beside include_usage; switching that on must not wake it.
        body["stream_options"] = {**options, "include_usage": True, "continuous_usage_stats": False}
