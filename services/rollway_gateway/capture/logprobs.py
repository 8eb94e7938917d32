"""Log-probs in a whole answer, taken out of its bytes before they are parsed as JSON.

Of each sampled token an engine writes an object with its text, its bytes and more, which is most of an answer and most
of what parsing it costs; a trainer wants one number of it. Where the agent is not shown them, the numbers are cut out
and the rest is never made into objects. A key stands for itself in these bytes: in a JSON text a quotation mark is
escaped.
"""

from __future__ import annotations

import re

import orjson

_CHAT, _TEXT = b',"logprobs":{"content":[{"token":', b',"logprobs":{"text_offset":['
_END = b']},"finish_reason":'
_VALUE = re.compile(rb',"logprob":([-+.0-9eE]+),"bytes":')
_VALUES = b'"token_logprobs":['
_ABORTED = b'"finish_reason":"abort"'


def cut_logprobs(raw: bytes) -> tuple[bytes, list[float | None]] | None:
    """An answer of one choice with ``"logprobs":null``, and the log-probs of its sampled tokens.

    None: it is not of the usual form (several choices, alternatives beside the sampled tokens, an aborted generation,
    which may have to go on with what it says), and is to be parsed as it is.
    """
    key, read = (_CHAT, _chat) if _CHAT in raw else (_TEXT, _text)
    begin = raw.find(key)
    if begin < 0:
        return None
    end = raw.find(_END, begin)
    if end < 0 or raw.find(_END, end + 1) >= 0 or raw.startswith(_ABORTED, end + 3):
        return None
    values = read(raw[begin + len(key) : end])
    if values is None:
        return None
    try:
        logprobs = orjson.loads(b"[%b]" % values)
    except orjson.JSONDecodeError:
        return None
    return b'%b,"logprobs":null%b' % (raw[:begin], raw[end + 2 :]), logprobs


def _chat(entries: bytes) -> bytes | None:
    values = _VALUE.findall(entries)
    return b",".join(values) if len(values) == entries.count(b',"top_logprobs":[]}') else None


def _text(lists: bytes) -> bytes | None:
    begin = lists.find(_VALUES)
    end = lists.find(b"]", begin)
    return lists[begin + len(_VALUES) : end] if 0 <= begin < end else None
