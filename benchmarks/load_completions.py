"""The load engine's text completions: the one route whose answer depends on the request, for it gives back the prompt
ids it was given. They are spliced in as they came; nothing is parsed."""

from __future__ import annotations

from typing import Any

import orjson

_IDS, _ASKED, _TOTAL = b'["@ids"]', b'"@asked"', b'"@total"'


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
        self._sampled = len(ids)
        head = {**head, "id": "cmpl-0123456789abcdef", "object": "text_completion"}
        usage = {"prompt_tokens": "@asked", "total_tokens": "@total", "completion_tokens": len(ids)}
        n = len(ids)

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

        self._whole = orjson.dumps({**head, "choices": [choice(0, n, ["@ids"])], "usage": usage})
        cuts = [(lo, min(lo + step, n)) for lo in range(0, n, step)]
        chunks = [choice(lo, hi, ["@ids"] if lo == 0 else None) for lo, hi in cuts]
        self._first, *rest = [orjson.dumps({**head, "choices": [c]}) for c in chunks]
        self.rest = rest
        """Events after the first, the same for every prompt."""
        self._usage = orjson.dumps({**head, "choices": [], "usage": usage})

    def whole(self, ids: bytes) -> bytes:
        return self._filled(self._whole, ids)

    def first(self, ids: bytes) -> bytes:
        return self._filled(self._first, ids)

    def usage(self, ids: bytes) -> bytes:
        return self._filled(self._usage, ids)

    def _filled(self, template: bytes, ids: bytes) -> bytes:
        asked = ids.count(b",") + 1
        filled = template.replace(_ASKED, b"%d" % asked).replace(_TOTAL, b"%d" % (asked + self._sampled))
        return filled.replace(_IDS, b"[%b]" % ids)
