"""A completion answer told again as the chat answer that the engine would have given to the same tokens.

The two routes answer from the same engine output, so ids, log-probs, texts and usage are taken over; what chat adds is
the message: text split into reasoning, content and tool calls. Fields and their order are vLLM's (0.28 to 0.32).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollway_gateway.exact.hermes import call_id
from rollway_gateway.exact.reader import Reading, ReadingStream
from rollway_gateway.exact.request import asks_by_id, forces_call, names_call
from rollway_gateway.exact.spelling import Spelling
from rollway_gateway.exact.standing import Exact
from rollway_gateway.exact.thinking import ThinkingCount

_BLANK_MESSAGE = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
_AS_ID = "token_id:"
"""How an engine writes a token that it was asked to name by its id."""


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

    def __init__(
        self, body: Mapping[str, Any], exact: Exact, prompt_ids: array[int], begun: Begun | None = None
    ) -> None:
        """
        Args:
            body: the chat request.
            prompt_ids: of the answer's beginning.
            begun: what the completion goes on from; of a stream, the agent has it.
        """
        self._begun = begun
        self._n = body.get("n") or 1
        self._reading = Reading.of(body, exact, prompt_ids)
        self._required, self._named = forces_call(body) and not names_call(body), names_call(body)
        self._one_call = body.get("parallel_tool_calls") is False
        self._top = body.get("top_logprobs") or 0
        self._by_id, self._names_ids = asks_by_id(body), bool(body.get("return_tokens_as_token_ids"))
        self._vocabulary = exact.template.vocabulary
        self._spellings: dict[int, Spelling] = {}
        self._streams: dict[int, ReadingStream] = {}
        self._counts: dict[int, ThinkingCount] = {}
        self._called: set[int] = set()
        self._opened = begun is not None
        if begun is not None:
            self._read(0, begun.text, begun.ids, finished=False)

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
                first = choices[0]
                prompt, values = first.get("prompt_token_ids"), first.get("prompt_logprobs")
                out |= {"prompt_logprobs": values, "prompt_token_ids": prompt, "prompt_text": None}
        out["id"] = _chat_id(payload["id"])
        out["object"] = "chat.completion"
        if (begun := self._begun) is not None:
            choices = [_gone_on(begun, choices[0])]
            out |= {**begun.head, "prompt_token_ids": begun.prompt_ids, "usage": self._usage(payload["usage"])}
        else:
            for choice in choices:
                self._count(choice["index"], choice.get("token_ids"))
        out["usage"] = self._with_reasoning(out["usage"])
        out["choices"] = [self._whole_choice(c) for c in choices]
        return out

    def _whole_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        reasoning, content, calls = self._reading.whole(choice["text"])
        message: dict[str, Any] = {"role": "assistant", "content": content, **_BLANK_MESSAGE}
        if calls:
            message["tool_calls"] = calls[:1] if self._one_call else calls
        finish = choice.get("finish_reason") or "stop"
        return {
            "index": choice["index"],
            "message": {**message, "reasoning": reasoning},
            "logprobs": self._whole_logprobs(choice),
            "finish_reason": "tool_calls" if self._whole_called(finish, bool(calls)) else finish,
            "stop_reason": choice.get("stop_reason"),
            "token_ids": choice.get("token_ids"),
            "routed_experts": choice.get("routed_experts"),
        }

    def told(self, answer: dict[str, Any], messages: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """A whole chat answer with the messages that the engine itself read out of its ids.

        Args:
            messages: by choice; one of which nothing is shown has none.
        """
        for choice in answer["choices"]:
            message = dict(messages.get(choice["index"], {**choice["message"], "content": ""}))
            calls = message.pop("tool_calls", None) or []
            reasoning = message.pop("reasoning", None)
            if calls:
                kept = calls[:1] if self._one_call else calls
                message["tool_calls"] = [{**c, "id": call_id()} for c in kept]
            choice["message"] = {**message, "reasoning": reasoning}
            if self._whole_called(choice["finish_reason"], bool(calls)):
                choice["finish_reason"] = "tool_calls"
        return answer

    def _whole_called(self, finish: str, called: bool) -> bool:
        """A required call ended rightly is one whether it can be read or not; one asked for by name never is."""
        return finish == "stop" if self._required else called and not self._named

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
            return [{**payload, **head, "usage": self._with_reasoning(self._usage(payload.get("usage")))}]
        out: list[dict[str, Any]] = []
        if not self._opened:
            self._opened = True
            out += [self._opening(head, payload, index) for index in range(self._n)]
        chunk = {**head, "choices": [self._delta_choice(c) for c in choices]}
        if payload.get("usage") is not None:
            chunk["usage"] = self._running(self._usage(payload["usage"]), choices[0]["index"])
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
            usage = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
            out["usage"] = self._running(usage, index)
        return out | {"prompt_token_ids": payload["choices"][0].get("prompt_token_ids"), "prompt_text": None}

    def _delta_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        index, finish = choice["index"], choice.get("finish_reason")
        delta = self._read(index, choice["text"], choice.get("token_ids") or (), finished=finish is not None)
        if delta.get("tool_calls") and self._one_call:
            delta = _first_call(delta)
        out = {"index": index, "delta": delta, "logprobs": self._logprobs(choice)}
        if finish is None:
            out["finish_reason"] = None
        else:
            out["finish_reason"] = "tool_calls" if index in self._called and not self._named else finish
            out["stop_reason"] = choice.get("stop_reason")
        return out | {"token_ids": choice.get("token_ids")}

    # -- both

    def _read(self, index: int, text: str, ids: Any, *, finished: bool) -> dict[str, Any]:
        self._count(index, ids, shown=bool(text) or self._reading.over)
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = self._reading.stream()
        delta = stream.feed(text, ids, finished=finished)
        if delta.get("tool_calls"):
            self._called.add(index)
        return delta

    def _count(self, index: int, ids: Any, *, shown: bool = True) -> None:
        if self._reading.marks is not None and self._reading.thinks:
            self._counts.setdefault(index, ThinkingCount(self._reading.marks)).add(ids or (), shown=shown)

    def _with_reasoning(self, usage: Any) -> Any:
        """Where the engine parses reasoning it counts its tokens."""
        if self._reading.marks is None or not isinstance(usage, dict):
            return usage
        tokens = sum(c.tokens for c in self._counts.values())
        return {**usage, "completion_tokens_details": {"reasoning_tokens": tokens}}

    def _running(self, usage: Mapping[str, Any], index: int) -> dict[str, Any]:
        if self._reading.marks is None:
            return {**usage, "completion_tokens_details": None}
        counted = self._counts.get(index)
        return {
            **usage, "completion_tokens_details": {"reasoning_tokens": 0 if counted is None else counted.tokens}
        }  # fmt: skip

    def _usage(self, usage: Any) -> Any:
        """Tokens sampled before a cut are not prompt."""
        if self._begun is None or not isinstance(usage, dict):
            return usage
        moved = len(self._begun.ids)
        return {
            **usage, "prompt_tokens": usage["prompt_tokens"] - moved,
            "completion_tokens": usage["completion_tokens"] + moved,
        }  # fmt: skip

    def _whole_logprobs(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        found = self._logprobs(choice)
        if found is not None and self._begun is not None:
            found["content"] = [*self._begun.logprobs, *found["content"]]
        return found

    def _logprobs(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        logprobs = choice.get("logprobs")
        if logprobs is None:
            return None
        spelling = self._spellings.setdefault(choice["index"], Spelling(self._vocabulary))
        rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        return {"content": [self._position(spelling, *row) for row in rows]}

    def _position(self, spelling: Spelling, token: str, value: float, tops: Mapping[str, float]) -> dict[str, Any]:
        if not self._by_id:
            return {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
        text = spelling.spell(_id_of(token))
        entry = _entry(token if self._names_ids else text, value) | {"bytes": list(text.encode())}
        named = [
            _entry(t if self._names_ids else spelling.spell(_id_of(t)), v) for t, v in list(tops.items())[: self._top]
        ]
        spelling.sampled(_id_of(token))
        return {**entry, "top_logprobs": named}


def _id_of(token: str) -> int:
    return int(token.removeprefix(_AS_ID))


def _gone_on(begun: Begun, choice: Mapping[str, Any]) -> dict[str, Any]:
    """The answer from its beginning. A character cut in two is shown by the second half."""
    text = begun.text.rstrip("\ufffd") + choice["text"]
    return {**choice, "text": text, "token_ids": [*begun.ids, *(choice.get("token_ids") or ())]}


def _entry(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


def _first_call(delta: dict[str, Any]) -> dict[str, Any]:
    kept = [c for c in delta["tool_calls"] if c["index"] == 0]
    if kept:
        return {**delta, "tool_calls": kept}
    return {name: value for name, value in delta.items() if name != "tool_calls"}


def _chat_id(name: str) -> str:
    return "chatcmpl-" + name.removeprefix("cmpl-")
