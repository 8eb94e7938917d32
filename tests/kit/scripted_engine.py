"""A scripted engine: an HTTP server on a free port that speaks vLLM's wire format but samples nothing.

It answers /v1/chat/completions and /v1/completions from a script, streaming or not, with token ids and log-probs where
the request asks for them and nulls where it does not, as vLLM 0.28 to 0.32 do, and counts on /tokenize. Its tokenizer
is one token per UTF-8 byte and its chat template is append-only, so a linear conversation's prompts extend one another
exactly.

    async with ScriptedEngine() as engine:
        engine.script(Reply("hello"), Reply(tool_calls=[("add", '{"a": 1}')]))   # one per call, in order
        engine.answer = lambda body: Reply("always this")                          # when the script is empty
        ... engine.url, engine.requests, engine.active, engine.cancelled ...

With ``folder`` (`scripted_model.write_model`) it is a server that exact mode can be proven on: it names the folder,
renders chats as the folder's template does, answers /tokenize, and keeps to a context length. With ``thinks`` it
samples and parses reasoning, for such a folder; with ``scale_out`` it has vLLM's /render and /derender.

As a process, answering every call alike: ``python -m tests.kit.scripted_engine --port 0 --text hello`` prints its URL.

Past 300 lines because it holds two routes in two forms each; split, the wire format could not be read in one place.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import json
import re
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.kit.ports import hold
from tests.kit.scripted_model import BOS, CLOSE, EOS, FIRST_BYTE, FORMS, OPEN, template_text
from tests.kit.scripted_router import ScriptedRouter

PROMPT_FIELDS = ("prompt_token_ids", "prompt_text")
_MARKS = {"<think>": OPEN, "</think>": CLOSE}


@dataclass
class Reply:
    """What the engine answers to one call."""

    text: str = "ok"
    reasoning: str | None = None
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    """(name, arguments as JSON text)."""
    finish_reason: str | None = None
    """None: "tool_calls" with tool calls, else "stop". Other than that, no end token is sampled."""
    stop_reason: str | int | None = None
    logprob: float | None = None
    """Of every token; None: -(k % 7) / 8 for the k-th token."""
    tokens_per_event: int = 1
    slice_bytes: int | None = None
    """Write a stream in slices of so many bytes, whatever they cut."""
    keep_alive: bool = False
    """A comment line before every event."""
    die_after: int | None = None
    """Abort the connection after so many events (0: before the headers)."""
    hold: asyncio.Event | None = None
    """Wait for it before the answer (non-stream) or before the third event."""
    drop: frozenset[str] = frozenset()
    """Evidence to withhold: "logprobs", "token_ids", "prompt_token_ids", "usage", "done", "routed_experts"."""
    status: int = 200
    error: dict[str, Any] | None = None
    """The body for a status of 400 and more; with status 200, an error event in the middle of the stream."""
    also_sampled: int = 0
    """Tokens that the engine counts besides those it shows."""
    raw: bytes | None = None
    """A recorded answer sent as it is."""
    raw_type: str = "application/json"


def text_ids(text: str) -> list[int]:
    return [FIRST_BYTE + b for b in text.encode()]


def chat_ids(messages: list[dict[str, Any]]) -> list[int]:
    """The chat template: each message as BOS role newline content [tool calls] EOS, then the opening of an answer."""
    ids: list[int] = []
    for m in messages:
        content = m.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        ids += [BOS, *text_ids(m["role"] + "\n" + content + _calls_text(_pairs(m.get("tool_calls"))))]
        ids.append(EOS)
    return [*ids, BOS, *text_ids("assistant\n")]


def marked_ids(text: str) -> list[int]:
    """Of a model that reasons: the marks are tokens."""
    parts = re.split("(</?think>)", text)
    return [i for p in parts for i in ([_MARKS[p]] if p in _MARKS else text_ids(p))]


def shown_text(ids: list[int]) -> str:
    """Text of sampled ids, the end token left out."""
    return b"".join(map(_bytes_of, ids)).decode(errors="replace")


def _bytes_of(token_id: int) -> bytes:
    if token_id >= FIRST_BYTE:
        return bytes([token_id - FIRST_BYTE])
    return next((mark.encode() for mark, i in _MARKS.items() if i == token_id), b"")


def templated_ids(messages: list[dict[str, Any]], *, thinks: bool = False, calls: str = "hermes") -> list[int]:
    """As the folder's template renders them."""
    ids: list[int] = []
    of = marked_ids if thinks else text_ids
    for role, text in template_text(messages, calls, thinks=thinks):
        ids += [BOS, *of(f"{role}\n{text}"), EOS]
    return [*ids, BOS, *of("assistant\n<think>" if thinks else "assistant\n")]


