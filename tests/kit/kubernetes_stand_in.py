"""A stand-in for the Kubernetes API server: Jobs whose pods are processes on this machine.

Each pod has a loopback address of its own, so that all of them can serve the same port; they die with the stand-in's
process group. It keeps the forms of the real API (batch/v1 Jobs, v1 pods, Status errors) for what the dispatcher asks
of it, and nothing else.

    python -m tests.kit.kubernetes_stand_in PORT IMAGES

IMAGES is JSON: the argv of each image. Images it does not have fail as a pull does. PUT /stand-in with ``{"quota": n}``
refuses more Jobs than that, ``{"nodes": false}`` leaves pods unscheduled, ``{"down": true}`` answers 503.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import Any

from aiohttp import web

NAMESPACE = "agents"


class StandIn:
    def __init__(self, images: dict[str, list[str]]) -> None:
        self._images = images
        self._jobs: dict[str, dict[str, Any]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses = (f"127.77.{i // 250}.{i % 250 + 1}" for i in itertools.count())
        self._switches: dict[str, Any] = {"quota": None, "nodes": True, "down": False}
        self.calls: dict[str, int] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._count])
        jobs = "/apis/batch/v1/namespaces/{namespace}/jobs"
        app.add_routes([
            web.post(jobs, self.create), web.delete(jobs + "/{name}", self.delete),
            web.get("/api/v1/namespaces/{namespace}/pods", self.pods),
            web.put("/stand-in", self.switch), web.get("/stand-in", self.state),
        ])  # fmt: skip
        app.on_cleanup.append(self._end)
        return app

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path != "/stand-in":
            self.calls[request.method] = self.calls.get(request.method, 0) + 1
            if self._switches["down"]:
                return _status(503, "ServiceUnavailable", "the API server is told to be down")
            if request.match_info.get("namespace") != NAMESPACE:
                return _status(404, "NotFound", f'namespaces "{request.match_info.get("namespace")}" not found')
        answer: web.StreamResponse = await handler(request)
        return answer

    async def switch(self, request: web.Request) -> web.Response:
        self._switches |= await request.json()
        return web.json_response(self._switches)

    async def state(self, _: web.Request) -> web.Response:
        return web.json_response({"jobs": sorted(self._jobs), "calls": self.calls})

    async def create(self, request: web.Request) -> web.Response:
        job = await request.json()
        name = job["metadata"]["name"]
        if name in self._jobs:
            return _status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        quota = self._switches["quota"]
        if quota is not None and len(self._jobs) >= quota:
            return _status(403, "Forbidden", f'jobs.batch "{name}" is forbidden: exceeded quota: agents')
        self._jobs[name] = {**job, "ip": next(self._addresses)}
        return web.json_response(job, status=201)

    def _run(self, name: str) -> None:
        """Schedule a pod: its image's process, with the container's environment."""
        job = self._jobs[name]
        container = job["spec"]["template"]["spec"]["containers"][0]
        argv = self._images.get(container["image"])
        if argv is not None and name not in self._running and self._switches["nodes"]:
            env = {e["name"]: e["value"] for e in container["env"]} | {"HOST": job["ip"]}
            self._running[name] = subprocess.Popen(argv, env={**os.environ, **env})

    async def delete(self, request: web.Request) -> web.Response:
        job = self._jobs.pop(request.match_info["name"], None)
        if job is None:
            return _status(404, "NotFound", f'jobs.batch "{request.match_info["name"]}" not found')
        self._kill(request.match_info["name"])
        return web.json_response({"kind": "Status", "status": "Success"})

    async def pods(self, request: web.Request) -> web.Response:
        label = request.query.get("labelSelector", "")
        for name in self._jobs:
            self._run(name)
        items = [_pod(name, job, self._running.get(name), self._images) for name, job in self._jobs.items()]
        found = [pod for pod in items if label in pod["metadata"]["labels"]]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "items": found})

    def _kill(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    async def _end(self, _: web.Application) -> None:
        for name in list(self._running):
            self._kill(name)


def _pod(
    name: str, job: dict[str, Any], process: subprocess.Popen[bytes] | None, images: dict[str, list[str]]
) -> dict[str, Any]:
    template = job["spec"]["template"]
    image = template["spec"]["containers"][0]["image"]
    status: dict[str, Any] = {"phase": "Pending"}
    spec: dict[str, Any] = {}
    if image not in images:
        spec["nodeName"] = "node"
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
        status["containerStatuses"] = [{"state": {"waiting": waiting}}]
    elif process is None:
        unschedulable = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
        status["conditions"] = [unschedulable]
    elif process.poll() is None:
        spec["nodeName"] = "node"
        status = {"phase": "Running", "podIP": job["ip"], "containerStatuses": [{"state": {"running": {}}}]}
    else:
        spec["nodeName"] = "node"
        ended = {"exitCode": process.returncode, "reason": "Error"}
        phase = "Succeeded" if process.returncode == 0 else "Failed"
        status = {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]}
    metadata = {"name": f"{name}-x", "labels": template["metadata"]["labels"]}
    return {"metadata": metadata, "spec": spec, "status": status}


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code)


if __name__ == "__main__":
    web.run_app(StandIn(json.loads(sys.argv[2])).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
