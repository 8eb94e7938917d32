"""Ids and S3 keys: what AgentCore, S3 and a URL segment would all take, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_wire import ids

safe = st.text(alphabet="abcXYZ019-_.", min_size=1, max_size=40)


def test_new_session_ids_are_what_agentcore_takes_and_never_repeat() -> None:
    made = {ids.check_session_id(ids.new_session_id()) for _ in range(1000)}
    assert len(made) == 1000
    assert {len(s) for s in made} == {36}


def test_new_batch_ids_are_segments_and_never_repeat() -> None:
    assert len({ids.check_segment(ids.new_batch_id(), "batch_id") for _ in range(1000)}) == 1000


@pytest.mark.parametrize("size", [33, 34, 255, 256])
def test_session_ids_of_the_right_length_pass(size: int) -> None:
    assert ids.check_session_id("a" * size) == "a" * size


LONG = "a" * 40


@pytest.mark.parametrize(
    "value", ["", "a" * 32, "a" * 257, f"-{LONG}", f"{LONG}/b", f"{LONG} ", f"{LONG}\n", "ä" * 40, f"{LONG}%2f"]
)
def test_other_session_ids_do_not(value: str) -> None:
    with pytest.raises(ValueError, match="session id"):
        ids.check_session_id(value)


@pytest.mark.parametrize("value", ["g1", "a b".replace(" ", "+"), "!_.*'()=+@:,-", "x" * 256])
def test_segments_of_s3s_safe_characters_pass(value: str) -> None:
    assert ids.check_segment(value, "group_id") == value


@pytest.mark.parametrize("value", ["", ".", "..", "a/b", "a b", "a\n", "ä", "x" * 257, "a\\b", "a?b", "a#b", "a%b"])
def test_other_segments_name_the_field_that_is_wrong(value: str) -> None:
    with pytest.raises(ValueError, match="group_id must be"):
        ids.check_segment(value, "group_id")


@given(st.lists(safe, min_size=1, max_size=3), safe, safe)
def test_a_result_key_names_its_session_again(exp: list[str], group: str, session: str) -> None:
    key = ids.result_key("/".join(exp), group, session)
    assert key.startswith("/".join(exp) + "/")
    assert ids.session_id_of(key) == session


@pytest.mark.parametrize("key", ["", ".json", "a/b/.json", "a/b/c", "a/b/c.txt", "a/b.json/"])
def test_a_key_that_is_not_a_results_names_no_session(key: str) -> None:
    assert ids.session_id_of(key) is None
