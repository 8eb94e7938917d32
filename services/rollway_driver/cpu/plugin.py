"""What ``VERL_USE_EXTERNAL_MODULES=rollway_driver.cpu.plugin`` loads, in the trainer and in each of Ray's workers."""

from __future__ import annotations

import os

from verl.plugin.platform import PlatformRegistry

from rollway_driver.cpu.platform import PlatformCPU
from rollway_driver.cpu.shims import leave_memory_unpinned, use_gloo_alone

os.environ.setdefault("VERL_PLATFORM", "cpu")
# verl files its FSDP engine under cuda and npu; this is its own switch to pick one.
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")

PlatformRegistry.register(platform="cpu")(PlatformCPU)
use_gloo_alone()
leave_memory_unpinned()
