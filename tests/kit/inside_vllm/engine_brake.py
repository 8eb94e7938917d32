"""The part of `tests.kit.engine_brake` that runs in the engine, as one of vLLM's logits processors.

vLLM calls these before each step, and lets them look at what each request has sampled. This one changes no logits. Its
folder alone is on the engine's path: the rest of the tests imports what that environment does not have.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class Brake(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._folder = Path(os.environ["BRAKE_FOLDER"])
        self._sampled: dict[int, list[int]] = {}
        """By place in the batch: the request's own list, which grows."""

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._sampled, batch_update, lambda _params, _prompt, sampled: sampled)
        try:
            word, step_s = json.loads((self._folder / "brake.on").read_text())
        except FileNotFoundError:
            return
        made = self._folder / "brake.telling"
        made.write_text(json.dumps([word, [len(sampled) for sampled in self._sampled.values()]]))
        made.rename(self._folder / "brake.told")
        time.sleep(step_s)
