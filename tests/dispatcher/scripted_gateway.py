"""A scripted gateway: the session routes of the real one, whose trajectories are made up from the number of calls."""

from __future__ import annotations

import asyncio
import json
import socket
from array import array
from types import TracebackType
from typing import Any

from aiohttp import web

from rollway_wire.codec import MEDIA_TYPE, dump_packed, trajectory_tree
from rollway_wire.tokens import Ledger, Sequence, Trajectory, Turn
from tests.kit.ports import HeldPort


class ScriptedGateway:
    """``sessions`` and ``calls`` by session id; ``incomplete``: reasons that new sessions' seals give, in order."""

    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, int] = {}
        self.sealed: set[str] = set()
        self.incomplete: list[str] = []
        self.spoiled: dict[str, str] = {}
        self.refuse: int | None = None
        """Status with which new sessions are refused."""
        self.gate = asyncio.Event()
        """Sessions open when it is set."""
        self.gate.set()
        self.opening = 0
        """Requests to open one that wait for it."""
        self.loads: list[dict[str, Any]] = []
        """What the engines of every pool say of their load."""
        self.load_asked = 0
        self.unknown_sealed = 0
        """Requests to seal a session that it does not know."""
        self._held = HeldPort()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return self._held.url

    async def __aenter__(self) -> ScriptedGateway:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        await self.stop()
        self._held.close()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/pools/{pool}/load", self._load)
        app.router.add_post("/v1/sessions", self._open)
        app.router.add_post("/v1/sessions/{id}/seal", self._seal)
        app.router.add_post("/sessions/{id}/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        sock = socket.create_server(("127.0.0.1", self._held.number))
        await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        """Close the port; `start` opens the same one again."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _load(self, request: web.Request) -> web.Response:
        self.load_asked += 1
        return web.json_response({"workers": self.loads})

    async def _open(self, request: web.Request) -> web.Response:
        spec = await request.json()
        self.opening += 1
        await self.gate.wait()
        self.opening -= 1
        if self.refuse is not None:
            return web.json_response({"detail": f"no pool {spec['pool']}"}, status=self.refuse)
        known = self.sessions.setdefault(spec["session_id"], spec)
        if known != spec:
            return web.json_response({"detail": "other settings"}, status=409)
        if self.incomplete and spec["session_id"] not in self.spoiled:
            self.spoiled[spec["session_id"]] = self.incomplete.pop(0)
        base = f"{self.url}/sessions/{spec['session_id']}/v1"
        ticket = {"session_id": spec["session_id"], "base_url": base, "api_key": "sample-key"}
        return web.json_response(ticket, status=201)

    async def _chat(self, request: web.Request) -> web.Response:
        session = request.match_info["id"]
        if session in self.sealed:
            return web.json_response({"error": {"message": "sealed"}}, status=410)
        self.calls[session] = self.calls.get(session, 0) + 1
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "ok"}}]})

    async def _seal(self, request: web.Request) -> web.Response:
        session = request.match_info["id"]
        if session not in self.sessions:
            self.unknown_sealed += 1
            return web.json_response({"detail": "unknown session"}, status=404)
        self.sealed.add(session)
        tree = trajectory_tree(trajectory(session, self.calls.get(session, 0), self.spoiled.get(session)))
        assert request.headers["accept"] == MEDIA_TYPE
        return web.Response(body=dump_packed(tree), content_type=MEDIA_TYPE)


def trajectory(session_id: str, turns: int, incomplete: str | None = None) -> Trajectory:
    """One sequence of three tokens per turn: a prompt token and two sampled ones."""
    made = tuple(
        Turn(
            turn_id=f"t{i}", call_id=f"c{i}", index=i, prompt_token_ids=array("i", [1]),
            completion_token_ids=array("i", [7, 8]), logprobs=array("f", [-0.5, -0.25]), finish_reason="stop",
            policy_version_start=3, policy_version_end=3, started_at=1.0, ended_at=2.0,
        )
        for i in range(turns)
    )  # fmt: skip
    sequences = tuple(
        Sequence(
            token_ids=array("i", [1, 7, 8]), loss_mask=array("B", [0, 1, 1]), logprobs=array("f", [0.0, -0.5, -0.25]),
            policy_versions=array("i", [-1, 3, 3]), turn_ids=(t.turn_id,),
        )
        for t in made
    )  # fmt: skip
    ledger = Ledger(sampled=2 * turns, trained=2 * turns)
    return Trajectory(
        session_id=session_id, mode="mirror", turns=made, sequences=sequences, ledger=ledger, incomplete=incomplete,
        metadata=json.loads('{"scripted": true}'),
    )  # fmt: skip
