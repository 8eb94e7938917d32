"""What verl takes for ``torch.<device>``: ``torch.cpu`` with the calls verl makes on ``torch.cuda`` without asking."""

from __future__ import annotations

import types
from typing import Any

import torch


class CpuDevice(types.ModuleType):
    """Answers a device module's questions for a machine whose only device is its processor: nothing is allocated on it,
    nothing runs behind the caller's back, and ``current_device`` is a name that ``tensor.to`` takes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def is_available(self) -> bool:
        return False

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def set_device(self, *_: Any) -> None: ...

    def synchronize(self, *_: Any) -> None: ...

    def empty_cache(self) -> None: ...

    def reset_peak_memory_stats(self, *_: Any) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    def memory_allocated(self, *_: Any) -> int:
        return 0

    def memory_reserved(self, *_: Any) -> int:
        return 0

    def max_memory_allocated(self, *_: Any) -> int:
        return 0

    def max_memory_reserved(self, *_: Any) -> int:
        return 0

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return (0, 0)
