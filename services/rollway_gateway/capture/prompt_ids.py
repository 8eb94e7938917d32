"""A prompt's ids in an engine's answer, taken out of its bytes before they are parsed as JSON.

They are most of an answer to a long prompt, and parsed as a whole they are as many objects, made in one go of 15 ms for
128,000 of them. Where they are the ids that were sent, which is what they should be, the bytes are compared and no
object is made; so it is where another session has the same prompt, as the rollouts of a GRPO group have, which then
share one array; elsewhere they are read in slices, with time for other calls in between.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from array import array
from typing import Any
from weakref import WeakValueDictionary

import orjson
import xxhash

from rollway_wire.tokens import IDS

_KEY = b'"prompt_token_ids":['
"""As it cannot stand in a JSON text: a quotation mark in one is escaped."""
LEAST = 4096
"""Bytes of ids that are worth it."""
_SLICE = 1 << 15


class KnownPrompts:
    """Prompts that some turn in memory has, by their ids as an engine writes them. Arrays of ids are never changed."""

    def __init__(self) -> None:
        self._seed = secrets.randbits(64)
        """An agent cannot make two prompts that are taken for one."""
        self._known: WeakValueDictionary[bytes, array[int]] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def key(self, written: memoryview) -> bytes:
        """16 bytes that name a prompt in this process."""
        return xxhash.xxh3_128_digest(written, seed=self._seed)

    def get(self, key: bytes) -> array[int] | None:
        return self._known.get(key)

    def add(self, key: bytes, ids: array[int]) -> None:
        self._known[key] = ids


class PromptIds:
    """Of one call at one worker. `cut` the bytes, parse them, `put_back` what was cut."""

    def __init__(self, known: KnownPrompts, sent: bytes | None = None, ids: array[int] | None = None) -> None:
        """
        Args:
            known: of all calls.
            sent: the prompt as a JSON array, where it was sent as ids.
            ids: the same, int32.
        """
        self._known, self._sent, self._ids = known, sent, ids
        self._found: list[array[int]] = []

    async def cut(self, raw: bytes) -> bytes:
        """``raw`` with numbers in place of long lists of prompt ids; what is no list of ids stays."""
        parts: list[bytes] = []
        done = 0
        at = raw.find(_KEY)
        while at >= 0:
            begin = at + len(_KEY)
            end, ids = await self._read(raw, begin)
            if ids is not None:
                parts += (raw[done : begin - 1], b"%d" % len(self._found))
                self._found.append(ids)
                done = end + 1
            at = raw.find(_KEY, end)
        return b"".join((*parts, raw[done:])) if parts else raw

    async def _read(self, raw: bytes, begin: int) -> tuple[int, array[int] | None]:
        """Where a list of ids ends, and its ids, int32; None: it is short, or not one."""
        if self._sent and self._ids is not None and raw.startswith(self._sent, begin - 1):
            return begin + len(self._sent) - 2, self._ids
        end = raw.find(b"]", begin)
        if end - begin < LEAST:
            return max(end, begin), None
        key = self._known.key(memoryview(raw)[begin:end])
        if (known := self._known.get(key)) is not None:
            return end, known
        ids = array(IDS)
        at = begin
        while at < end:
            cut = raw.find(b",", at + _SLICE, end)
            cut = end if cut < 0 else cut
            try:
                read = orjson.loads(b"[%b]" % raw[at:cut])
                ids.frombytes(struct.pack(f"{len(read)}i", *read))  # in half the time of `fromlist`
            except (ValueError, struct.error):
                return end, None
            at = cut + 1
            if at < end:
                await asyncio.sleep(0)
        self._known.add(key, ids)
        return end, ids

    def put_back(self, payload: Any) -> None:
        """Ids, int32, in place of the numbers in what was parsed."""
        if not self._found or not isinstance(payload, dict):
            return
        choices = payload.get("choices")
        for holder in (payload, *(choices if isinstance(choices, list) else ())):
            if isinstance(holder, dict) and type(number := holder.get("prompt_token_ids")) is int:
                holder["prompt_token_ids"] = self._found[number] if 0 <= number < len(self._found) else number
