"""One Kubernetes Job per session (the ``kubernetes`` runtime): its pod serves the AgentCore contract on a port.

A Job's name holds its session id, so creating it twice is refused by the API server and nothing of ours needs to be
remembered. Pods are looked at together: one list per namespace and second, however many sessions wait or run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

import aiohttp

from rollway_dispatcher.outbound import NoAnswer, Outbound
from rollway_dispatcher.runtimes.containers import SESSION_HEADER
from rollway_dispatcher.runtimes.kubernetes_job import SESSION_LABEL, describe, job_name, manifest, verdict
from rollway_dispatcher.runtimes.runtime import StartError, StopUnconfirmed
from rollway_dispatcher.runtimes.starts import StartsInFlight
from rollway_wire.batch import KubernetesRuntime
from rollway_wire.failures import FailureType

CENSUS_EVERY_S = 1.0
INVOKE_TIMEOUT_S = 60.0
PING_EVERY_S = 0.2
GONE_WITHIN_S = 30.0
MISSING_AFTER = 3
"""Lists in a row without a pod that was there: it was deleted, not just missed."""

API_TIMEOUT_S = 30.0


class Refused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status} {said}")
        self.status = status


class Unreachable(Exception):
    """The API server did not answer."""


class Cluster:
    """One API server and namespace: its client, and the latest list of our pods."""

    def __init__(self, spec: KubernetesRuntime) -> None:
        self._spec = spec
        self._api: Any = None
        self._opening = asyncio.Lock()
        self._listing = asyncio.Lock()
        self._listed_at = float("-inf")
        self._pods: dict[str, dict[str, Any]] = {}
        self.http = Outbound(max_connections=256, keep_alive=False)

    async def call(self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> Any:
        """One request to the API server; the decoded answer.

        Raises:
            Refused: it answered with an error.
            Unreachable: it did not answer.
            StartError: there is no client, or no configuration for it.
        """
        api = await self._client()
        from kubernetes_asyncio.client import ApiException

        try:
            answer = await api.call_api(
                path, method, body=body, query_params=list((query or {}).items()), auth_settings=["BearerToken"],
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                _preload_content=False, _request_timeout=API_TIMEOUT_S,
            )  # fmt: skip
            raw = answer[0] if isinstance(answer, tuple) else answer
            text = await raw.text()
        except ApiException as e:
            raise Refused(e.status or 0, f"{e.reason}: {str(e.body)[:300]}") from e
        except (aiohttp.ClientError, OSError) as e:  # TimeoutError is an OSError
            raise Unreachable(f"{type(e).__name__}: {e}" if str(e) else type(e).__name__) from e
        if raw.status >= 300:
            raise Refused(raw.status, f"{raw.reason}: {text[:300]}")
        return json.loads(text)

    async def _client(self) -> Any:
        try:
            from kubernetes_asyncio import client, config
        except ImportError as e:
            message = "the kubernetes runtime needs its client: pip install 'rollway[kubernetes]' beside the dispatcher"
            raise StartError(FailureType.CONTRACT_ERROR, message) from e
        async with self._opening:
            if self._api is None:
                settings = client.Configuration()
                try:
                    if self._spec.api_url is not None:
                        settings.host = self._spec.api_url
                    elif self._spec.context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
                    else:
                        await config.load_kube_config(context=self._spec.context, client_configuration=settings)
                except config.ConfigException as e:
                    raise StartError(FailureType.CONTRACT_ERROR, f"no Kubernetes configuration: {e}") from e
                self._api = client.ApiClient(settings)
            return self._api

    async def pods(self) -> dict[str, dict[str, Any]]:
        """Our pods by session id, at most `CENSUS_EVERY_S` old."""
        now = asyncio.get_running_loop().time
        async with self._listing:
            if now() - self._listed_at >= CENSUS_EVERY_S:
                path = f"/api/v1/namespaces/{self._spec.namespace}/pods"
                found = await self.call("GET", path, query={"labelSelector": SESSION_LABEL})
                self._pods = {p["metadata"]["labels"][SESSION_LABEL]: p for p in found["items"]}
                self._listed_at = now()
        return self._pods

    async def close(self) -> None:
        await self.http.close()
        if self._api is not None:
            await self._api.close()


class Clusters:
    """Shared by every batch."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str | None, str], Cluster] = {}

    def of(self, spec: KubernetesRuntime) -> Cluster:
        key = (spec.api_url, spec.context, spec.namespace)
        if key not in self._known:
            self._known[key] = Cluster(spec)
        return self._known[key]

    async def close(self) -> None:
        for cluster in self._known.values():
            await cluster.close()


