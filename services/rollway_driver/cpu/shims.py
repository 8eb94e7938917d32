"""The two functions of verl that have no switch for a machine without an accelerator."""

from __future__ import annotations

import functools
from typing import Any


def use_gloo_alone() -> None:
    """verl's default backend is ``cpu:gloo,<device>:<backend>``: with device cpu that names cpu twice, which torch
    refuses. Asking for plain gloo is what it means here."""
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


def leave_memory_unpinned() -> None:
    """verl offloads a reference policy with ``CPUOffloadPolicy(pin_memory=True)``; torch pins memory only for an
    accelerator and raises without one. Only runs with a KL term come here."""
    import verl.utils.fsdp_utils as fsdp_utils

    original = fsdp_utils.CPUOffloadPolicy
    fsdp_utils.CPUOffloadPolicy = lambda pin_memory=True: original(pin_memory=False)
