"""The dataset class for verl: a parquet (or jsonl) row reaches the agent as it is, and nothing is tokenised here.

data.custom_cls.path=pkg://rollway_driver.verl.dataset  data.custom_cls.name=RawRows
"""

from __future__ import annotations

from typing import Any

import torch
from verl.utils.dataset.rl_dataset import RLHFDataset

from rollway_driver.verl.prompts import PAYLOAD


class RawRows(RLHFDataset):
    """verl's dataset (files, sampling, resuming) without its chat template: prompt lengths are the agent's business, so
    none is filtered out for being long."""

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        return dataframe

    def __getitem__(self, item: int) -> dict[str, Any]:
        """The raw row under ``rollway_payload``, and beside it what verl's trainer and validation read."""
        row = dict(self.dataframe[item])
        prompt = row.get(self.prompt_key)
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": str(prompt)}]
        return {
            PAYLOAD: row,
            "raw_prompt": messages,
            "index": item,
            "data_source": row.get("data_source") or "rollway",
            "reward_model": row.get("reward_model") or {"style": "agent", "ground_truth": row.get("answer")},
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }
