"""Runs in agentcore-rl-toolkit's own environment: serves its RolloutGateway alone, as its documentation assembles it.

    python agentcore_server.py --port N --engine URL --tokenizer DIR [--mode linear|tree]

Besides its own routes, two over its Python session API, which it does not serve over HTTP: POST /bench/open {"sid"} and
POST /bench/finish {"sid"} (its training records). Its tool parser is injected, as it asks for a template it does not
know: JSON between <tool_call> marks.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from agentcore_rl_toolkit.rollout_gateway import HfTemplateRenderer, RolloutGateway
from agentcore_rl_toolkit.rollout_gateway.sampling_backends.vllm_http import VllmHttpBackend
from aiohttp import web
from transformers import AutoTokenizer

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_END = "<|im_end|>"


def tool_calls(text: str, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]], bool]:
    """(text left, calls, ill-formed) of an answer, in the form that the toolkit's ``tool_parser`` has."""
    found = []
    for written in _CALL.findall(text):
        try:
            call = json.loads(written)
            found.append({"name": call["name"], "input": call["arguments"]})
        except (json.JSONDecodeError, KeyError, TypeError):
            return text, [], True
    return _CALL.sub("", text).removesuffix(_END).strip(), found, False


def reasoning(text: str) -> tuple[str, str]:
    """No reasoning; the end-of-turn mark is not text."""
    return "", text.removesuffix(_END)


def build(engine: str, folder: str, mode: str) -> web.Application:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    gateway = RolloutGateway(
        backend=VllmHttpBackend(engine),
        renderer=HfTemplateRenderer(tokenizer, tool_parser=tool_calls, reasoning_parser=reasoning),
        tokenizer=tokenizer,
        history_mode=mode,
    )

    async def open_session(request: web.Request) -> web.Response:
        gateway.create_session((await request.json())["sid"])
        return web.json_response({})

    async def finish(request: web.Request) -> web.Response:
        records = await gateway.finish_session((await request.json())["sid"])
        rows = [{"token_ids": r.token_ids, "loss_mask": r.loss_mask, "logprobs": r.logprobs} for r in records]
        return web.json_response(rows)

    app: web.Application = gateway.app
    app.router.add_post("/bench/open", open_session)
    app.router.add_post("/bench/finish", finish)
    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--mode", default="linear", choices=("linear", "tree"))
    chosen = parser.parse_args()
    app = build(chosen.engine, chosen.tokenizer, chosen.mode)
    web.run_app(app, host="127.0.0.1", port=chosen.port, handler_cancellation=True, access_log=None, print=None)


if __name__ == "__main__":
    main()
