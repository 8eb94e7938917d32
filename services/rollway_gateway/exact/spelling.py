"""The text of one token beside its log-prob, as an engine spells it.

Source: vLLM 0.28, `v1/engine/logprobs.py`: a token that ends inside a character is spelled with those before it, as the
whole character where it completes one and as nothing where it does not.
"""

from __future__ import annotations

from collections import deque

from rollway_gateway.render.vocabulary import Vocabulary

_CUT = "\ufffd"
_CONTEXT = 4
"""Tokens looked back at: no character has more bytes."""


class Spelling:
    """Of one choice's tokens, in order."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._before: deque[int] = deque(maxlen=_CONTEXT)

    def spell(self, token_id: int) -> str:
        """A token, or an alternative to it, at the place reached."""
        text = self._vocabulary.spelled(token_id)
        return self._completed(token_id) if text.endswith(_CUT) else text

    def sampled(self, token_id: int) -> None:
        """Go on behind a token."""
        self._before.append(token_id)

    def _completed(self, token_id: int) -> str:
        before, decode = list(self._before), self._vocabulary.decode
        for size in range(1, len(before) + 1):
            context = before[-size:]
            whole = decode([*context, token_id])
            if whole.endswith(_CUT):
                continue
            clean = size
            while clean and decode([context[clean - 1]]).endswith(_CUT):
                clean -= 1
            prefix = decode(context[:clean]) if clean else ""
            common = next((k for k, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), None)
            return whole[min(len(prefix), len(whole)) if common is None else common :]
        return ""
