"""What vLLM's own routes in these dialects showed, recorded, is what its chat answer becomes here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rollway_gateway.dialects.messages.dialect import Messages
from rollway_gateway.dialects.responses.dialect import Responses
from rollway_gateway.dialects.sending import failure_of
from rollway_gateway.openai_errors import AgentError
from tests.gateway_dialects.chats import USAGE, call, chunk, events, kept, whole

HERE = Path(__file__).parent / "recorded"
CHAT = Path(__file__).parents[1] / "gateway" / "recorded"
TEXT = "The capital of France is Paris."


def body_of(name: str, *left_out: str) -> dict[str, Any]:
    body = json.loads((HERE / f"{name}.req.json").read_text())["body"]
    return {k: v for k, v in body.items() if k not in left_out}


def answer_of(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return answer


def without_ids(value: Any) -> Any:
    """Ids made up per call replaced by their kind; the raw messages, which no agent asked for here, gone."""
    if isinstance(value, dict):
        kept_fields = {k: v for k, v in value.items() if k not in ("input_messages", "output_messages", "created_at")}
        return {
            k: re.sub(r"_.*|-.*", "", v) if k in ("id", "item_id") and isinstance(v, str) else without_ids(v)
            for k, v in kept_fields.items()
        }
    return [without_ids(v) for v in value] if isinstance(value, list) else value


def test_a_whole_message() -> None:
    """Log-probs and token ids that a Messages request asks for are not shown, as vLLM does not show them."""
    chat = json.loads((CHAT / "a01_chat_nonstream.json").read_text())
    said = Messages().open(body_of("d04_messages"), kept()).answer(chat)
    assert said == {**answer_of("d04_messages"), "id": chat["id"]}


def test_a_streamed_message() -> None:
    encoder = Messages().open(body_of("d05_messages_stream"), kept()).stream()
    words = [w for w in re.split(r"(?= )|(?=\.)", TEXT) if w]
    sent = encoder.feed(chunk({"role": "assistant", "content": ""}, usage={**USAGE, "completion_tokens": 0}))
    for n, word in enumerate(words):
        sent += encoder.feed(chunk({"content": word}, usage={**USAGE, "completion_tokens": n + 1}))
    sent += encoder.feed(chunk({}, finish="stop", usage=USAGE)) + encoder.feed(chunk(usage=USAGE)) + encoder.end()
    expected = events((HERE / "d05_messages_stream.sse").read_bytes().rstrip(b"\n") + b"\n\n")
    assert without_ids(events(sent)) == without_ids(expected)


def test_a_message_that_uses_a_tool() -> None:
    usage = {"prompt_tokens": 37, "completion_tokens": 69, "total_tokens": 106}
    chat = whole("", calls=[call(0, "get_weather", '{"city": "Paris", "unit": "c"}')], finish="tool_calls", usage=usage)
    said = Messages().open(body_of("d10_messages_tool"), kept()).answer(chat)
    expected = answer_of("d10_messages_tool")
    expected["content"][0]["id"] = "call_0"
    assert said == {**expected, "id": chat["id"]}


def test_a_refusal_of_the_engine_keeps_its_words() -> None:
    """The engine refuses the chat request; vLLM's Messages route says the same in Anthropic's shape."""
    recorded = answer_of("d07_messages_err")
    error = {"error": {**recorded["error"], "param": "model", "code": 404}}
    assert Messages().refuse(failure_of(json.dumps(error).encode(), 404)) == (404, recorded)


def test_a_whole_response_with_logprobs() -> None:
    recorded = answer_of("d01_responses")
    logprobs = recorded["output"][0]["content"][0]["logprobs"]
    said = Responses().open(body_of("d01_responses", "enable_response_messages"), kept())
    assert (said.chat["logprobs"], said.chat["top_logprobs"]) == (True, 2)
    assert without_ids(said.answer(whole(TEXT, logprobs=logprobs))) == without_ids(recorded)


def test_a_streamed_response_with_logprobs() -> None:
    """vLLM's end token, which carries no text, is missing from the log-probs of its streamed item; not from ours."""
    recorded = events((HERE / "d03_responses_stream.sse").read_bytes().rstrip(b"\n") + b"\n\n")
    entries = recorded[-1]["response"]["output"][0]["content"][0]["logprobs"]
    encoder = Responses().open(body_of("d03_responses_stream", "enable_response_messages"), kept()).stream()
    sent = encoder.feed(chunk({"role": "assistant", "content": ""}))
    for entry in entries:
        sent += encoder.feed(chunk({"content": entry["token"]}, logprobs=[entry]))
    sent += encoder.feed(chunk({}, finish="stop")) + encoder.feed(chunk(usage=USAGE)) + encoder.end()
    # The ids that name the item differ from the final object's in vLLM's stream.
    assert without_ids(events(sent)) == without_ids(recorded)


def test_a_response_that_calls_a_tool() -> None:
    recorded = answer_of("d08_responses_tool")
    made = recorded["output"][0]
    usage = {"prompt_tokens": 34, "completion_tokens": 66, "total_tokens": 100}
    calls = [{"id": made["call_id"], "type": "function", "function": {k: made[k] for k in ("name", "arguments")}}]
    said = Responses().open(body_of("d08_responses_tool", "enable_response_messages"), kept())
    chat = whole("", calls=calls, finish="tool_calls", usage=usage)
    assert without_ids(said.answer(chat)) == without_ids(recorded)


@pytest.mark.parametrize("name", ["d01_responses", "d03_responses_stream", "d08_responses_tool"])
def test_raw_tokens_are_not_for_agents(name: str) -> None:
    with pytest.raises(AgentError, match="enable_response_messages"):
        Responses().open(body_of(name), kept())
