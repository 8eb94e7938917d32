"""The load engine's answers that depend on the request, for they give back its prompt's ids: text completions, and
chats where the engine renders. The ids are spliced in as text; nothing is parsed."""

from __future__ import annotations

from typing import Any

import orjson

_IDS, _ASKED, _TOTAL = b'["@ids"]', b'"@asked"', b'"@total"'
ANY_IDS: list[object] = ["@ids"]
"""Stands for a prompt's ids."""


def any_usage(sampled: int) -> dict[str, object]:
    """Usage of an answer to a prompt of any length."""
    return {"prompt_tokens": "@asked", "total_tokens": "@total", "completion_tokens": sampled}


class Spliced:
    """One answer or event, made beforehand, but for the prompt."""

    def __init__(self, value: object, sampled: int) -> None:
        """
        Args:
            value: JSON with `ANY_IDS` and `any_usage` where the prompt decides.
        """
        self._made, self._sampled = orjson.dumps(value), sampled

    def of(self, ids: bytes) -> bytes:
        """
        Args:
            ids: the prompt's, as JSON without brackets.
        """
        asked = ids.count(b",") + 1
        filled = self._made.replace(_ASKED, b"%d" % asked).replace(_TOTAL, b"%d" % (asked + self._sampled))
        return filled.replace(_IDS, b"[%b]" % ids)


def prompt_ids(body: bytes) -> bytes:
    """The text between the brackets of the request's ``prompt``; empty where it is no list of ids."""
    at = body.find(b'"prompt":[')
    return body[at + 10 : body.find(b"]", at)] if at >= 0 else b""


class Completions:
    """Made once per script."""

    def __init__(
        self, head: dict[str, Any], words: list[str], ids: list[int], logprobs: list[float], step: int
    ) -> None:
        """
        Args:
            head: id, creation time and model.
            words, ids, logprobs: what is sampled, equally long.
            step: tokens per event.
        """
        head = {**head, "id": "cmpl-0123456789abcdef", "object": "text_completion"}
        n = len(ids)
        usage = any_usage(n)

        def choice(lo: int, hi: int, prompt: object) -> dict[str, Any]:
            said = [" " + w for w in words[lo:hi]]
            return {
                "index": 0, "text": "".join(said),
                "logprobs": {
                    "text_offset": list(range(lo, hi)), "token_logprobs": logprobs[lo:hi], "tokens": said,
                    "top_logprobs": [{t: lp} for t, lp in zip(said, logprobs[lo:hi], strict=True)],
                },
                "finish_reason": "length" if hi == n else None, "stop_reason": None, "prompt_token_ids": prompt,
                "token_ids": ids[lo:hi],
            }  # fmt: skip

        self.whole = Spliced({**head, "choices": [choice(0, n, ANY_IDS)], "usage": usage}, n)
        cuts = [(lo, min(lo + step, n)) for lo in range(0, n, step)]
        first, *rest = [{**head, "choices": [choice(lo, hi, ANY_IDS if lo == 0 else None)]} for lo, hi in cuts]
        self.first = Spliced(first, n)
        self.rest = [orjson.dumps(event) for event in rest]
        """Events after the first, the same for every prompt."""
        self.usage = Spliced({**head, "choices": [], "usage": usage}, n)
