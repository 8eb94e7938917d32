"""A stand-in for thousands of agent containers: one process that takes every invocation, sleeps, saves a result.

    python -m benchmarks.dispatcher.sleepers PORT

It keeps the shim's contract: a receipt at once, ``started``, heartbeats and ``done`` to the address in ``_rollout``,
the result in S3 before ``done``. The result says when the agent was done (``done_at``, Unix seconds). A payload's
``sleep_s`` says how long; ``pushes: false`` makes it an agent that never reports.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import aiohttp
import uvloop
from aiohttp import web

SESSION = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"


class Sleepers:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._running: dict[str, asyncio.Task[None]] = {}
        self.invocations = 0

    async def ping(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "HealthyBusy" if self._running else "Healthy"})

    async def counts(self, _: web.Request) -> web.Response:
        return web.json_response({"invocations": self.invocations, "running": len(self._running)})

    async def invoke(self, request: web.Request) -> web.Response:
        payload = json.loads(await request.read())
        session_id, config = request.headers[SESSION], payload["_rollout"]
        key = f"{config['exp_id']}/{config['input_id']}/{session_id}.json"
        self.invocations += 1
        if session_id not in self._running:
            task = asyncio.create_task(self._sleep(session_id, payload, config, key), name=f"sleeper {session_id}")
            self._running[session_id] = task
            task.add_done_callback(lambda _: self._running.pop(session_id, None))
        return web.json_response({"status": "processing", "s3_bucket": config["s3_bucket"], "result_key": key})

    async def _sleep(self, session_id: str, payload: dict, config: dict, key: str) -> None:
        report = config.get("report") if payload.get("pushes", True) else None
        until = time.monotonic() + payload["sleep_s"]
        event = "started"
        while report and (left := until - time.monotonic()) > 0:
            await self._report(report, {"session_id": session_id, "event": event})
            event = "heartbeat"
            await asyncio.sleep(min(left, report["interval_s"]))
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        result = {
            "status_code": 200, "stop_reason": "end_turn", "input_id": config["input_id"],
            "s3_bucket": config["s3_bucket"], "result_key": key, "payload": {}, "rewards": 1.0,
            "done_at": time.time(),
        }  # fmt: skip
        url = f"{os.environ['AWS_ENDPOINT_URL_S3']}/{config['s3_bucket']}/{key}"
        async with self._http.put(url, data=json.dumps(result)) as answer:
            answer.raise_for_status()
        if report:
            done = {"session_id": session_id, "event": "done", "status_code": 200, "result_key": key}
            await self._report(report, done)

    async def _report(self, target: dict, body: dict) -> None:
        headers = {"authorization": f"Bearer {target['key']}"}
        async with self._http.post(target["url"], json=body, headers=headers) as answer:
            await answer.read()


async def main(port: int) -> None:
    connector = aiohttp.TCPConnector(limit=64)
    async with aiohttp.ClientSession(connector=connector, headers={"user-agent": "sleepers"}) as http:
        sleepers = Sleepers(http)
        app = web.Application(client_max_size=2**20)
        app.add_routes([
            web.get("/ping", sleepers.ping), web.post("/invocations", sleepers.invoke),
            web.get("/counts", sleepers.counts),
        ])  # fmt: skip
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
