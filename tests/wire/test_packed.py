"""The packed form: any tree survives it exactly, and no damage passes for data."""

from __future__ import annotations

import json
import math
import struct
import zlib
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_wire.codec import dump_packed, load_packed, to_json_tree
from rollway_wire.problems import BadRequest
from tests.wire.examples import TREES

ints = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9).map(lambda v: array("i", v))
floats = st.lists(st.floats(width=32, allow_nan=False), max_size=9).map(lambda v: array("f", v))
masks = st.lists(st.integers(0, 255), max_size=9).map(lambda v: array("B", v))
shorts = st.lists(st.integers(0, 65535), max_size=9).map(lambda v: array("H", v))
keys = st.one_of(st.text(max_size=6), st.sampled_from(["$array", "$$array", "$$$array", "a$array"]))
trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
              st.text(max_size=9), st.sampled_from(["$array", '"$array"']), ints, floats, masks, shorts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)  # fmt: skip


def forged(header: bytes, arrays: bytes = b"") -> bytes:
    """A document with a right checksum over whatever it is given."""
    body = struct.pack("<I", len(header)) + header + arrays
    return b"RWPK\x01\0\0\0" + struct.pack("<I", zlib.crc32(body)) + body


@settings(max_examples=300, deadline=None)
@given(trees)
def test_any_tree_survives_packing_exactly(tree: Any) -> None:
    back = load_packed(dump_packed(tree))
    assert back == tree
    assert to_json_tree(back) == to_json_tree(tree)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_a_trees_json_is_strict_json_and_reads_back_to_the_same_values(tree: Any) -> None:
    plain = to_json_tree(tree)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_an_array_keeps_float32_bits_and_not_a_number() -> None:
    back = load_packed(dump_packed(array("f", [math.nan, -0.0, 1e-45, -math.inf])))
    assert back.tobytes() == array("f", [math.nan, -0.0, 1e-45, -math.inf]).tobytes()


def test_arrays_lie_at_multiples_of_eight_so_that_a_reader_may_map_them() -> None:
    raw = dump_packed([array("B", [1]), array("i", [2]), array("f", [3.0])])
    size = struct.unpack("<I", raw[12:16])[0]
    assert (16 + size) % 8 == 0
    assert [ref["$array"][1] for ref in json.loads(raw[16 : 16 + size])] == [0, 8, 16]


@pytest.mark.parametrize("name", sorted(TREES))
def test_a_document_cut_anywhere_is_a_bad_request(name: str) -> None:
    raw = dump_packed(TREES[name])
    for size in range(len(raw)):
        with pytest.raises(BadRequest):
            load_packed(raw[:size])
    with pytest.raises(BadRequest):
        load_packed(raw + b"\0")


@pytest.mark.parametrize("name", ["sequence", "agents_own_array"])
def test_any_flipped_bit_is_a_bad_request(name: str) -> None:
    raw = dump_packed(TREES[name])
    for position in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(BadRequest):
            load_packed(bytes(damaged))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_bad_request(raw: bytes) -> None:
    for document in (raw, b"RWPK\x01\0\0\0" + raw):
        with pytest.raises(BadRequest):
            load_packed(document)


BAD_HEADERS = {
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe",
    "a cut string": b'"abc',
    "empty": b"",
    "NaN": b"NaN",
    "too deep": b"[" * 100_000,
    "reference is no list": b'{"$array":5}',
    "reference too short": b'{"$array":["i",0]}',
    "reference too long": b'{"$array":["i",0,1,1]}',
    "unknown element type": b'{"$array":["q",0,1]}',
    "element type is no string": b'{"$array":[["i"],0,1]}',
    "before the data": b'{"$array":["i",-4,1]}',
    "negative count": b'{"$array":["i",4,-1]}',
    "past the data": b'{"$array":["i",4,2]}',
    "empty but past the data": b'{"$array":["i",9,0]}',
    "fractional": b'{"$array":["i",0,0.5]}',
    "huge": b'{"$array":["i",0,99999999999999999999]}',
}


@pytest.mark.parametrize("what", sorted(BAD_HEADERS))
def test_a_wrong_header_with_a_right_checksum_is_a_bad_request(what: str) -> None:
    with pytest.raises(BadRequest):
        load_packed(forged(BAD_HEADERS[what], b"\0" * 8))


def test_a_header_longer_than_the_document_is_a_bad_request() -> None:
    body = struct.pack("<I", 1000) + b"{}"
    with pytest.raises(BadRequest, match="truncated"):
        load_packed(b"RWPK\x01\0\0\0" + struct.pack("<I", zlib.crc32(body)) + body)


def test_another_version_says_which_one_this_build_reads() -> None:
    with pytest.raises(BadRequest, match="version 2; this build reads 1"):
        load_packed(b"RWPK\x02" + dump_packed({})[5:])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"raw", array("d", [1.0])])
def test_what_is_not_part_of_a_tree_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="not part of a tree"):
        dump_packed({"x": value})


def test_a_float_that_is_not_finite_is_refused_outside_arrays() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_packed({"reward": math.nan})
