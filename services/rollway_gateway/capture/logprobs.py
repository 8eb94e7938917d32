"""Log-probs in a whole answer, taken out of its bytes before they are parsed as JSON.

Of each sampled token an engine writes an object with its text, its bytes and more, which is most of an answer and most
of what parsing it costs; a trainer wants one number of it. Where the agent is not shown them, the numbers are cut out
and the rest is never made into objects. A key stands for itself in these bytes: in a JSON text a quotation mark is
escaped.
"""

from __future__ import annotations

import msgspec
import orjson

_CHAT, _TEXT = b',"logprobs":{"content":[{"token":', b',"logprobs":{"text_offset":['
_LIST = len(b',"logprobs":{"content":')
_END = b']},"finish_reason":'
_VALUES = b'"token_logprobs":['
_ABORTED = b'"finish_reason":"abort"'


class _Entry(msgspec.Struct, gc=False):
    """The rest of an entry is read past, and checked to be JSON, without an object made of it."""

    logprob: float | None


_ENTRIES = msgspec.json.Decoder(list[_Entry])


def cut_logprobs(raw: bytes) -> tuple[bytes, list[float | None]] | None:
    """An answer of one choice with ``"logprobs":null``, and the log-probs of its sampled tokens.

    None: it is not of the usual form (several choices, an aborted generation, which may have to go on with what it
    says), and is to be parsed as it is.
    """
    key, read = (_CHAT, _chat) if _CHAT in raw else (_TEXT, _text)
    begin = raw.find(key)
    if begin < 0:
        return None
    end = raw.find(_END, begin)
    if end < 0 or raw.find(_END, end + 1) >= 0 or raw.startswith(_ABORTED, end + 3):
        return None
    try:
        logprobs = read(raw, begin, end)
    except (msgspec.DecodeError, orjson.JSONDecodeError):  # a ValidationError is a DecodeError
        return None
    return b'%b,"logprobs":null%b' % (raw[:begin], raw[end + 2 :]), logprobs


def _chat(raw: bytes, begin: int, end: int) -> list[float | None]:
    return [entry.logprob for entry in _ENTRIES.decode(memoryview(raw)[begin + _LIST : end + 1])]


def _text(raw: bytes, begin: int, end: int) -> list[float | None]:
    """Raises:
    JSONDecodeError: also where there are none."""
    at = raw.find(_VALUES, begin, end)
    until = raw.find(b"]", at, end)
    values: list[float | None] = orjson.loads(b"[%b]" % raw[at + len(_VALUES) : until] if 0 <= at < until else b"")
    return values
