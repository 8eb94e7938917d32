"""A Responses request as a chat request."""

from __future__ import annotations

from typing import Any

from rollway_gateway.dialects.fields import (
    ENGINE_FIELDS,
    an_object,
    check_known,
    check_only,
    get,
    handed_on,
    need,
    refused,
)

LOGPROBS = "message.output_text.logprobs"

_SAME = ENGINE_FIELDS | {"model", "temperature", "top_p", "user", "stop"}
_READ = {
    "input", "instructions", "max_output_tokens", "stream", "tools", "tool_choice", "parallel_tool_calls", "text",
    "reasoning", "include", "top_logprobs", "previous_response_id", "store",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "max_tool_calls", "stream_options", "return_token_ids",
}  # fmt: skip
"""Accounting and hints of the provider's service, limits on tools it would run, and what vLLM's own route ignores."""
_ONLY: dict[str, tuple[Any, ...]] = {
    "background": (False,), "truncation": ("disabled",), "enable_response_messages": (False,),
}  # fmt: skip
_INCLUDED = (
    LOGPROBS, "reasoning.encrypted_content", "code_interpreter_call.outputs", "file_search_call.results",
    "computer_call_output.output.image_url", "message.input_image.image_url", "web_search_call.results",
    "web_search_call.action.sources",
)  # fmt: skip
"""All but the first ask for more about items that are never made here; reasoning comes as plain text in any case."""
_TOOL_ONLY: dict[str, tuple[Any, ...]] = {"defer_loading": (False,), "allowed_callers": (["direct"],)}
_REASONING_ONLY: dict[str, tuple[Any, ...]] = {"mode": ("standard",), "context": ("auto",)}
_CHOICES = ("none", "auto", "required")


def to_chat(body: dict[str, Any], messages: list[dict[str, Any]], *, continues: bool) -> dict[str, Any]:
    """The chat request of a ``POST /v1/responses`` body.

    Args:
        messages: of the whole conversation but for the instructions.
        continues: the last message is the assistant's, to be gone on with.

    Raises:
        AgentError: 400, naming what cannot be served.
    """
    check_known(body, _SAME | _READ | _WITHOUT_EFFECT | _ONLY.keys())
    check_only(body, _ONLY)
    if (instructions := get(body, "instructions", str)) is not None:
        messages = [{"role": "system", "content": instructions}, *messages]
    chat = {"messages": messages} | handed_on(body, _SAME)
    if continues:
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if (limit := get(body, "max_output_tokens", int)) is not None:
        chat["max_tokens"] = limit
    if get(body, "stream", bool):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    _tools(body, chat)
    _format(body, chat)
    _reasoning(body, chat)
    _logprobs(body, chat)
    return chat


def tool_choice(body: dict[str, Any]) -> str | dict[str, Any]:
    """As the response echoes it."""
    if not body.get("tools"):
        return "none"
    return body.get("tool_choice") or "auto"


def _tools(body: dict[str, Any], chat: dict[str, Any]) -> None:
    given = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(get(body, "tools", list) or ())]
    names = [tool["function"]["name"] for tool in given]
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind != "function":
            raise refused(f"a tool_choice of type {kind!r} is not supported, only function", "tool_choice")
        name = need(choice, "name", str, "tool_choice")
        if name not in names:
            raise refused("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
        choice = {"type": "function", "function": {"name": name}}
    elif choice not in _CHOICES:
        raise refused(f"tool_choice must be {', '.join(_CHOICES)} or a function, got {choice!r}", "tool_choice")
    elif choice == "required" and not given:
        raise refused("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    if given:
        chat |= {"tools": given, "tool_choice": choice}
        if (parallel := get(body, "parallel_tool_calls", bool)) is not None:
            chat["parallel_tool_calls"] = parallel


def _tool(entry: Any, where: str) -> dict[str, Any]:
    tool = an_object(entry, where)
    kind = need(tool, "type", str, where)
    if kind != "function":
        raise refused(f"{where}: a tool of type {kind!r} is not supported, only function tools are", f"{where}.type")
    check_known(tool, {"type", "name", "description", "parameters", "strict"} | _TOOL_ONLY.keys(), where)
    check_only(tool, _TOOL_ONLY, where)
    function: dict[str, Any] = {"name": need(tool, "name", str, where)}
    for name, shape in (("description", str), ("parameters", dict), ("strict", bool)):
        if (value := get(tool, name, shape, where)) is not None:
            function[name] = value
    return {"type": "function", "function": function}


def _format(body: dict[str, Any], chat: dict[str, Any]) -> None:
    text = get(body, "text", dict)
    if text is None:
        return
    check_known(text, ("format", "verbosity"), "text")
    check_only(text, {"verbosity": ("medium",)}, "text")
    wanted = get(text, "format", dict, "text")
    if wanted is None or wanted.get("type") == "text":
        return
    if "structured_outputs" in chat:
        raise refused("Cannot specify both structured_outputs and text.format", "structured_outputs")
    match wanted.get("type"):
        case "json_object":
            chat["response_format"] = {"type": "json_object"}
        case "json_schema":
            check_known(wanted, ("type", "name", "schema", "strict", "description"), "text.format")
            need(wanted, "name", str, "text.format")
            need(wanted, "schema", dict, "text.format")
            schema = {k: v for k, v in wanted.items() if k != "type" and v is not None}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        case other:
            raise refused(f"text.format.type {other!r} is not supported: text, json_object or json_schema", "text")


def _reasoning(body: dict[str, Any], chat: dict[str, Any]) -> None:
    reasoning = get(body, "reasoning", dict)
    if reasoning is None:
        return
    check_known(reasoning, {"effort", "summary", "generate_summary"} | _REASONING_ONLY.keys(), "reasoning")
    check_only(reasoning, _REASONING_ONLY, "reasoning")
    if (effort := get(reasoning, "effort", str, "reasoning")) is not None:
        chat["reasoning_effort"] = effort


def _logprobs(body: dict[str, Any], chat: dict[str, Any]) -> None:
    included = get(body, "include", list) or []
    for name in included:
        if name not in _INCLUDED:
            raise refused(f"include {name!r} is not supported", "include")
    top = get(body, "top_logprobs", int)
    if LOGPROBS in included:
        chat |= {"logprobs": True, "top_logprobs": top or 0}
