"""A Messages request as a chat request."""

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
from rollway_gateway.dialects.messages.content import chat_messages, system_text

_SAME = ENGINE_FIELDS | {"model", "temperature", "top_p"}
_READ = {
    "messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "tool_choice", "thinking", "output_config",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "metadata", "service_tier", "cache_control", "inference_geo", "return_token_ids", "logprobs", "top_logprobs",
}  # fmt: skip
"""Accounting and hints of the provider's service, and what vLLM's own route ignores too."""
_ONLY = {"speed": ("standard",)}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_TOOL_FIELDS = {"type", "name", "description", "input_schema", "strict", "cache_control", "eager_input_streaming"}
_TOOL_ONLY: dict[str, tuple[Any, ...]] = {
    "defer_loading": (False,), "allowed_callers": (["direct"],), "input_examples": ([],),
}  # fmt: skip


def to_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request of a ``POST /v1/messages`` body.

    Raises:
        AgentError: 400, naming what cannot be served.
    """
    check_known(body, _SAME | _READ | _WITHOUT_EFFECT | _ONLY.keys())
    check_only(body, _ONLY)
    limit = need(body, "max_tokens", int)
    if limit <= 0:
        raise refused("max_tokens must be positive", "max_tokens")
    chat = _prompt(body) | handed_on(body, _SAME - {"chat_template_kwargs"}) | {"max_tokens": limit}
    if (stop := get(body, "stop_sequences", list)) is not None:
        chat["stop"] = stop
    if get(body, "stream", bool):
        # Counts on every chunk: the first event already says how long the prompt is.
        chat |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    _thinking(body, chat)
    return chat


def to_count(body: dict[str, Any]) -> dict[str, Any]:
    """The body for the engine's ``/tokenize`` of a ``POST /v1/messages/count_tokens`` body.

    Raises:
        AgentError: 400, naming what cannot be served.
    """
    given = {**body}
    given.pop("max_tokens", None)
    check_known(given, _SAME | _READ | _WITHOUT_EFFECT | _ONLY.keys())
    check_only(given, _ONLY)
    chat = _prompt(given)
    _thinking(given, chat)
    kept = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
    return {name: chat[name] for name in kept if name in chat}


def _prompt(body: dict[str, Any]) -> dict[str, Any]:
    """What the template renders: messages, tools, and how the prompt ends."""
    messages = chat_messages(need(body, "messages", list))
    if (system := body.get("system")) is not None and (text := system_text(system, "system")) is not None:
        messages.insert(0, {"role": "system", "content": text})
    chat: dict[str, Any] = {"messages": messages}
    if messages and messages[-1]["role"] == "assistant":
        if "tool_calls" in messages[-1]:
            raise refused("messages: the last one uses tools, and their results must follow", "messages")
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    _tools(body, chat)
    if (kwargs := get(body, "chat_template_kwargs", dict)) is not None:
        chat["chat_template_kwargs"] = dict(kwargs)
    return chat


def _tools(body: dict[str, Any], chat: dict[str, Any]) -> None:
    given = get(body, "tools", list) or []
    choice = get(body, "tool_choice", dict)
    if given:
        chat["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(given)]
        chat["tool_choice"] = "auto"
    if choice is None:
        return
    check_known(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice")
    kind = need(choice, "type", str, "tool_choice")
    names = [tool["function"]["name"] for tool in chat.get("tools", ())]
    plain = {"auto": "auto", "any": "required", "none": "none"}
    if kind == "tool":
        name = need(choice, "name", str, "tool_choice")
        if name not in names:
            raise refused(f"tool_choice names the tool {name!r}, which is not in tools", "tool_choice.name")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind not in plain:
        raise refused(f"tool_choice.type must be auto, any, tool or none, got {kind!r}", "tool_choice.type")
    elif kind == "any" and not names:
        raise refused("tool_choice any needs tools", "tool_choice")
    elif names:
        chat["tool_choice"] = plain[kind]
    if get(choice, "disable_parallel_tool_use", bool, "tool_choice"):
        chat["parallel_tool_calls"] = False


def _tool(entry: Any, where: str) -> dict[str, Any]:
    tool = an_object(entry, where)
    kind = get(tool, "type", str, where) or "custom"
    if kind != "custom":
        raise refused(
            f"{where}: the tool type {kind!r} runs at the provider and is not supported, only custom tools are",
            f"{where}.type",
        )
    check_known(tool, _TOOL_FIELDS | _TOOL_ONLY.keys(), where)
    check_only(tool, _TOOL_ONLY, where)
    schema = need(tool, "input_schema", dict, where)
    function: dict[str, Any] = {"name": need(tool, "name", str, where)}
    if (description := get(tool, "description", str, where)) is not None:
        function["description"] = description
    function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
    if (strict := get(tool, "strict", bool, where)) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def _thinking(body: dict[str, Any], chat: dict[str, Any]) -> None:
    """``thinking`` and ``output_config``."""
    if (thinking := get(body, "thinking", dict)) is not None:
        check_known(thinking, ("type", "budget_tokens", "display"), "thinking")
        kind = need(thinking, "type", str, "thinking")
        if kind not in ("enabled", "adaptive", "disabled"):
            raise refused(f"thinking.type {kind!r} is not supported, only enabled, adaptive and disabled", "thinking")
        kwargs = chat.setdefault("chat_template_kwargs", {})
        kwargs.setdefault("enable_thinking", kind != "disabled")
        get(thinking, "budget_tokens", int, "thinking")
        if thinking.get("display") == "omitted":
            chat["include_reasoning"] = False
    if (config := get(body, "output_config", dict)) is not None:
        check_known(config, ("effort", "format"), "output_config")
        if (effort := config.get("effort")) is not None:
            if effort not in _EFFORTS:
                raise refused(f"output_config.effort must be one of {', '.join(_EFFORTS)}", "output_config.effort")
            chat["reasoning_effort"] = effort
        if (wanted := get(config, "format", dict, "output_config")) is not None:
            place = "output_config.format"
            check_known(wanted, ("type", "schema"), place)
            if wanted.get("type") != "json_schema":
                raise refused(f"{place}.type must be json_schema", f"{place}.type")
            schema = {"name": "json_schema", "schema": need(wanted, "schema", dict, place)}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
