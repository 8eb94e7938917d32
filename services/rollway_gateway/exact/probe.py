"""What a worker can do, asked once when it becomes healthy. No question makes it sample."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import structlog

from rollway_gateway.exact.proofs import Proofs, Proven
from rollway_gateway.exact.standing import PARSES_REASONING, Exact, Standing, ToolFormat
from rollway_gateway.render import Options, Refused, Template, disagreements, questions
from rollway_gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from rollway_gateway.worker import Worker

log = structlog.get_logger()

_TOOL = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
_ASK = {"role": "user", "content": "Hi"}
_CALL = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": '{"a": 1}'}}],
}  # fmt: skip
_HERMES = ("<tool_call>", '"name": "probe"', '"arguments": {"a": 1}', "</tool_call>")


class Mirror(Exception):
    """Why a worker's sessions are mirrored."""


class Prober:
    """Asks workers; keeps what was proven of their templates."""

    def __init__(self, client: aiohttp.ClientSession, settings: GatewaySettings) -> None:
        self._client, self._settings = client, settings
        self._proofs = Proofs(settings.history)

    async def examine(self, worker: Worker) -> Standing:
        """The worker's standing.

        Raises:
            aiohttp.ClientError, OSError, ValueError: it could not be asked.
        """
        if self._settings.mode == "mirror":
            return Standing(why="mirror mode is set")
        proven: Proven | None = None
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                proven = await self._proofs.of(await self._folder(worker))
                exact = await self._exact(worker, proven)
        except Mirror as e:
            standing = Standing(why=str(e), certificate=proven.certificate if proven else None)
        else:
            standing = Standing(why=proven.certificate.why, certificate=proven.certificate, exact=exact)
        log.info("worker_standing", worker=worker.worker_id, mode=standing.mode, why=standing.why)
        return standing

    async def _folder(self, worker: Worker) -> Path:
        """The model folder on this machine."""
        given = worker.tokenizer or self._settings.tokenizer
        root = given or worker.root
        if root is None:
            raise Mirror("the worker does not say where its model lies, and no tokenizer folder is given")
        folder = Path(root)
        if not await asyncio.to_thread(folder.is_dir):
            said = "the tokenizer folder given" if given else "the worker's model"
            raise Mirror(f"{said}, {root!r}, is no folder on this machine")
        return folder

    async def _exact(self, worker: Worker, proven: Proven) -> Exact:
        if proven.template is None or proven.bridge is None:
            raise Mirror(proven.certificate.why)
        if worker.context is None:
            raise Mirror("the worker does not say how long its context is")
        await self._agrees(worker, proven.template)
        await self._takes_ids(worker, worker.context)
        if await self._parses_reasoning(worker, proven.template):
            raise Mirror(PARSES_REASONING)
        parses = await self._parses_calls(worker, worker.context)
        return Exact(
            template=proven.template, bridge=proven.bridge, quick=proven.certificate.window == "turn",
            context=worker.context, default_max_tokens=proven.limits_length, parses=parses,
            tools=await asyncio.to_thread(_tool_format, proven.template) if parses else None,
        )  # fmt: skip

    async def _agrees(self, worker: Worker, template: Template) -> None:
        """The engine renders and tokenises as the template does here."""
        answers: dict[str, list[int] | None] = {}
        for name, body in questions().items():
            status, answer = await self._post(worker.url + "/tokenize", {**body, "model": worker.model})
            if status == 404:
                raise Mirror("the worker has no /tokenize to check the template against")
            answers[name] = answer["tokens"] if status == 200 else None
        if found := await asyncio.to_thread(disagreements, template, answers):
            raise Mirror(f"the worker renders or tokenises otherwise than its template does here: {', '.join(found)}")

    async def _takes_ids(self, worker: Worker, context: int) -> None:
        """The route exists: it refuses, in its own words, to answer beyond the context."""
        body = {"model": worker.model, "prompt": [0], "max_tokens": context + 1, "return_token_ids": True}
        status, _ = await self._post(worker.api_url + "/completions", body)
        if status != 400:
            raise Mirror(f"the worker's completions route does not take prompt ids (it answered {status})")

    async def _parses_calls(self, worker: Worker, context: int) -> bool:
        """Whether the engine has a tool parser: without one it refuses tools before it sees the length."""
        body = {"model": worker.model, "messages": [_ASK], "tools": [_TOOL], "max_tokens": context + 1}
        status, answer = await self._post(worker.api_url + "/chat/completions", body)
        return status == 400 and "tool-call-parser" not in orjson.dumps(answer).decode()

    async def _parses_reasoning(self, worker: Worker, template: Template) -> bool:
        """As far as the engine says without sampling; where it does not, its first answers do (`Lane.keep`)."""
        ids = template.vocabulary.encode("<think>\na\n</think>\n\nb").tolist()
        answer = {"request_id": "probe", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}
        body = {
            "model": worker.model, "generate_response": answer,
            "chat_request": {"model": worker.model, "messages": [_ASK]},
        }  # fmt: skip
        status, said = await self._post(worker.api_url + "/chat/completions/derender", body)
        return status == 200 and any(c["message"].get("reasoning") for c in said["choices"])

    async def _post(self, url: str, body: dict[str, Any]) -> tuple[int, Any]:
        data = orjson.dumps(body)
        headers = {"content-type": "application/json"}
        async with (
            asyncio.timeout(self._settings.health_timeout_s),
            self._client.post(url, data=data, headers=headers, allow_redirects=False) as response,
        ):
            raw = await response.read()
            if response.status >= 500:
                raise ValueError(f"{url} answered {response.status}")
            return response.status, orjson.loads(raw) if response.status in (200, 400) else None


def _tool_format(template: Template) -> ToolFormat | None:
    """How the template writes a tool call, which is how the model is taught to."""
    try:
        text = template.text([_ASK, _CALL], Options(tools=[_TOOL]), prompt=False)
    except Refused:
        return None
    return "hermes" if all(mark in text for mark in _HERMES) else None
