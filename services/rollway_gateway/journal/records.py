"""Kinds of records, and what each says. Pure: encodes and decodes, changes nothing.

Every payload is JSON with arrays behind it (`packing`), but for ANSWER, whose bytes are the answer's own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from rollway_gateway.journal import packing
from rollway_gateway.kept_turn import KeptTurn
from rollway_gateway.record import CallRecord
from rollway_wire.codec import load_routed, routed_tree


class Kind(IntEnum):
    GLOBALS = 1
    """Everything that is no session's: pools, ids of forgotten sessions, standings. Each segment begins with one."""
    STANDING = 2
    """What sessions ran in, by number: calls name the number."""
    OPENED = 3
    CHANGED = 4
    """Settings replaced, as rllm's API does."""
    BEGUN = 5
    """A call was admitted. Without an end it was in flight when the process ended."""
    CALL = 6
    """A call ended and left this."""
    FAILED = 7
    """A call ended and left nothing."""
    OUTCOME = 8
    """What became of a call's answer: taken by a client or not, asked for again, or not kept after all."""
    REJOINED = 9
    ANSWER = 10
    """A whole answer, for clients that ask again."""
    RESPONSE = 11
    """What `previous_response_id` may continue."""
    SPOILED = 12
    """The session may not train as a whole, for this reason."""
    SEALED = 13
    ARCHIVED = 14
    """The trajectory is in the object store; the session's other records are not needed."""
    FORGOTTEN = 15
    POOLS = 16
    """Workers, gate and policy version of every pool, whenever one changes."""


ARRAYS = ("completion_token_ids", "logprobs")


def call_tree(record: CallRecord, digest: bytes, fidelity: Mapping[str, Any]) -> dict[str, Any]:
    """A finished call.

    Args:
        digest: of the request, by which a retry is known.
        fidelity: what it changed there (`Fidelity.news`).
    """
    first = record.kept[0]
    return {
        "call_id": record.call_id,
        "turns": [_turn_tree(turn, first) for turn in record.kept],
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "lost_tokens": record.lost_tokens,
        "answered": record.answered,
        "delivered": record.delivered,
        "request": None if record.request is None else record.request.decode(),
        "answer": None if record.answer is None else record.answer.decode(),
        "digest": digest.hex(),
        "fidelity": fidelity,
    }


def _turn_tree(turn: KeptTurn, first: KeptTurn) -> dict[str, Any]:
    tree = turn.fields()
    if tree["routed_experts"] is not None:
        tree["routed_experts"] = routed_tree(tree["routed_experts"])
    extends = None if turn.extends is None else turn.extends.turn_id
    # Choices of one prompt share it.
    shares = turn is not first and turn.suffix is first.suffix
    return {**tree, "extends": extends, "suffix": None if shares else turn.suffix}


def read_call(payload: bytes, turns: Mapping[str, KeptTurn]) -> tuple[CallRecord, bytes, dict[str, Any]]:
    """The call, the digest of its request, and what it changed in fidelity.

    Args:
        turns: of the session so far, by id.

    Raises:
        ValueError, KeyError, TypeError: not such a payload.
    """
    packed = packing.Packed(payload)
    tree = packed.tree
    kept: list[KeptTurn] = []
    for said in tree.pop("turns"):
        extends = None if said["extends"] is None else turns[said["extends"]]
        suffix = kept[0].suffix if said["suffix"] is None else packed.array(said["suffix"])
        for name in ARRAYS:
            said[name] = packed.array(said[name])
        if said.get("routed_experts") is not None:
            data = packed.array(said["routed_experts"]["data"])
            said["routed_experts"] = load_routed({**said["routed_experts"], "data": data})
        kept.append(KeptTurn.of(extends, suffix, said))
    digest, fidelity = bytes.fromhex(tree.pop("digest")), tree.pop("fidelity")
    for name in ("request", "answer"):
        tree[name] = None if tree[name] is None else tree[name].encode()
    return CallRecord(kept=tuple(kept), **tree), digest, fidelity


class KeptAnswerBytes(NamedTuple):
    """A whole answer as it was sent, in the form that calls send (before a dialect)."""

    digest: bytes
    call_id: str
    ended_at: float
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def messages(self) -> list[dict[str, Any]]:
        """As it is sent again."""
        return [
            {"type": "http.response.start", "status": self.status, "headers": list(self.headers)},
            {"type": "http.response.body", "body": self.body},
        ]


_ANSWER = struct.Struct("<16s16sdI")
"""Digest, call id, Unix time of the end, length of the JSON head."""


def pack_answer(answer: KeptAnswerBytes) -> bytes:
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in answer.headers]
    head = packing.dumps([answer.status, headers])
    fixed = _ANSWER.pack(answer.digest, bytes.fromhex(answer.call_id), answer.ended_at, len(head))
    return b"".join((fixed, head, answer.body))


def answer_of(payload: bytes) -> tuple[bytes, str, float]:
    """Digest, call id and time of an answer."""
    digest, call_id, ended_at, _ = _ANSWER.unpack_from(payload)
    return digest, call_id.hex(), ended_at


def read_answer(payload: bytes) -> KeptAnswerBytes:
    digest, call_id, ended_at, length = _ANSWER.unpack_from(payload)
    end = _ANSWER.size + length
    status, headers = packing.loads(payload[_ANSWER.size : end])
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return KeptAnswerBytes(digest, call_id.hex(), ended_at, status, pairs, payload[end:])