class KubernetesJobs:
    """A batch's image, one Job per session."""

    def __init__(self, spec: KubernetesRuntime, clusters: Clusters) -> None:
        self._spec = spec
        self._cluster = clusters.of(spec)
        self._starts = StartsInFlight()
        self._stopping: set[str] = set()
        """A start under way of one of these gives up, so that the stop need not wait for a pod to be ready."""
        self._jobs = f"/apis/batch/v1/namespaces/{spec.namespace}/jobs"

    async def start(self, session_id: str, payload: bytes) -> bytes:
        with self._starts.begun(session_id):
            await self._create(session_id)
            url = await self._ready(session_id)
            return await self._invoke(url, session_id, payload)

    async def _create(self, session_id: str) -> None:
        try:
            await self._cluster.call("POST", self._jobs, manifest(self._spec, session_id))
        except Refused as e:
            if e.status != 409:  # an earlier start of the same session
                raise _create_error(e) from e
        except Unreachable as e:
            raise StartError(FailureType.START_FAILED, f"the Kubernetes API did not answer: {e}") from e

    async def _ready(self, session_id: str) -> str:
        """Wait until the pod's /ping answers; its URL."""
        seen: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(self._spec.start_timeout_s):
                while True:
                    if session_id in self._stopping:
                        raise StartError(FailureType.START_FAILED, "the session was stopped while it started")
                    seen = await self._pod(session_id)
                    if (said := verdict(seen)) is not None:
                        raise StartError(said, f"the pod cannot run: {describe(seen)}")
                    ip = (seen or {}).get("status", {}).get("podIP")
                    if ip is not None and await self._answers(url := f"http://{ip}:{self._spec.port}"):
                        return url
                    await asyncio.sleep(PING_EVERY_S)
        except TimeoutError:
            within = f"within {self._spec.start_timeout_s:g} s"
            if seen is None or seen.get("spec", {}).get("nodeName") is None:
                await self._delete(session_id)  # throttled promises that nothing was started
                raise StartError(FailureType.THROTTLED, f"no node took the pod {within}: {describe(seen)}") from None
            message = f"the agent did not answer /ping on port {self._spec.port} {within}: {describe(seen)}"
            raise StartError(FailureType.START_FAILED, message) from None

    async def _pod(self, session_id: str) -> dict[str, Any] | None:
        try:
            return (await self._cluster.pods()).get(session_id)
        except (Refused, Unreachable):
            return None  # asked again until the start's own time is up

    async def _answers(self, url: str) -> bool:
        with contextlib.suppress(NoAnswer):
            return (await self._cluster.http.call("GET", f"{url}/ping", silence_s=5)).status == 200
        return False

    async def _invoke(self, url: str, session_id: str, payload: bytes) -> bytes:
        try:
            answer = await self._cluster.http.call(
                "POST", f"{url}/invocations", body=payload, silence_s=INVOKE_TIMEOUT_S,
                headers={"content-type": "application/json", "accept": "application/json", SESSION_HEADER: session_id},
            )  # fmt: skip
        except NoAnswer as e:
            raise StartError(FailureType.START_FAILED, f"the pod did not accept the invocation: {e}") from e
        if not answer.ok:
            kind = FailureType.CONTRACT_ERROR if 400 <= answer.status < 500 else FailureType.START_FAILED
            raise StartError(kind, f"the agent answered the invocation {answer.status}: {answer.text[:300]}")
        return answer.body

    async def _delete(self, session_id: str) -> None:
        """Raises: StopUnconfirmed."""
        body = {"propagationPolicy": "Background", "gracePeriodSeconds": self._spec.stop_grace_s}
        try:
            await self._cluster.call("DELETE", f"{self._jobs}/{job_name(session_id)}", body)
        except Refused as e:
            if e.status != 404:
                raise StopUnconfirmed(f"the Kubernetes API answered {e}") from e
        except Unreachable as e:
            raise StopUnconfirmed(f"the Kubernetes API did not answer: {e}") from e

    async def stop(self, session_id: str) -> None:
        self._stopping.add(session_id)
        try:
            await self._starts.settle(session_id)  # a Job created after its deletion would stay
            await self._delete(session_id)
            await self._gone(session_id)
        finally:
            self._stopping.discard(session_id)

    async def _gone(self, session_id: str) -> None:
        """Raises: StopUnconfirmed."""
        deadline = asyncio.get_running_loop().time() + self._spec.stop_grace_s + GONE_WITHIN_S
        while asyncio.get_running_loop().time() < deadline:
            try:
                if session_id not in await self._cluster.pods():
                    return
            except (Refused, Unreachable) as e:
                raise StopUnconfirmed(f"the Kubernetes API did not list pods: {e}") from e
            await asyncio.sleep(CENSUS_EVERY_S)
        raise StopUnconfirmed("the pod is still there")

    async def watch(self, session_id: str) -> str | None:
        """Dead is a pod that ended or was deleted. An API server that does not answer says nothing of it."""
        missing = 0
        while missing < MISSING_AFTER:
            await asyncio.sleep(CENSUS_EVERY_S)
            try:
                pod = (await self._cluster.pods()).get(session_id)
            except (Refused, Unreachable):
                continue
            missing = missing + 1 if pod is None else 0
            if pod is not None and pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
                return f"the pod ended: {describe(pod)}"
        return "the pod was deleted"


def _create_error(e: Refused) -> StartError:
    said = f"the Kubernetes API answered {e}"
    if e.status == 429 or (e.status == 403 and "exceeded quota" in str(e)):
        return StartError(FailureType.THROTTLED, said)
    broken = e.status in (400, 401, 403, 404, 422)
    return StartError(FailureType.CONTRACT_ERROR if broken else FailureType.START_FAILED, said)
