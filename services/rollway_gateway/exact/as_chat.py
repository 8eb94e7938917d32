"""A completion answer told again as the chat answer that the engine would have given to the same tokens.

The two routes answer from the same engine output, so ids, log-probs, texts and usage are taken over; what chat adds is
the message: text split into content and tool calls. Fields and their order are vLLM's (0.28 to 0.32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollway_gateway.exact.hermes import HermesStream, read_calls
from rollway_gateway.exact.request import calls_tools
from rollway_gateway.exact.standing import Exact

_BLANK_MESSAGE = {"refusal": None, "annotations": None, "audio": None, "function_call": None}


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer that was cut and goes on: what of it is there."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    head: Mapping[str, Any]
    """``id`` and ``created`` of the answer."""
    logprobs: list[dict[str, Any]]
    """Chat entries of ``ids``, for an answer that does not stream."""


class AsChat:
    """For one call. Give it the whole answer, or a stream's chunks in order."""

    def __init__(self, body: Mapping[str, Any], exact: Exact, begun: Begun | None = None) -> None:
        """
        Args:
            body: the chat request.
            begun: what the completion goes on from; of a stream, the agent has it.
        """
        self._begun = begun
        self._n = body.get("n") or 1
        self._reads_calls = calls_tools(body)
        self._one_call = body.get("parallel_tool_calls") is False
        self._top = body.get("top_logprobs") or 0
        self._parses = exact.parses
        self._streams: dict[int, HermesStream] = {}
        self._called: set[int] = set()
        self._opened = begun is not None
        if begun is not None and self._reads_calls:
            self._streams[0] = HermesStream()
            if (self._streams[0].feed(begun.text, finished=False) or {}).get("tool_calls"):
                self._called.add(0)

    # -- whole

    def whole(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The chat answer for a completion answer.

        Raises:
            KeyError, TypeError and the like: it has an unknown form.
        """
        choices = payload["choices"]
        out: dict[str, Any] = {}
        for name, value in payload.items():
            out[name] = value
            if name == "usage":
                prompt = choices[0].get("prompt_token_ids")
                out |= {"prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None}
        out["id"] = _chat_id(payload["id"])
        out["object"] = "chat.completion"
        if (begun := self._begun) is not None:
            choices = [_gone_on(begun, choices[0])]
            out |= {**begun.head, "prompt_token_ids": begun.prompt_ids, "usage": self._usage(payload["usage"])}
        out["choices"] = [self._whole_choice(c) for c in choices]
        return out

    def _whole_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        content, calls = read_calls(choice["text"]) if self._reads_calls else (choice["text"], [])
        message = {"role": "assistant", "content": content, **_BLANK_MESSAGE}
        if calls:
            message["tool_calls"] = calls[:1] if self._one_call else calls
        return {
            "index": choice["index"],
            "message": {**message, "reasoning": None},
            "logprobs": self._whole_logprobs(choice.get("logprobs")),
            "finish_reason": "tool_calls" if calls else choice.get("finish_reason") or "stop",
            "stop_reason": choice.get("stop_reason"),
            "token_ids": choice.get("token_ids"),
            "routed_experts": choice.get("routed_experts"),
        }

    # -- stream

    def chunks(self, payload: dict[str, Any]) -> list[dict[str, Any]]:
        """The chat chunks for one completion chunk; the first brings each choice's opening chunk before it.

        Raises: as `whole`.
        """
        choices = payload.get("choices")
        head = {
            "id": _chat_id(payload["id"]), "object": "chat.completion.chunk", "created": payload["created"],
            "model": payload["model"], **({} if self._begun is None else self._begun.head),
        }  # fmt: skip
        if not choices:
            return [{**payload, **head, "usage": self._usage(payload.get("usage"))}]
        out: list[dict[str, Any]] = []
        if not self._opened:
            self._opened = True
            out += [self._opening(head, payload, index) for index in range(self._n)]
        chunk = {**head, "choices": [self._delta_choice(c) for c in choices]}
        if payload.get("usage") is not None:
            chunk["usage"] = _chat_usage(self._usage(payload["usage"]))
        if "system_fingerprint" in payload:
            chunk["system_fingerprint"] = payload["system_fingerprint"]
        out.append(chunk)
        return out

    def _opening(self, head: dict[str, Any], payload: dict[str, Any], index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        out: dict[str, Any] = {**head, "choices": [choice]}
        if payload.get("usage") is not None:
            prompt = payload["usage"]["prompt_tokens"]
            out["usage"] = _chat_usage({"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0})
        return out | {"prompt_token_ids": payload["choices"][0].get("prompt_token_ids"), "prompt_text": None}

    def _delta_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        index, finish = choice["index"], choice.get("finish_reason")
        delta = self._delta(index, choice["text"], finished=finish is not None)
        if delta.get("tool_calls"):
            self._called.add(index)
            if self._one_call:
                delta = _first_call(delta)
        out = {"index": index, "delta": delta, "logprobs": self._logprobs(choice.get("logprobs"))}
        if finish is None:
            out["finish_reason"] = None
        else:
            out["finish_reason"] = "tool_calls" if index in self._called else finish
            out["stop_reason"] = choice.get("stop_reason")
        return out | {"token_ids": choice.get("token_ids")}

    def _delta(self, index: int, text: str, *, finished: bool) -> dict[str, Any]:
        """An engine with a parser shows no empty text; one without does."""
        if self._reads_calls:
            stream = self._streams.setdefault(index, HermesStream())
            return stream.feed(text, finished=finished) or {}
        return {"content": text} if text or not self._parses else {}

    # -- both

    def _usage(self, usage: Any) -> Any:
        """Tokens sampled before a cut are not prompt."""
        if self._begun is None or not isinstance(usage, dict):
            return usage
        moved = len(self._begun.ids)
        return {
            **usage, "prompt_tokens": usage["prompt_tokens"] - moved,
            "completion_tokens": usage["completion_tokens"] + moved,
        }  # fmt: skip

    def _whole_logprobs(self, logprobs: Mapping[str, Any] | None) -> dict[str, Any] | None:
        found = self._logprobs(logprobs)
        if found is not None and self._begun is not None:
            found["content"] = [*self._begun.logprobs, *found["content"]]
        return found

    def _logprobs(self, logprobs: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        return {
            "content": [
                {**_entry(token, value), "top_logprobs": [_entry(*pair) for pair in list(tops.items())[: self._top]]}
                for token, value, tops in rows
            ]
        }


def _gone_on(begun: Begun, choice: Mapping[str, Any]) -> dict[str, Any]:
    """The answer from its beginning. A character cut in two is shown by the second half."""
    text = begun.text.rstrip("\ufffd") + choice["text"]
    return {**choice, "text": text, "token_ids": [*begun.ids, *(choice.get("token_ids") or ())]}


def _entry(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


def _first_call(delta: dict[str, Any]) -> dict[str, Any]:
    kept = [c for c in delta["tool_calls"] if c["index"] == 0]
    return {**delta, "tool_calls": kept} if kept else {"content": delta["content"]}


def _chat_id(name: str) -> str:
    return "chatcmpl-" + name.removeprefix("cmpl-")


def _chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {**usage, "completion_tokens_details": None}
