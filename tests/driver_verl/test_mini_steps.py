"""The mini-batch size that makes a wanted number of optimizer steps of however many rows came in."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rollway_driver.verl.mini_steps import mini_batch_prompts, row_multiple
from tests.driver_verl.made import config


@given(rows=st.integers(1, 5000), steps=st.integers(1, 8), n=st.integers(1, 16), multiple=st.integers(1, 64))
def test_the_batch_pads_to_at_most_the_wanted_steps(rows: int, steps: int, n: int, multiple: int) -> None:
    """As verl does it: pad to a whole number of mini-batches, one optimizer step each."""
    mini_batch = mini_batch_prompts(rows, steps, n, multiple) * n
    assert mini_batch % multiple == 0
    assert math.ceil(rows / mini_batch) <= steps


@given(rows=st.integers(1, 5000), n=st.integers(1, 16))
def test_one_step_is_always_one(rows: int, n: int) -> None:
    mini_batch = mini_batch_prompts(rows, 1, n, 1) * n
    assert rows <= mini_batch < rows + n


def test_rows_divide_among_devices_and_their_micro_batches() -> None:
    assert row_multiple(config(), 2) == 8
    assert row_multiple(config(actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu=6), 1) == 12
    dynamic = config(
        actor_rollout_ref__actor__use_dynamic_bsz=True, actor_rollout_ref__rollout__log_prob_use_dynamic_bsz=True
    )
    assert row_multiple(dynamic, 8) == 8
