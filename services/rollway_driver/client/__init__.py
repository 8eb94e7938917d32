"""Clients of the dispatcher and the gateway. Needs the extra ``client`` (httpx, orjson) and nothing of a trainer's.

- `RolloutClient`: payloads in, results out; the names and meanings of agentcore-rl-toolkit's client.
- `DispatcherClient`, `AsyncDispatcherClient`: the dispatcher's API, a method per route.
- `GatewayClient`, `AsyncGatewayClient`: the gateway's own API, likewise; `AsyncGateways`: a pool's calls to several.
"""

from rollway_driver.client.batch_item import BatchItem
from rollway_driver.client.batch_result import AsyncBatchResult, BatchResult
from rollway_driver.client.dispatcher import AsyncDispatcherClient, DispatcherClient
from rollway_driver.client.dispatcher_calls import ArrowPage, FinishedRollout, Page
from rollway_driver.client.errors import ClientClosed, DamagedAnswer, RolloutFailed
from rollway_driver.client.gateway import AsyncGatewayClient, GatewayClient
from rollway_driver.client.gateways import AsyncGateways
from rollway_driver.client.retry import RetryPolicy
from rollway_driver.client.rollout_client import RolloutClient
from rollway_driver.client.rollout_future import RolloutFuture
from rollway_driver.client.streaming import StreamedRollout

__all__ = [
    "ArrowPage",
    "AsyncBatchResult",
    "AsyncDispatcherClient",
    "AsyncGatewayClient",
    "AsyncGateways",
    "BatchItem",
    "BatchResult",
    "ClientClosed",
    "DamagedAnswer",
    "DispatcherClient",
    "FinishedRollout",
    "GatewayClient",
    "Page",
    "RetryPolicy",
    "RolloutClient",
    "RolloutFailed",
    "RolloutFuture",
    "StreamedRollout",
]
