"""The event that streams are made of, read without parsing: one choice, one token, a piece of text.

    data: HEAD"delta":{"content":"…"},"logprobs":{"content":[{…one…}]},"finish_reason":null,"token_ids":[N]}]}

HEAD is the same in every event of a stream, so it is compared; the rest is matched by one expression that accepts
nothing but JSON of exactly this form (what stands between the brackets of ``bytes`` is read by nobody, and may be any
digits and commas). What it does not accept is parsed. Bytes that are shown are the engine's own.
"""

from __future__ import annotations

import re

_CHARACTERS = rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"
_REST = re.compile(
    rb'\{"(content|reasoning)":("(?!")%b")\},"logprobs":\{"content":\[\{"token":"%b","logprob":(%b),'
    rb'"bytes":(?:null|\[[0-9,]*+\]),"top_logprobs":\[\]\}\]\},"finish_reason":null,'
    rb'"token_ids":\[(0|[1-9][0-9]{0,8})\]\}\]\}(?:\n\n)?' % (_CHARACTERS, _CHARACTERS, _NUMBER)
)
_read_rest = _REST.fullmatch
_HEAD = re.compile(
    rb'data: \{(?:"(?:id|object|model|created)":(?:"[^"\\\x00-\x1f]*"|[0-9]+),)+"choices":\[\{"index":0,"delta":'
)
_STRIPPED = b',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'


class UsualEvent:
    """Of one stream with one choice, whose agent asked for neither log-probs nor ids."""

    __slots__ = ("_at", "_head")

    def __init__(self) -> None:
        self._head = b"\n"
        """Of no event."""
        self._at = 1
        """Its length."""

    def learn(self, block: bytes) -> None:
        """An event that was parsed: what stands before its delta."""
        found = _HEAD.match(block)
        if found is not None:
            self._head, self._at = found[0], found.end()

    def read(self, block: bytes) -> tuple[bytes, bytes, float, int, bytes] | None:
        """Name and JSON of the delta's text, log-prob, id, and what plain vLLM would have sent; None: it is another.

        Args:
            block: with its blank line or without.
        """
        if not block.startswith(self._head):
            return None
        found = _read_rest(block, self._at)
        if found is None:
            return None
        if not block.isascii():
            try:
                block.decode()
            except UnicodeDecodeError:
                return None
        name, text, logprob, token = found.groups()
        return name, text, float(logprob), int(token), block[: found.end(2) + 1] + _STRIPPED
