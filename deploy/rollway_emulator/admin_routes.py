"""The emulator's own API, never under an AWS path: sessions, chaos, health. Errors are problem+json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollway_emulator.chaos import ChaosSpec
from rollway_emulator.fleet import Fleet
from rollway_kit.app import problem_response
from rollway_wire.problems import NotFound, RollwayError, TooLarge, Unprocessable

_BODY_LIMIT = 65_536


class AdminRoutes:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def health(self, request: Request) -> Response:
        counts = {"agents": len(self._fleet.agents), "sessions": len(tuple(self._fleet.active()))}
        return JSONResponse({"status": "ok", **counts})

    async def sessions(self, request: Request) -> Response:
        active = [session.view() for session in self._fleet.active()]
        return JSONResponse({"sessions": active, "ended": self._fleet.past()})

    async def kill_session(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        if await self._fleet.kill(session_id) == 0:
            raise NotFound(f"no session {session_id} has a container")
        return Response(status_code=204)

    def _arn(self, request: Request) -> str:
        arn: str = request.path_params["arn"]
        if arn not in self._fleet.agents:
            raise NotFound(f"no agent runtime {arn}; there are: {', '.join(sorted(self._fleet.agents))}")
        return arn

    async def get_chaos(self, request: Request) -> Response:
        return JSONResponse(self._fleet.chaos(self._arn(request)).spec.model_dump(exclude_none=True))

    async def put_chaos(self, request: Request) -> Response:
        arn = self._arn(request)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _BODY_LIMIT:
                raise TooLarge(f"chaos switches take at most {_BODY_LIMIT} bytes")
        try:
            spec = ChaosSpec.model_validate_json(body)
        except ValidationError as e:
            first = e.errors()[0]
            where = "/".join(map(str, first["loc"])) or "body"
            raise Unprocessable(f"{where}: {first['msg']}; switches: {', '.join(ChaosSpec.model_fields)}") from e
        self._fleet.set_chaos(arn, spec)
        return JSONResponse(spec.model_dump(exclude_none=True))


def _with_problems(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except RollwayError as e:
            return problem_response(e, request.url.path)

    return answer


def admin_routes(routes: AdminRoutes) -> list[Route]:
    return [
        Route("/health", routes.health, methods=["GET"]),
        Route("/_emulator/sessions", routes.sessions, methods=["GET"]),
        Route("/_emulator/sessions/{session_id:path}", _with_problems(routes.kill_session), methods=["DELETE"]),
        Route("/_emulator/chaos/{arn:path}", _with_problems(routes.get_chaos), methods=["GET"]),
        Route("/_emulator/chaos/{arn:path}", _with_problems(routes.put_chaos), methods=["PUT"]),
    ]
