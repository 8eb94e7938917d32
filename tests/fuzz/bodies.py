"""Bodies that are nearly right: the field names the readers know, with values of every kind in every place."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NAMES = (
    "messages", "role", "content", "type", "text", "input", "model", "stream", "stream_options", "include_usage", "n",
    "tools", "tool_choice", "function", "name", "arguments", "parameters", "input_schema", "tool_calls", "tool_use_id",
    "tool_result", "id", "call_id", "output", "max_tokens", "max_completion_tokens", "max_output_tokens", "logprobs",
    "top_logprobs", "echo", "prompt", "return_token_ids", "include_reasoning", "reasoning", "thinking", "system",
    "instructions", "previous_response_id", "store", "metadata", "stop", "stop_sequences", "temperature", "source",
    "media_type", "data", "url", "image_url", "response_format", "schema", "choices", "index", "delta", "message",
    "token_ids", "prompt_token_ids", "finish_reason", "usage", "prompt_tokens", "completion_tokens", "error",
    "routed_experts", "system_fingerprint", "session_id", "session_ids", "sampling_params", "api_path", "worker_id",
    "model_name", "weight", "weight_version", "since", "limit", "policy_version", "drain_timeout_s", "extra_body",
)  # fmt: skip
WORDS = (
    "user", "assistant", "system", "tool", "text", "function", "auto", "none", "message", "function_call", "tool_use",
    "function_call_output", "tool_result", "input_text", "output_text", "image", "base64", "thinking", "stop", "abort",
    "", "\u0000", "\ud7ff", "http://127.0.0.1:1", "-9999.0", "v1", "..",
)  # fmt: skip
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.sampled_from(WORDS), st.text(max_size=8)
)
VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)


def _chat(content: Any, rest: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, **rest, "messages": content, "input": content}


NEAR_CHATS = st.builds(
    _chat, st.lists(st.fixed_dictionaries({"role": st.sampled_from(WORDS[:4]), "content": VALUES}), max_size=3), OBJECTS
)


def as_json(value: Any) -> bytes:
    """With integers of any size, NaN and infinities, as Python writes them and no strict reader takes them."""
    return json.dumps(value).encode()


BODIES = st.one_of(OBJECTS.map(as_json), NEAR_CHATS.map(as_json), st.binary(max_size=200))
