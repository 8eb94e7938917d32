"""Exact mode before a real vLLM server that reads reasoning and tool calls: every field as its chat route gives it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.gateway.before_vllm import gateway_before
from tests.gateway.conftest import RunningGateway
from tests.gateway.shapes import events_of, merged, without_ids
from tests.gateway.test_real_vllm import CALL, STREAM, TOOLS
from tests.kit.thinking_model import CLOSE, OPEN, thinking_model
from tests.kit.vllm_server import VllmServer, engine_client, running_vllm, tiny_model

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

ASK = {"role": "user", "content": "What is 3 plus 4? Answer with a number."}
THOUGHT = [r"Hm, so\.</think>", r"Hm\.\n</think>\n\n"]
"""Of characters that are one token or less: vLLM counts the reasoning of a stream by how its text is cut."""
ASKED: dict[str, dict[str, Any]] = {
    "cut short": {"max_tokens": 8},
    "thought": {"structured_outputs": {"regex": THOUGHT[0] + r"It is 7 👍"}},
    "thought, hidden": {"structured_outputs": {"regex": THOUGHT[0] + r"It is 7 👍"}, "include_reasoning": False},
    "thought, log-probs": {"structured_outputs": {"regex": THOUGHT[0] + "é 7"}, "logprobs": True, "top_logprobs": 3},
    "thought, token ids": {"structured_outputs": {"regex": THOUGHT[0] + "7"}, "return_token_ids": True},
    "thought twice": {"structured_outputs": {"regex": r"a</think>b</think>c<think>d"}},
    "thought and called": {"structured_outputs": {"regex": THOUGHT[1] + CALL}, "tools": TOOLS},
    "thought, said and called": {"structured_outputs": {"regex": THOUGHT[1] + "So\n" + CALL}, "tools": TOOLS},
    "called in thought": {"structured_outputs": {"regex": "Hm " + CALL}, "tools": TOOLS},
    "thought, called twice": {"structured_outputs": {"regex": THOUGHT[1] + CALL + r"\n" + CALL}, "tools": TOOLS},
    "thought, tools unused": {
        "structured_outputs": {"regex": THOUGHT[1] + CALL},
        "tools": TOOLS,
        "tool_choice": "none",
    },
    "several": {"n": 2, "seed": 7, "temperature": 1, "max_tokens": 8},
    "a stop string": {"structured_outputs": {"regex": THOUGHT[0] + "It is 7"}, "stop": ["7"]},
    "json": {"response_format": {"type": "json_object"}, "max_tokens": 12},
    "a tool required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 40},
}
SOME = ("cut short", "thought", "thought and called", "a tool required")
"""What is asked where answers do not begin inside reasoning."""
BEGUN = {"thinking": {"opened": True}, "as it likes": {}, "not thinking": {"enable_thinking": False}}
"""Template arguments: whether the prompt opens a block, leaves it to the model, or holds an empty one."""


@dataclass(frozen=True)
class Thinker:
    server: VllmServer
    marks: dict[str, int]
    """Likely wherever the grammar allows them: a text can be spelled in other tokens too."""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thinker]:
    """A server whose reasoning and tool calls are parsed and whose grammars hold inside reasoning too."""
    folder = tmp_path_factory.mktemp("thinking")
    model = thinking_model(tiny_model(folder), folder / "model")
    marks = {str(Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id(t)): 100 for t in (OPEN, CLOSE)}
    held = '{"enable_in_reasoning": true}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWAY_TEST_MODEL", str(model))
        with running_vllm(folder, "--reasoning-parser", "qwen3", "--structured-outputs-config", held) as server:
            yield Thinker(server, marks)


@pytest.fixture
async def gateway(thinker: Thinker) -> AsyncIterator[RunningGateway]:
    async with gateway_before(thinker.server, mode="exact") as running:
        yield running


@pytest.mark.parametrize("how", ["whole", "stream with running usage"])
@pytest.mark.parametrize("begun", BEGUN)
async def test_answers_to_ids_are_read_as_plain_vllm_reads_them(
    gateway: RunningGateway, thinker: Thinker, begun: str, how: str
) -> None:
    """The first answer is one that rendering anew keeps, so both routes have the same prompt in the second turn."""
    kwargs = {"chat_template_kwargs": BEGUN[begun], "temperature": 0, "logit_bias": thinker.marks}
    said = {"thinking": "a</think>Y", "as it likes": "<think>a</think>Y", "not thinking": "Y"}[begun]
    differing = {}
    async with engine_client() as http:
        for what in ASKED if begun == "thinking" else SOME:
            asked = ASKED[what]
            ticket = await gateway.open()
            bases = (f"{thinker.server.url}/v1", ticket["base_url"])
            first = {"model": "tiny", "messages": [ASK], "tools": asked.get("tools"), **kwargs, "max_tokens": 20}
            answer = await http.post(
                bases[1] + "/chat/completions", json=first | {"structured_outputs": {"choice": [said]}}
            )
            message = answer.json()["choices"][0]["message"]
            assert message["content"] == "Y", answer.text
            messages = [ASK, message, {"role": "user", "content": "And 4 plus 5?"}]
            body = {"model": "tiny", "messages": messages, "max_tokens": 120, **kwargs, **asked, **STREAM[how]}
            plain, ours = [await http.post(base + "/chat/completions", json=body) for base in bases]
            made = await gateway.settled(ticket["session_id"])
            shown = [_shown(r, stream="stream" in body) for r in (plain, ours)]
            if shown[0] != shown[1] or made.mode != "exact" or any(t.incomplete for t in made.turns):
                differing[what] = (shown, made.metadata["branches"], [t.incomplete for t in made.turns])
    assert not differing, json.dumps(differing, indent=1, ensure_ascii=False)


_COUNTED = re.compile(r'("reasoning_tokens": )\d+')


def _shown(answer: httpx.Response, *, stream: bool) -> Any:
    """A stream without its count of reasoning: vLLM leaves out the tokens of a chunk that shows no text, so the count
    depends on where it cut."""
    assert answer.status_code == 200, answer.text
    if not stream:
        return json.dumps(without_ids(answer.json()))
    return [_COUNTED.sub(r"\1some", said) for said in merged(events_of(answer.text))]
