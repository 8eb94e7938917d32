"""A chat request as a completion request with prompt ids that samples alike, or why there is none.

vLLM makes the sampling parameters of both routes in the same way, server defaults and clipping to the context included
(`entrypoints/openai/*/protocol.py`, `to_sampling_params`, 0.28 to 0.32), so what is not said here is the same there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import orjson

from rollway_gateway.exact.standing import Exact
from rollway_gateway.render import Options
from rollway_wire.tokens import IDS

_SAMPLING = frozenset({
    "frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "logit_bias", "n", "seed", "stop",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "temperature", "top_p", "top_k",
    "min_p", "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words",
    "response_format", "structured_outputs", "thinking_token_budget", "repetition_detection", "vllm_xargs", "priority",
    "cache_salt", "request_id", "session_id", "kv_transfer_params", "ec_transfer_params", "stream", "stream_options",
    "stream_interval", "user", "routed_experts_prompt_start", "prompt_logprobs",
})  # fmt: skip
"""Fields that mean the same on both routes."""
_PROMPTING = (
    "continue_final_message", "chat_template", "echo", "truncate_prompt_tokens", "add_special_tokens",
    "mm_processor_kwargs", "media_io_kwargs",
)  # fmt: skip
_ANSWERING = ("use_beam_search", "logprob_token_ids", "return_prompt_text")
_GRAMMAR = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs")


def unplannable(body: Mapping[str, Any]) -> str | None:
    """Why a request's prompt is not its messages after those known; None: it is."""
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return "the messages are malformed"
    if tools is not None and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
        return "the tools are malformed"
    if not isinstance(body.get("chat_template_kwargs") or {}, dict):
        return "chat_template_kwargs is malformed"
    if body.get("add_generation_prompt") is False:
        return "add_generation_prompt is off"
    return _given(body, _PROMPTING)


