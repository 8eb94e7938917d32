"""The two operations of ``bedrock-agentcore`` as the SDK calls them.

Checks run in this order, and only the first failure is told: members (400), runtime and qualifier (404), payload
(400), rate (429), quota (402), container (424). A call refused before the rate check costs no request of the rate.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollway_emulator.container_link import ContainerLink
from rollway_emulator.errors import InternalServerException, ServiceError
from rollway_emulator.fleet import Fleet
from rollway_emulator.invocation import CallerLeft, Invocation
from rollway_emulator.settings import EmulatorSettings
from rollway_emulator.validation import SESSION_HEADER, check_payload, read_invoke, read_stop

log = structlog.get_logger()

_STOP_BODY_LIMIT = 65_536
_CLIENT_CLOSED_REQUEST = 499


def error_response(error: ServiceError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers())


async def read_payload(request: Request, limit: int) -> bytes:
    """The whole body. One that is too large is read to its end and dropped, or the SDK would see a broken connection
    instead of the answer.

    Raises:
        ValidationException: over ``limit`` bytes.
    """
    kept = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            kept += chunk
        else:
            kept.clear()
    check_payload(size, limit)
    return bytes(kept)


class AwsRoutes:
    """HTTP in, HTTP out; the decisions are the fleet's."""

    def __init__(self, settings: EmulatorSettings, fleet: Fleet, link: ContainerLink) -> None:
        self._settings = settings
        self._fleet = fleet
        self._link = link

    async def invoke(self, request: Request) -> Response:
        call = read_invoke(request.path_params["arn"], request.headers, request.query_params)
        agent = self._fleet.agent(call.address)
        payload = await read_payload(request, self._settings.payload_limit_bytes)
        self._fleet.throttle(agent)
        session = self._fleet.admit(agent, call.session_id)
        invocation = Invocation(
            session, self._fleet.chaos(agent.arn), self._link,
            request_timeout_s=self._settings.request_timeout_s, stream_timeout_s=self._settings.stream_timeout_s,
            answer_limit_bytes=self._settings.payload_limit_bytes,
        )  # fmt: skip
        return await invocation.answer(request, call, payload)

    async def stop(self, request: Request) -> Response:
        body = await read_payload(request, _STOP_BODY_LIMIT)
        call = read_stop(request.path_params["arn"], request.headers, request.query_params, body)
        agent = self._fleet.agent(call.address)
        self._fleet.throttle(agent)
        await self._fleet.stop(agent, call)
        return JSONResponse({}, 200, {SESSION_HEADER: call.session_id})


def as_operation(
    name: str, handle: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Errors in the service's shape, a request id, and one log line."""

    async def operation(request: Request) -> Response:
        request_id = str(uuid.uuid4())
        error: ServiceError | None = None
        try:
            response = await handle(request)
        except ServiceError as e:
            error, response = e, error_response(e)
        except (CallerLeft, ClientDisconnect):
            response = Response(status_code=_CLIENT_CLOSED_REQUEST)
        except Exception:
            log.exception("unhandled_exception", operation=name)
            error = InternalServerException("the emulator failed; see its log")
            response = error_response(error)
        response.headers["x-amzn-requestid"] = request_id
        log.info(
            "call", operation=name, arn=request.path_params["arn"], session_id=request.headers.get(SESSION_HEADER),
            status=response.status_code, error=error and error.code, detail=error and error.message,
        )  # fmt: skip
        return response

    return operation


def aws_routes(routes: AwsRoutes) -> list[Route]:
    return [
        Route("/runtimes/{arn:path}/invocations", as_operation("InvokeAgentRuntime", routes.invoke), methods=["POST"]),
        Route(
            "/runtimes/{arn:path}/stopruntimesession",
            as_operation("StopRuntimeSession", routes.stop),
            methods=["POST"],
        ),
    ]
