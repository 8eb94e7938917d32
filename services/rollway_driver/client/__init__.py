"""Clients of the dispatcher and the gateway.

`DispatcherClient` and `AsyncDispatcherClient` speak the dispatcher's API one route a method; `GatewayClient` and
`AsyncGatewayClient` the gateway's own. Needs the extra ``client`` (httpx, orjson) and nothing of a trainer's.
"""

from rollway_driver.client.dispatcher import AsyncDispatcherClient, DispatcherClient
from rollway_driver.client.dispatcher_calls import FinishedRollout, Page
from rollway_driver.client.errors import ClientClosed, DamagedAnswer, RolloutFailed
from rollway_driver.client.gateway import AsyncGatewayClient, GatewayClient
from rollway_driver.client.retry import RetryPolicy

__all__ = [
    "AsyncDispatcherClient",
    "AsyncGatewayClient",
    "ClientClosed",
    "DamagedAnswer",
    "DispatcherClient",
    "FinishedRollout",
    "GatewayClient",
    "Page",
    "RetryPolicy",
    "RolloutFailed",
]