def _given(body: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((f"{name} is given" for name in names if body.get(name) is not None and body[name] is not False), None)


def only_chat(body: Mapping[str, Any], exact: Exact) -> str | None:
    """Why only the engine's chat route can answer a request whose prompt is known; None: ids can."""
    if (reason := _given(body, _ANSWERING)) is not None:
        return reason
    if body.get("prompt_logprobs") is not None and body.get("stream"):
        return "prompt_logprobs are asked of a stream"
    if (body.get("top_logprobs") or 0) < 0:
        return "top_logprobs asks for the whole vocabulary"
    if exact.default_max_tokens and asked_length(body) is None:
        return "the model's own limit on the length of an answer applies"
    if calls_tools(body) and exact.parses and exact.tools is None:
        return "no parser is known for the way this engine reads tool calls"
    if needs_grammar(body) and not exact.renders:
        said = "tool_choice forces a call" if forces_call(body) else "a tool is strict"
        return f"{said}, which the engine's grammar for it does, and the worker has no /render to tell it"
    return None


def needs_grammar(body: Mapping[str, Any]) -> bool:
    """The chat route may build a grammar out of the tools, which a completion must be given."""
    strict = any((t.get("function") or {}).get("strict") for t in body.get("tools") or ())
    return calls_tools(body) and (strict or forces_call(body))


def forces_call(body: Mapping[str, Any]) -> bool:
    """A tool call is asked for: any, or one by its name."""
    return bool(body.get("tools")) and body.get("tool_choice", "auto") not in ("auto", "none", None)


def names_call(body: Mapping[str, Any]) -> bool:
    """A tool call is asked for by its name."""
    return forces_call(body) and isinstance(body["tool_choice"], dict)


def grammar_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the grammar, before a stand-in for the messages, which do not."""
    asked = {name: body[name] for name in _GRAMMAR if body.get(name) is not None}
    return {**asked, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def calls_tools(body: Mapping[str, Any]) -> bool:
    """The answer may call tools."""
    return bool(body.get("tools")) and body.get("tool_choice", "auto") != "none"


def options_of(body: Mapping[str, Any]) -> Options:
    """What besides messages decides the rendering, as vLLM hands it to the template."""
    kwargs = dict(body.get("chat_template_kwargs") or {})
    if (effort := body.get("reasoning_effort")) is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
        kwargs["reasoning_effort"] = effort
    if (documents := body.get("documents")) is not None:
        kwargs["documents"] = documents
    return Options(tools=body.get("tools"), kwargs=kwargs)


def prompt_of_ids(body: Mapping[str, Any]) -> array[int] | None:
    """The one prompt of token ids of a text completion; None: it is text, or several."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or not all(type(i) is int and 0 <= i < 2**31 for i in prompt):
        return None
    return array(IDS, prompt)


def asked_length(body: Mapping[str, Any]) -> Any:
    """The longest answer asked for, by either name."""
    asked = body.get("max_completion_tokens")
    return body.get("max_tokens") if asked is None else asked


def shows_special(body: Mapping[str, Any], exact: Exact) -> bool:
    """Special tokens stay in the text: asked for, or because the engine's tool parser needs its marks."""
    parsed = (calls_tools(body) and exact.parses) or (exact.marks is not None and exact.marks.kind == "qwen3")
    return parsed or body.get("skip_special_tokens") is False


def unresumable(body: Mapping[str, Any], exact: Exact) -> str | None:
    """Why a cut answer cannot go on from its tokens; None: it can."""
    if (reason := unplannable(body) or only_chat(body, exact)) is not None:
        return reason
    if (body.get("n") or 1) != 1:
        return "it has several choices"
    if (reason := _given(body, ("structured_outputs", "response_format"))) is not None:
        return f"{reason}, and a grammar would start anew"
    if needs_grammar(body):
        return "the engine's grammar for its tools would start anew"
    if reads_engine(body, exact):
        return "only the engine reads its tool calls, and only as a whole"
    if body.get("presence_penalty") or body.get("frequency_penalty"):
        return "a penalty counts sampled tokens, which would be prompt"
    return None


def reads_engine(body: Mapping[str, Any], exact: Exact) -> bool:
    """The answer may hold tool calls that only the engine's own parser reads."""
    return calls_tools(body) and exact.parses and exact.tools == "engine"


def asks_by_id(body: Mapping[str, Any]) -> bool:
    """Log-probs are asked for by token id. Completions give alternatives by their text, where two that read alike would
    be one."""
    return bool(body.get("top_logprobs") or body.get("return_tokens_as_token_ids"))


def token_body(
    body: Mapping[str, Any], prompt_ids: array[int], exact: Exact, *, written: bytes | None = None, sampled: int = 0,
    grammar: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:  # fmt: skip
    """The completion request, but for the model's name; None: the prompt leaves no room for an answer.

    Args:
        written: ``prompt_ids`` as a JSON array, where that is there already.
        sampled: how many of the prompt's last tokens are already part of the answer.
        grammar: ``structured_outputs`` as the chat route makes them, where it makes them itself.

    Completions take an absent ``max_tokens`` for 16, chat for the rest of the context, so it is always said.
    """
    room = exact.context - len(prompt_ids)
    asked = asked_length(body)
    if asked is not None:
        asked = asked - sampled if isinstance(asked, int) else 0
    if room < 1 or (asked is not None and asked < 1):
        return None
    out = {name: value for name, value in body.items() if name in _SAMPLING}
    if grammar is not None:
        out.pop("response_format", None)
        out["structured_outputs"] = dict(grammar)
    if shows_special(body, exact):
        out["skip_special_tokens"] = False
    if sampled and out.get("min_tokens"):
        out["min_tokens"] = max(0, out["min_tokens"] - sampled)
    if asks_by_id(body):
        out["return_tokens_as_token_ids"] = True
    return out | {
        "prompt": prompt_ids.tolist() if written is None else orjson.Fragment(written),
        "max_tokens": room if asked is None else asked,
        "logprobs": body.get("top_logprobs") or 0,
        "return_token_ids": True,
        "add_special_tokens": False,
    }