def _pairs(calls: Any) -> list[tuple[str, str]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in calls or []]


def _calls_text(calls: list[tuple[str, str]], form: str = "hermes") -> str:
    """As sampled: without the spaces that the template writes."""
    begin, between, end = (part.replace(": ", ":").replace(", ", ",") for part in FORMS[form])
    return "".join(begin + n + between + a + end for n, a in calls)


def _text_prompts(body: dict[str, Any]) -> list[list[int]]:
    prompt = body.get("prompt") or ""
    if isinstance(prompt, str):
        return [text_ids(prompt)]
    if prompt and isinstance(prompt[0], int):
        return [list(prompt)]
    return [text_ids(p) if isinstance(p, str) else list(p) for p in prompt]


@dataclass
class _Choice:
    """One sampled answer, and what of it the request may see."""

    index: int
    reply: Reply
    chat: bool
    body: dict[str, Any]
    router: ScriptedRouter | None = None
    thinks: bool = False
    """Reasoning is sampled up to its closing mark, and told of in usage."""
    form: str = "hermes"
    """How tool calls are sampled."""

    def __post_init__(self) -> None:
        r = self.reply
        self.text = r.text if self.index == 0 or not r.text else f"{r.text} #{self.index}"
        self.finish = r.finish_reason or ("tool_calls" if r.tool_calls else "stop")
        if isinstance(self.body.get("tool_choice"), dict) and self.finish == "tool_calls":
            self.finish = "stop"  # as vLLM ends a call that was asked for by name
        self.thought = marked_ids(f"{r.reasoning or ''}</think>") if self.thinks else text_ids(r.reasoning or "")
        said = self.text + _calls_text(r.tool_calls, self.form)
        whole = shown_text(self.thought) + said
        self.ids = self.thought + text_ids(said)
        if not self.chat:  # nothing is parsed
            self.text, self.finish = whole, "stop" if self.finish == "tool_calls" else self.finish
        if self.finish in ("stop", "tool_calls"):
            self.ids.append(EOS)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.spelled = ["<eos>" if i == EOS else decode(_bytes_of(i)) for i in self.ids]
        """Each token's text; a character is that of the token that completes it."""
        self.call_ids = [f"call_{uuid.uuid4().hex[:12]}" for _ in r.tool_calls]

    def logprob(self, k: int) -> float:
        return self.reply.logprob if self.reply.logprob is not None else -(k % 7) / 8

    @property
    def shows_ids(self) -> bool:
        return bool(self.body.get("return_token_ids")) and "token_ids" not in self.reply.drop

    def logprobs(self, lo: int, hi: int) -> dict[str, Any] | None:
        asked = self.body.get("logprobs") is not None if not self.chat else self.body.get("logprobs")
        if not asked or "logprobs" in self.reply.drop:
            return None
        ids, values = self.ids[lo:hi], [self.logprob(k) for k in range(lo, hi)]
        texts = self.spelled[lo:hi]
        by_id = self.body.get("return_tokens_as_token_ids")
        tokens = [f"token_id:{i}" for i in ids] if by_id else texts
        top = bool(self.body.get("top_logprobs") if self.chat else self.body["logprobs"])
        if self.chat:
            content = [
                {"token": t, "logprob": v, "bytes": list(text.encode()), "top_logprobs": [_top(t, v)] if top else []}
                for t, text, v in zip(tokens, texts, values, strict=True)
            ]
            return {"content": content}
        return {
            "text_offset": list(range(lo, hi)), "token_logprobs": values, "tokens": tokens,
            "top_logprobs": [{t: v} for t, v in zip(tokens, values, strict=True)],
        }  # fmt: skip

    def message(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "role": "assistant", "content": self.text or (None if self.reply.tool_calls else ""), "refusal": None,
            "annotations": None, "audio": None, "function_call": None,
        }  # fmt: skip
        if self.reply.tool_calls:
            out["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                for i, (n, a) in zip(self.call_ids, self.reply.tool_calls, strict=True)
            ]
        hidden = self.body.get("include_reasoning") is False
        return {**out, "reasoning": None if hidden else self.reply.reasoning}

    def whole(self, prompt: list[int]) -> dict[str, Any]:
        r, ids = self.reply, self.ids if self.shows_ids else None
        if self.chat:
            return {
                "index": self.index, "message": self.message(), "logprobs": self.logprobs(0, len(self.ids)),
                "finish_reason": self.finish, "stop_reason": r.stop_reason, "token_ids": ids,
                "routed_experts": self.routed_experts(prompt),
            }  # fmt: skip
        return {
            "index": self.index, "text": self.text, "logprobs": self.logprobs(0, len(self.ids)),
            "finish_reason": self.finish, "stop_reason": r.stop_reason, "token_ids": ids, "prompt_logprobs": None,
            "prompt_token_ids": prompt if self.shows_ids else None, "routed_experts": self.routed_experts(prompt),
        }  # fmt: skip

    def routed_experts(self, prompt: list[int]) -> str | None:
        if self.router is None or "routed_experts" in self.reply.drop:
            return None
        return self.router.text(prompt, self.ids, self.body.get("routed_experts_prompt_start") or 0)

    def _bytes(self, token_id: int) -> bytes:
        return b"" if self.chat and token_id < FIRST_BYTE else _bytes_of(token_id)

    def deltas(self) -> Iterator[tuple[int, int, dict[str, Any], bool]]:
        """(first token, past the last, delta, is the last) per event. Tool calls come whole, on the last event."""
        size, step = len(self.ids), self.reply.tokens_per_event
        reasoning = len(self.thought) if self.chat else 0
        plain = reasoning + len(self.text.encode()) if self.chat else size
        decode = codecs.getincrementaldecoder("utf-8")().decode
        bounds = sorted({*range(step, size, step), *({reasoning} if reasoning else ()), size})
        lo = 0
        for hi in bounds:
            text = decode(b"".join(map(self._bytes, self.ids[lo : min(hi, plain)])))
            delta: dict[str, Any] = {"reasoning" if hi <= reasoning else "content": text} if text else {}
            if hi == size and self.chat and self.reply.tool_calls:
                delta["tool_calls"] = [
                    {"id": i, "type": "function", "index": k, "function": {"name": n, "arguments": a}}
                    for k, (i, (n, a)) in enumerate(zip(self.call_ids, self.reply.tool_calls, strict=True))
                ]
            yield lo, hi, delta, hi == size
            lo = hi


