"""Turns what a batch names into a runtime, and owns what runtimes share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rollway_dispatcher.runtimes.agentcore import AgentCore, AgentCoreRuntimes
from rollway_dispatcher.runtimes.containers import Containers, HttpContainers
from rollway_dispatcher.runtimes.kubernetes import Clusters, KubernetesJobs
from rollway_dispatcher.runtimes.processes import LocalProcess, Processes
from rollway_dispatcher.runtimes.runtime import Runtime
from rollway_dispatcher.runtimes.tps import Pace, own_pace
from rollway_wire.batch import AgentCoreRuntime, HttpRuntime, KubernetesRuntime, RuntimeSpec


class Runtimes:
    """One runtime object per distinct spec. Made by `open_runtimes`."""

    def __init__(
        self, agentcore: AgentCoreRuntimes, containers: Containers, processes: Processes, clusters: Clusters
    ) -> None:
        self._agentcore = agentcore
        self._containers = containers
        self._processes = processes
        self._clusters = clusters
        self._known: dict[str, Runtime] = {}

    def of(self, spec: RuntimeSpec) -> Runtime:
        key = spec.model_dump_json()
        if key not in self._known:
            self._known[key] = self._make(spec)
        return self._known[key]

    def look_again(self) -> None:
        """Sessions of another dispatcher's are ours now: those on this machine are found among its processes."""
        self._processes.look_again()

    def _make(self, spec: RuntimeSpec) -> Runtime:
        if isinstance(spec, AgentCoreRuntime):
            return AgentCore(spec, self._agentcore)
        if isinstance(spec, HttpRuntime):
            return HttpContainers(spec, self._containers)
        if isinstance(spec, KubernetesRuntime):
            return KubernetesJobs(spec, self._clusters)
        return LocalProcess(spec, self._processes)


@asynccontextmanager
async def open_runtimes(
    agents_folder: Path, s3_endpoint_url: str | None, *, keep_processes: bool, pace: Pace = own_pace
) -> AsyncIterator[Runtimes]:
    """Closes connections at the end; sessions go on, but for local processes unless ``keep_processes``.

    Args:
        pace: spaces the calls to one ARN.
    """
    async with AsyncExitStack() as stack:
        agentcore, containers, clusters = AgentCoreRuntimes(pace), Containers(), Clusters()
        processes = Processes(agents_folder, s3_endpoint_url, keep=keep_processes)
        stack.push_async_callback(agentcore.close)
        stack.push_async_callback(containers.close)
        stack.push_async_callback(processes.close)
        stack.push_async_callback(clusters.close)
        yield Runtimes(agentcore, containers, processes, clusters)
