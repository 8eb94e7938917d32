"""The dispatchers of a soak: processes that are killed and started again on the same state."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from rollway_dispatcher.settings import DispatcherSettings
from tests.chaos.world import World
from tests.dispatcher.test_restart import environment
from tests.kit.deadlines import eventually
from tests.kit.services import Service, Services


class Replica:
    """One place where a dispatcher runs: its port, and one process after another."""

    def __init__(self, services: Services, world: World, settings: DispatcherSettings) -> None:
        self._services, self._world, self._settings = services, world, settings
        self._port = 0
        self._lives: list[Service] = []

    @property
    def service(self) -> Service:
        return self._lives[-1]

    def spawn(self) -> None:
        env = environment(self._settings, self._port)
        self._lives.append(self._services.spawn("dispatcher", ["-m", "rollway_dispatcher"], env=env, health="/health"))

    async def ready(self) -> None:
        """Serves, and the front knows it. Health may say that the state is away: then it serves nonetheless."""
        service = self.service
        await eventually(lambda: asyncio.to_thread(service.ready), "the dispatcher serves", 120)
        if not self._port:
            self._port = service.port
            self._world.replicas.append(service.url)

    def kill(self) -> None:
        """At once, and without waiting: it is dead before it takes another step."""
        self.service.process.kill()

    async def reaped(self) -> None:
        await asyncio.to_thread(self.service.wait)

    def said(self) -> Iterator[dict[str, Any]]:
        """Every log line that is whole, of all its lives."""
        for life in self._lives:
            for line in life.logs().splitlines():
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
