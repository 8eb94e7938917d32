"""The driver: what runs on the trainer. The dispatcher's clients, data preparation, and the verl manager.

The clients are offered here by name and imported when asked for, so that a trainer's worker processes, which import
only the verl side, pay nothing for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollway_driver.client import (
        AsyncBatchResult,
        AsyncDispatcherClient,
        AsyncGatewayClient,
        AsyncGateways,
        BatchItem,
        BatchResult,
        DispatcherClient,
        GatewayClient,
        RolloutClient,
        RolloutFailed,
        RolloutFuture,
    )

__all__ = [
    "AsyncBatchResult",
    "AsyncDispatcherClient",
    "AsyncGatewayClient",
    "AsyncGateways",
    "BatchItem",
    "BatchResult",
    "DispatcherClient",
    "GatewayClient",
    "RolloutClient",
    "RolloutFailed",
    "RolloutFuture",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rollway_driver import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