class ScriptedEngine:
    """See the module. One instance is one server; ``url`` is known once it is entered."""

    def __init__(
        self, model: str = "scripted-model", fingerprint: str | None = "scripted-0", *, folder: Path | None = None,
        context: int = 100_000, thinks: bool = False, calls: str = "hermes", scale_out: bool = False,
    ) -> None:  # fmt: skip
        """Past 50 lines because every switch of the engine stands here with what it does."""
        self.model = model
        self.folder, self.context = folder, context
        self.render: Callable[[list[dict[str, Any]]], list[int]] = (
            chat_ids if folder is None else partial(templated_ids, thinks=thinks, calls=calls)
        )
        self.parses = True
        """Has a tool parser."""
        self.thinks = thinks
        """Has a reasoning parser, qwen3's."""
        self.calls = calls
        """How its model writes tool calls (`scripted_model.FORMS`), and its parser reads them."""
        self.scale_out = scale_out
        self.read: Callable[[str, dict[str, Any]], dict[str, Any]] = self._parsed
        """What /derender makes of a text, for a chat request."""
        self.grammar: dict[str, Any] | None = {"made": True}
        """What /render says of structured outputs; "made": as its chat route would; None: it fails."""
        self.rendered: list[dict[str, Any]] = []
        """Bodies of /render."""
        self.derendered: list[dict[str, Any]] = []
        self.takes_ids = True
        self.router: ScriptedRouter | None = None
        """Returns routed experts, with whole answers only."""
        self.aborts = True
        """Has a route to abort generations by request id: those on hold end with what was sampled."""
        self.on_hold: dict[str, asyncio.Event] = {}
        """By request id; set to abort."""
        self.models = [model]
        self.fingerprint = fingerprint
        self.answer: Callable[[dict[str, Any]], Reply] = lambda body: Reply()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        """(path, body) of every model call."""
        self.tokenized: list[dict[str, Any]] = []
        """Bodies of /tokenize."""
        self.headers: list[dict[str, str]] = []
        self.counts = True
        """Shows how many tokens it sampled."""
        self.sampled = 0
        self.began = time.time()
        self.active = 0
        self.waiting = 0
        self.kv_usage = 0.0
        """Both as its /metrics show them."""
        self.cancelled = 0
        """Calls whose client went away."""
        self.healthy = True
        self.url = ""
        self._script: deque[Reply] = deque()
        self._runner: web.AppRunner | None = None
        self._held_port: socket.socket | None = None
        """Keeps the port between `stop` and `start`."""

    def script(self, *replies: Reply) -> None:
        self._script.extend(replies)

    async def __aenter__(self) -> ScriptedEngine:
        self._held_port = hold(0)
        await self.start(self._held_port.getsockname()[1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        assert self._held_port is not None
        self._held_port.close()

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._call)
        app.router.add_post("/v1/completions", self._call)
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_post("/v1/chat/completions/derender", self._derender)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/inference/v1/abort_requests", self._abort)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        sock = socket.create_server(("127.0.0.1", port))
        await web.SockSite(self._runner, sock).start()
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"

    async def stop(self) -> None:
        """Refuse connections and abort what is in flight. `start(port)` listens there again."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        """As vLLM shows them: the labels, a series per engine, and neighbours whose names only begin alike."""
        if not self.counts:
            return web.Response(status=404)
        labels, sampled = f'engine="0",model_name="{self.model}"', float(self.sampled)
        lines = (
            "# TYPE vllm:num_requests_running gauge", f"vllm:num_requests_running{{{labels}}} {float(self.active)}",
            f"vllm:num_requests_waiting{{{labels}}} {float(self.waiting)}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {self.kv_usage!r}",
            "# TYPE vllm:generation_tokens_total counter", f"vllm:generation_tokens_total{{{labels}}} {sampled!r}",
            f'vllm:generation_tokens_total{{engine="1",model_name="{self.model}"}} 0.0',
            "# TYPE vllm:generation_tokens_created gauge", f"vllm:generation_tokens_created{{{labels}}} {self.began!r}",
            f"vllm:request_generation_tokens_sum{{{labels}}} 99.0",
        )  # fmt: skip
        return web.Response(text="\n".join(lines) + "\n")

    async def _models(self, request: web.Request) -> web.Response:
        root = {} if self.folder is None else {"root": str(self.folder), "max_model_len": self.context}
        data = [
            {"id": m, "object": "model", "created": 1, "owned_by": "vllm", "parent": None, **root} for m in self.models
        ]
        return web.json_response({"object": "list", "data": data})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.tokenized.append(body)
        tokens = self.render(body["messages"])
        return web.json_response({"count": len(tokens), "max_model_len": self.context, "tokens": tokens})

    async def _render(self, request: web.Request) -> web.Response:
        """Without --enable-scale-out vLLM answers 403."""
        if not self.scale_out:
            return web.Response(status=403)
        body = await request.json()
        self.rendered.append(body)
        said: dict[str, Any] = {"temperature": 1.0, "skip_special_tokens": False}
        if self.grammar is None:
            return web.Response(status=500)
        made = self.grammar
        if "made" in made:
            made = {"structural_tag": tag} if (tag := _grammar(body)) is not None else {}
        if made:
            said["structured_outputs"] = {"json": None, "structural_tag": None, "_backend": None, **made}
        return web.json_response({"token_ids": self.render(body["messages"]), "sampling_params": said})

    async def _derender(self, request: web.Request) -> web.Response:
        if not self.scale_out:
            return web.Response(status=403)
        body = await request.json()
        self.derendered.append(body)
        asked = body["chat_request"]
        choices = [
            {"index": c["index"], "message": self.read(shown_text(c["token_ids"]), asked), "finish_reason": "stop"}
            for c in body["generate_response"]["choices"]
        ]
        return web.json_response({"object": "chat.completion", "choices": choices})

    def _parsed(self, text: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The message in a text, as qwen3's reasoning parser and the form's tool parser read it."""
        off = (asked.get("chat_template_kwargs") or {}).get("enable_thinking") is False
        reasoning: str | None = None
        content: str | None = text
        if self.thinks and not off:
            head, mark, rest = text.partition("</think>")
            head = head.replace("<think>", "")
            call = head.find("<tool_call>")
            if call >= 0:
                head, rest, mark = head[:call], head[call:] + mark + rest, "</think>"
            reasoning, content = head or None, (rest.replace("</think>", "") or None) if mark else None
        begin, between, end = (re.escape(part).replace(r"\ ", " ?") for part in FORMS[self.calls])
        found = (
            re.findall(f"{begin}(.*?){between}(.*?){end}", content or "") if self.parses and asked.get("tools") else []
        )
        message = {**_BLANK, "content": content}
        if found:
            before = re.split(begin, content or "")[0]
            calls = [{"name": n, "arguments": json.dumps(json.loads(a))} for n, a in found]
            message |= {
                "content": before if before.strip() else None,
                "tool_calls": [{"id": uuid.uuid4().hex, "type": "function", "function": c} for c in calls],
            }
        return {**message, "reasoning": reasoning}

    async def _abort(self, request: web.Request) -> web.Response:
        if not self.aborts:
            return web.Response(status=404)
        for name in (await request.json())["request_ids"]:
            if (found := self.on_hold.get(name.removeprefix("chatcmpl-").removeprefix("cmpl-"))) is not None:
                found.set()
        return web.Response()

    async def _held(self, request: web.Request, reply: Reply) -> bool:
        """Wait as the reply says. True: aborted meanwhile."""
        if reply.hold is None:
            return False
        name = request.headers.get("x-request-id", "")
        aborted = self.on_hold[name] = asyncio.Event()
        waiting = [asyncio.create_task(event.wait()) for event in (reply.hold, aborted)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            self.on_hold.pop(name, None)
        return aborted.is_set()

    def _refusal(self, request: web.Request, body: dict[str, Any]) -> web.Response | None:
        """What vLLM refuses of lengths and tools, in the order in which it looks."""
        chat = request.path.endswith("/chat/completions")
        if chat and body.get("tools") and not self.parses:
            return _bad('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        if (body.get("max_tokens") or 0) > self.context:
            return _bad(f"max_tokens={body['max_tokens']} cannot be greater than max_model_len={self.context}")
        if not chat and not self.takes_ids:
            return _bad("prompt ids are refused")
        longest = max(map(len, self._prompts(body, chat)))
        if longest >= self.context:
            return _bad(f"This model's maximum context length is {self.context} tokens. However, yours has {longest}.")
        return None

    def _prompts(self, body: dict[str, Any], chat: bool) -> list[list[int]]:
        return [self.render(body["messages"])] if chat else _text_prompts(body)

    async def _call(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.folder is not None and (refusal := self._refusal(request, body)) is not None:
            return refusal
        self.requests.append((request.path, body))
        self.headers.append(dict(request.headers))
        reply = self._script.popleft() if self._script else self.answer(body)
        self.active += 1
        try:
            if reply.die_after == 0:
                return self._die(request)
            if body.get("stream") and reply.status == 200:
                return await self._stream(request, body, reply)
            return await self._whole(request, body, reply)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            raise
        finally:
            self.sampled += reply.also_sampled
            self.active -= 1

    @staticmethod
    def _die(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _choices(self, body: dict[str, Any], reply: Reply, chat: bool) -> tuple[list[list[int]], list[_Choice], int]:
        prompts = self._prompts(body, chat)
        n = body.get("n") or 1
        made = [_Choice(i, reply, chat, body, self.router, self.thinks, self.calls) for i in range(n * len(prompts))]
        return prompts, made, n

    async def _whole(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        if await self._held(request, reply):
            reply = replace(reply, finish_reason="abort")
        if reply.raw is not None or reply.status != 200:
            raw = reply.raw if reply.raw is not None else json.dumps({"error": reply.error}).encode()
            return web.Response(body=raw, status=reply.status, headers={"content-type": reply.raw_type})
        chat = request.path.endswith("/chat/completions")
        prompts, choices, n = self._choices(body, reply, chat)
        self.sampled += sum(len(c.ids) for c in choices)
        out = {
            **self._head(chat, "chat.completion"),
            "choices": [c.whole(prompts[c.index // n]) for c in choices],
            "service_tier": None, "system_fingerprint": self.fingerprint,
            "usage": None if "usage" in reply.drop else _usage(prompts, choices, whole=True),
        }  # fmt: skip
        if chat:
            shown = body.get("return_token_ids") and "prompt_token_ids" not in reply.drop
            out |= {"prompt_logprobs": None, "prompt_token_ids": prompts[0] if shown else None, "prompt_text": None}
        return web.json_response(out | {"kv_transfer_params": None})

    def _head(self, chat: bool, kind: str) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", kind) if chat else ("cmpl", "text_completion")
        return {
            "id": f"{prefix}-{uuid.uuid4().hex[:16]}",
            "object": kind,
            "created": 1_700_000_000,
            "model": self.model,
        }

    async def _stream(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        out = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        for sent, event in enumerate(self._events(request.path.endswith("/chat/completions"), body, reply)):
            if reply.die_after is not None and sent >= reply.die_after:
                return self._die(request)
            if sent == 2 and await self._held(request, reply):
                chunk = json.loads(event.removeprefix(b"data: "))
                for choice in chunk["choices"]:  # the step in which it ends samples one more token
                    choice["finish_reason"] = "abort"
                await out.write(_event(chunk) + b"data: [DONE]\n\n")
                return out
            data = (b": keep-alive\n\n" if reply.keep_alive else b"") + event
            step = reply.slice_bytes or len(data)
            for at in range(0, len(data), step):
                await out.write(data[at : at + step])
                await asyncio.sleep(0)
        return out

    def _events(self, chat: bool, body: dict[str, Any], reply: Reply) -> Iterator[bytes]:
        if reply.raw is not None:
            yield from (block + b"\n\n" for block in reply.raw.split(b"\n\n") if block.strip())
            return
        prompts, choices, n = self._choices(body, reply, chat)
        head = self._head(chat, "chat.completion.chunk")
        options = body.get("stream_options") or {}
        asked_usage, made = bool(options.get("include_usage")), 0
        events = self._chat_events if chat else self._text_events
        for chunk, tokens in events(head, prompts, choices, n, body):
            self.sampled += tokens
            if not asked_usage and self.fingerprint is not None and any(c["finish_reason"] for c in chunk["choices"]):
                chunk["system_fingerprint"] = self.fingerprint
            if asked_usage and options.get("continuous_usage_stats"):
                made += tokens
                asked = sum(map(len, prompts))
                usage = {"prompt_tokens": asked, "total_tokens": asked + made, "completion_tokens": made}
                if chat:
                    counted = min(made, len(choices[0].thought) - 1) if self.thinks else 0
                    usage["completion_tokens_details"] = {"reasoning_tokens": counted} if self.thinks else None
                first = {name: chunk.pop(name) for name in PROMPT_FIELDS if name in chunk}
                chunk |= {"usage": usage, **first}
            yield _event(chunk)
        if reply.error is not None:
            yield _event({"error": reply.error})
        elif asked_usage and "usage" not in reply.drop:
            last = {**head, "choices": [], "usage": _usage(prompts, choices, whole=False)}
            yield _event(last | ({"system_fingerprint": self.fingerprint} if self.fingerprint else {}))
        if "done" not in reply.drop:
            yield b"data: [DONE]\n\n"

    @staticmethod
    def _chat_events(
        head: dict[str, Any], prompts: list[list[int]], choices: list[_Choice], n: int, body: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Each chunk, and how many tokens it is."""
        for c in choices:
            opening = {"index": c.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            shown = body.get("return_token_ids") and "prompt_token_ids" not in c.reply.drop
            chunk = {**head, "choices": [{**opening, "finish_reason": None}]}
            yield {**chunk, "prompt_token_ids": prompts[0] if shown else None, "prompt_text": None}, 0
        unsaid = 0
        for c, (lo, hi, delta, last) in _interleaved(choices):
            unsaid += hi - lo
            if not delta and not last and not body.get("return_token_ids"):
                continue
            choice = {"index": c.index, "delta": delta, "logprobs": c.logprobs(lo, hi)}
            choice["finish_reason"] = c.finish if last and c.reply.error is None else None
            if last:
                choice["stop_reason"] = c.reply.stop_reason
            yield {**head, "choices": [{**choice, "token_ids": c.ids[lo:hi] if c.shows_ids else None}]}, unsaid
            unsaid = 0

    @staticmethod
    def _text_events(
        head: dict[str, Any], prompts: list[list[int]], choices: list[_Choice], n: int, body: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        for c, (lo, hi, delta, last) in _interleaved(choices):
            prompt = prompts[c.index // n] if lo == 0 and c.shows_ids else None
            choice = {
                "index": c.index, "text": delta.get("content", ""), "logprobs": c.logprobs(lo, hi),
                "finish_reason": c.finish if last and c.reply.error is None else None, "stop_reason": None,
                "prompt_token_ids": prompt, "token_ids": c.ids[lo:hi] if c.shows_ids else None,
            }  # fmt: skip
            yield {**head, "choices": [choice]}, hi - lo


def _interleaved(choices: list[_Choice]) -> Iterator[tuple[_Choice, tuple[int, int, dict[str, Any], bool]]]:
    running = [(c, c.deltas()) for c in choices]
    while running:
        for pair in list(running):
            step = next(pair[1], None)
            if step is None:
                running.remove(pair)
            else:
                yield pair[0], step


def _usage(prompts: list[list[int]], choices: list[_Choice], *, whole: bool) -> dict[str, Any]:
    asked, sampled = sum(map(len, prompts)), sum(len(c.ids) for c in choices)
    usage: dict[str, Any] = {"prompt_tokens": asked, "total_tokens": asked + sampled, "completion_tokens": sampled}
    details = {"reasoning_tokens": sum(len(c.thought) - 1 for c in choices)} if choices[0].thinks else None
    if not choices[0].chat:
        details = None
    if whole:
        return usage | {"prompt_tokens_details": None, "completion_tokens_details": details}
    return usage | ({"completion_tokens_details": details} if details else {})


def _grammar(body: dict[str, Any]) -> str | None:
    """The structural tag that the chat route would sample with, in short; None: it would sample freely."""
    tools, choice = body.get("tools") or [], body.get("tool_choice") or "auto"
    if not tools or choice == "none" or (choice == "auto" and not any(t["function"].get("strict") for t in tools)):
        return None
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    tags = [t["function"] for t in tools if named is None or t["function"]["name"] == named]
    how = {"auto": "triggered_tags"}.get(choice, "tags_with_separator") if named is None else "tags_with_separator"
    return json.dumps({"type": "structural_tag", "format": {"type": how, "tags": tags}})


_BLANK = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": None,
    "audio": None,
    "function_call": None,
}


def _top(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


def _bad(message: str) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return web.json_response({"error": error}, status=400)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


async def _serve(port: int, text: str) -> None:
    engine = ScriptedEngine()
    engine.answer = lambda body: Reply(text)
    await engine.start(port)
    print(engine.url, flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--text", default="ok")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.port, arguments.text))


if __name__ == "__main__":
    main()
