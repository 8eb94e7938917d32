"""A scripted engine that tokenises: vLLM's routes over a real tokenizer and chat template, sampling what `scripts` say.

It renders chats with the code that is proven against vLLM (`rollway_gateway.render`), finds the script and the turn in
the prompt's text, samples that turn's text in the script's own tokens, and writes down every prompt and sample: the
truth that gateways are compared with. Routes: chat and text completions, token-in ``/inference/v1/generate``,
``/tokenize``, models, health. Streams none. For a few calls, not for load.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import uuid
from array import array
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from benchmarks.fidelity.scripts import SCRIPTS, TAG
from rollway_gateway.render import Options, Refused, Template
from rollway_wire.problems import RollwayError

MODEL = "scripted"
CONTEXT = 32768
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_HEADER = "<|im_start|>assistant\n"
_END = "<|im_end|>"


class Drawn(NamedTuple):
    """One call."""

    thread: str
    prompt: tuple[int, ...]
    sampled: tuple[int, ...]


class ScriptedEngine:
    """`start`, then `url`; `drawn` holds every call of a session, by its tag, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = Template.load(folder)
        self._end = self._template.vocabulary.id_of(_END)
        self.drawn: dict[tuple[str, int], list[Drawn]] = defaultdict(list)
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._text)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    # -- sampling

    def sample(self, prompt: array[int]) -> list[int]:
        """What the script says after this prompt, and its end token; written down."""
        text = self._template.vocabulary.decode(prompt)
        found = TAG.search(text)
        if found is None:
            return [*self._encoded("ok"), self._stop]
        script, seed = SCRIPTS[found[1]], int(found[2])
        turn = text.count(_HEADER) - 1
        ids = [i for piece in script.pieces(seed, turn) for i in self._encoded(piece)]
        ids.append(self._stop)
        self.drawn[script.name, seed].append(Drawn(found[3], tuple(prompt), tuple(ids)))
        return ids

    @property
    def _stop(self) -> int:
        assert self._end is not None
        return self._end

    def _encoded(self, text: str) -> list[int]:
        return self._template.vocabulary.encode(text).tolist()

    def _prompt(self, body: dict[str, Any]) -> array[int]:
        return self._template.prompt_ids(body["messages"], Options(tools=body.get("tools")))

    # -- routes

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if _asked(body) > CONTEXT:
            return _refused(f"max_tokens={_asked(body)} is above the model's context of {CONTEXT}")
        try:
            prompt = self._prompt(body)
        except RollwayError as e:
            return _refused(str(e))
        ids = self.sample(prompt)
        message = _message(self._said(ids), bool(body.get("tools")))
        entries = [{"token": self._one(i), "logprob": lp, "bytes": [], "top_logprobs": []} for i, lp in _scored(ids)]
        choice = {
            "index": 0, "message": message, "logprobs": {"content": entries} if body.get("logprobs") else None,
            "finish_reason": "tool_calls" if message["tool_calls"] else "stop", "stop_reason": None,
            "token_ids": ids if body.get("return_token_ids") else None,
        }  # fmt: skip
        shown = prompt.tolist() if body.get("return_token_ids") else None
        return web.json_response(
            {**_head("chat.completion"), "choices": [choice], "usage": _usage(prompt, ids), "prompt_token_ids": shown}
        )

    async def _text(self, request: web.Request) -> web.Response:
        body = await request.json()
        if _asked(body) > CONTEXT:
            return _refused(f"max_tokens={_asked(body)} is above the model's context of {CONTEXT}")
        prompt = array("i", body["prompt"])
        ids = self.sample(prompt)
        shown = bool(body.get("return_token_ids"))
        logprobs = {
            "tokens": [self._one(i) for i in ids], "token_logprobs": [lp for _, lp in _scored(ids)],
            "top_logprobs": [{self._one(i): lp} for i, lp in _scored(ids)], "text_offset": [0] * len(ids),
        }  # fmt: skip
        special = body.get("skip_special_tokens") is False
        choice = {
            "index": 0, "text": self._template.vocabulary.decode(ids[:-1]) if special else self._said(ids),
            "logprobs": logprobs if body.get("logprobs") is not None else None, "finish_reason": "stop",
            "stop_reason": None, "prompt_logprobs": None, "prompt_token_ids": prompt.tolist() if shown else None,
            "token_ids": ids if shown else None,
        }  # fmt: skip
        return web.json_response({**_head("text_completion"), "choices": [choice], "usage": _usage(prompt, ids)})

    async def _generate(self, request: web.Request) -> web.Response:
        prompt = array("i", (await request.json())["token_ids"])
        ids = self.sample(prompt)
        entries = [{"token_id": i, "logprob": lp, "rank": 1, "top_logprobs": []} for i, lp in _scored(ids)]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": entries}, "finish_reason": "stop"}
        return web.json_response({"request_id": "generate-tokens-0", "choices": [choice], "usage": _usage(prompt, ids)})

    async def _tokenize(self, request: web.Request) -> web.Response:
        try:
            tokens = self._prompt(await request.json()).tolist()
        except Refused as e:
            return _refused(str(e))
        return web.json_response({"count": len(tokens), "max_model_len": CONTEXT, "tokens": tokens})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "root": str(self._folder), "parent": None, "max_model_len": CONTEXT}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    def _said(self, ids: list[int]) -> str:
        return self._template.vocabulary.decode(ids[:-1])

    def _one(self, token_id: int) -> str:
        return self._template.vocabulary.decode([token_id])


def _asked(body: dict[str, Any]) -> int:
    return body.get("max_completion_tokens") or body.get("max_tokens") or 0


def _scored(ids: list[int]) -> list[tuple[int, float]]:
    return [(i, -((k * 0.37) % 3.0) - 0.01) for k, i in enumerate(ids)]


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"scripted-{uuid.uuid4().hex[:16]}", "object": kind, "created": 1_700_000_000, "model": MODEL}


def _usage(prompt: array[int], ids: list[int]) -> dict[str, int]:
    return {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}


def _refused(why: str) -> web.Response:
    return web.json_response(
        {"error": {"message": why, "type": "BadRequestError", "param": None, "code": 400}}, status=400
    )


def _message(text: str, tools: bool) -> dict[str, Any]:
    """As vLLM's hermes parser answers: arguments serialised anew, text before the first call kept."""
    calls = [json.loads(written) for written in _CALL.findall(text)] if tools else []
    content: str | None = text
    if calls:
        before = text[: text.find("<tool_call>")]
        content = before if before.strip() else None
    made = [
        {
            "id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}",
            "type": "function",
            "function": {"name": c["name"], "arguments": json.dumps(c["arguments"], ensure_ascii=False)},
        }
        for c in calls
    ]
    return {"role": "assistant", "content": content, "reasoning": None, "tool_calls": made}


async def serving(folder: Path) -> ScriptedEngine:
    """A started engine; its tokenizer is read off the loop."""
    engine = await asyncio.to_thread(ScriptedEngine, folder)
    await engine.start()
    return engine
