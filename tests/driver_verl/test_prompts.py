"""What of verl's batch an agent sees."""

from __future__ import annotations

from typing import Any

import pytest

from rollway_driver.verl.prompts import PAYLOAD, read_prompt


def fields(**other: Any) -> dict[str, Any]:
    return {"uid": "u-1", "index": 3, "raw_prompt": [{"role": "user", "content": "2+2"}], "global_steps": 1, **other}


def test_our_dataset_hands_the_parquet_row_over_as_it_is() -> None:
    row = {"prompt": "2+2", "answer": "4", "data_source": "sums", "index": "its own"}
    prompt = read_prompt(fields(**{PAYLOAD: row}, data_source="sums", reward_model={"ground_truth": "4"}))
    assert prompt.payload == row
    assert prompt.kept == {
        "data_source": "sums",
        "reward_model": {"ground_truth": "4"},
        "raw_prompt": [{"role": "user", "content": "2+2"}],
        "index": 3,
    }


def test_another_datasets_columns_arrive_without_verls_own_fields() -> None:
    prompt = read_prompt(fields(answer="4", dummy_tensor=0, tools_kwargs={}, validate=True))
    assert prompt.payload == {"answer": "4", "prompt": [{"role": "user", "content": "2+2"}]}


def test_a_uid_that_verl_would_split_is_refused() -> None:
    with pytest.raises(ValueError, match="'_'"):
        read_prompt(fields(uid="u_1"))
