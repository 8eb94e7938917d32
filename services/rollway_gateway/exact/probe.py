"""What a worker can do, asked once when it becomes healthy. No question makes it sample."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import structlog

from rollway_gateway.exact.asking import derender_body
from rollway_gateway.exact.learn import explaining
from rollway_gateway.exact.proofs import Proofs, Proven
from rollway_gateway.exact.standing import READS_OTHERWISE, Exact, Standing, ToolFormat
from rollway_gateway.exact.thinking import Marks, Thinking
from rollway_gateway.render import Options, Refused, Template, disagreements, questions
from rollway_gateway.settings import GatewaySettings
from rollway_wire.tokens import IDS

if TYPE_CHECKING:
    from rollway_gateway.worker import Worker

log = structlog.get_logger()

_TOOL = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
_ASK = {"role": "user", "content": "Hi"}
_CALL = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": '{"a": 1}'}}],
}  # fmt: skip
_OFF = {"chat_template_kwargs": {"enable_thinking": False}}
_TEXTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "plain"), ({}, "<think>\na\n</think>\n\nb"), ({}, "a\n</think>\n\nb"), ({}, "a</think>b</think>c<think>d"),
    ({}, "a<tool_call>b"), (_OFF, "b"), (_OFF, "<think>a</think>b"),
)  # fmt: skip
"""Requests and answers to them that engines read differently."""
_MARK = "mark0of answer"
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
        log.info("worker_standing", worker=worker.worker_id, mode=standing.mode, why=standing.said)
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
        parses = await self._parses_calls(worker, worker.context)
        exact = Exact(
            template=proven.template, bridge=proven.bridge, quick=proven.certificate.window == "turn",
            context=worker.context, default_max_tokens=proven.limits_length, parses=parses,
            tools=await asyncio.to_thread(_tool_format, proven.template) if parses else None,
            thinking=_candidates(proven.template), renders=await self._renders(worker),
        )  # fmt: skip
        return await self._read(worker, exact)

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

    async def _renders(self, worker: Worker) -> bool:
        body = {"model": worker.model, "messages": [_ASK], "max_tokens": 1}
        status, _ = await self._post(worker.api_url + "/chat/completions/render", body, optional=True)
        return status == 200

    async def _read(self, worker: Worker, exact: Exact) -> Exact:
        """Hold what the engine reads out of ids against what is read here, where it has the route for it. Where it has
        not, its first answers do it (`Lane.keep`)."""
        left = exact
        for chat, text in _TEXTS:
            if (answer := await self._derendered(worker, exact, chat, text)) is None:
                return exact
            found = _explained(left, chat, text, answer)
            if found is None:
                raise Mirror(READS_OTHERWISE)
            left = found
        if not exact.parses:
            return left
        chat = {"tools": [_TOOL]}
        for text in await asyncio.to_thread(_called, exact):
            answer = await self._derendered(worker, exact, chat, text)
            if answer is None or (found := _explained(left, chat, text, answer)) is None:
                return replace(left, tools="engine" if answer is not None and answer.get("tool_calls") else None)
            left = found
        return left

    async def _derendered(self, worker: Worker, exact: Exact, chat: dict[str, Any], text: str) -> dict[str, Any] | None:
        """The message that the engine reads out of a text's ids; None: it has no route for it."""
        ids = exact.template.vocabulary.encode(text).tolist()
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop"}
        body = derender_body(worker.model or "", chat, [choice], frozenset())
        status, said = await self._post(worker.api_url + "/chat/completions/derender", body, optional=True)
        if status != 200:
            return None
        message: dict[str, Any] = said["choices"][0]["message"]
        return message

    async def _post(self, url: str, body: dict[str, Any], *, optional: bool = False) -> tuple[int, Any]:
        """``optional``: a server whose route fails is taken as one without it."""
        data = orjson.dumps(body)
        headers = {"content-type": "application/json"}
        async with (
            asyncio.timeout(self._settings.health_timeout_s),
            self._client.post(url, data=data, headers=headers, allow_redirects=False) as response,
        ):
            raw = await response.read()
            if response.status >= 500 and not optional:
                raise ValueError(f"{url} answered {response.status}")
            return response.status, orjson.loads(raw) if response.status in (200, 400) else None


def _candidates(template: Template) -> tuple[Marks | None, ...]:
    """How an engine that serves this template may read reasoning."""
    known: tuple[Thinking, ...] = ("qwen3", "deepseek_r1")
    made = (Marks.of(kind, template.vocabulary) for kind in known)
    return (None, *(m for m in made if m.open_id is not None and m.close_id is not None))


def _explained(exact: Exact, chat: dict[str, Any], text: str, answer: dict[str, Any]) -> Exact | None:
    ids = exact.template.vocabulary.encode(text)
    return explaining(exact, chat, array(IDS), ids, lambda _: text, answer)


def _called(exact: Exact) -> list[str]:
    """Answers that call a tool, as the template writes them: alone, and where reasoning is read, after some of it."""
    template, options = exact.template, Options(tools=[_TOOL])
    try:
        whole = template.text([_ASK, {**_CALL, "content": _MARK}], options, prompt=False)
    except Refused:
        return []
    closer = next((t for i in template.vocabulary.stop_ids if (t := template.vocabulary.token_of(i)) in whole), None)
    _, mark, said = whole.rpartition(_MARK)
    if not mark or "probe" not in said:
        return []
    said = said if closer is None else said.rpartition(closer)[0]
    return [said, f"<think>\na\n</think>\n\nb\n{said}", f"a{said}"] if len(exact.thinking) > 1 else [said]


def _tool_format(template: Template) -> ToolFormat | None:
    """How the template writes a tool call, which is how the model is taught to."""
    try:
        text = template.text([_ASK, _CALL], Options(tools=[_TOOL]), prompt=False)
    except Refused:
        return None
    return "hermes" if all(mark in text for mark in _HERMES) else None
