"""A prompt's ids are told from an answer's bytes as they would be from its JSON, without an object for each."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_gateway.capture.prompt_ids import LEAST, KnownPrompts, PromptIds
from tests.gateway.conftest import running_gateway
from tests.kit.scripted_engine import Reply, ScriptedEngine, templated_ids
from tests.kit.scripted_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = [random.Random(1).randrange(50_000) for _ in range(20_000)]
OTHER = [*LONG[:-1], LONG[-1] + 1]


async def _read(raw: bytes, sent: list[int] | None = None) -> tuple[Any, PromptIds]:
    prompt = (
        PromptIds(KnownPrompts()) if sent is None else PromptIds(KnownPrompts(), orjson.dumps(sent), array("i", sent))
    )
    payload = orjson.loads(await prompt.cut(raw))
    prompt.put_back(payload)
    return payload, prompt


def _plain(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=lambda ids: ids.tolist()))


ANSWERS = [
    pytest.param({"choices": [{"text": "a", "prompt_token_ids": LONG}], "usage": {}}, id="of a completion"),
    pytest.param({"prompt_token_ids": LONG, "choices": [{"text": "a", "token_ids": LONG}]}, id="of a chat"),
    pytest.param({"choices": [{"prompt_token_ids": LONG}, {"prompt_token_ids": LONG}]}, id="of two choices"),
    pytest.param({"choices": [{"prompt_token_ids": OTHER}, {"prompt_token_ids": LONG}]}, id="of two prompts"),
    pytest.param({"choices": [{"prompt_token_ids": [*LONG, 5]}]}, id="longer than what was sent"),
    pytest.param({"choices": [{"prompt_token_ids": [1, 2]}]}, id="short"),
    pytest.param({"prompt_token_ids": None, "choices": None}, id="none"),
    pytest.param({"prompt_token_ids": [*LONG, "a"], "choices": []}, id="no ids"),
    pytest.param({"prompt_token_ids": [*LONG, 2**40], "choices": []}, id="ids that are none"),
    pytest.param({"prompt_token_ids": [LONG, [1]], "choices": []}, id="ids in lists"),
    pytest.param({"choices": [{"text": '"prompt_token_ids":[' + "1," * LEAST + "1]"}]}, id="text that looks like them"),
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("sent", [None, LONG], ids=["unknown", "sent"])
async def test_what_is_cut_and_put_back_is_what_was_there(answer: dict[str, Any], sent: list[int] | None) -> None:
    for raw in (orjson.dumps(answer), orjson.dumps(answer, option=orjson.OPT_INDENT_2)):
        payload, _ = await _read(raw, sent)
        assert _plain(payload) == answer


async def test_a_prompt_that_others_have_is_kept_once() -> None:
    """As long as one of them does; one that differs in a single id is another."""
    known = KnownPrompts()

    async def read(ids: list[int]) -> array[int]:
        prompt = PromptIds(known)
        payload = orjson.loads(await prompt.cut(orjson.dumps({"prompt_token_ids": ids, "choices": []})))
        prompt.put_back(payload)
        found: array[int] = payload["prompt_token_ids"]
        return found

    first, again, other = await read(LONG), await read(LONG), await read(OTHER)
    assert first is again and first.tolist() == LONG and other.tolist() == OTHER
    assert len(known) == 2
    del first, again
    assert len(known) == 1
    assert (await read(LONG)).tolist() == LONG


async def test_ids_that_were_sent_are_known_again_and_others_are_int32() -> None:
    sent = array("i", LONG)
    prompt = PromptIds(KnownPrompts(), orjson.dumps(LONG), sent)
    payload = orjson.loads(await prompt.cut(orjson.dumps({"prompt_token_ids": LONG})))
    assert isinstance(payload["prompt_token_ids"], int), "no list is parsed"
    prompt.put_back(payload)
    assert payload["prompt_token_ids"] is sent
    payload, _ = await _read(orjson.dumps({"prompt_token_ids": OTHER}), LONG)
    assert payload["prompt_token_ids"] == array("i", OTHER)


@given(st.binary(max_size=200), st.integers(0, 40))
async def test_whatever_the_bytes_are_what_is_no_json_stays_none(noise: bytes, at: int) -> None:
    raw = orjson.dumps({"prompt_token_ids": LONG[:2000]})
    for broken in (raw[:at] + noise + raw[at:], raw[: len(raw) - at] + noise):
        try:
            expected = orjson.loads(broken)
        except orjson.JSONDecodeError:
            with pytest.raises(orjson.JSONDecodeError):
                await _read(broken)
        else:
            assert _plain((await _read(broken))[0]) == expected


@pytest.mark.parametrize("mode", ["auto", "mirror"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shows_ids", [False, True])
async def test_a_long_prompt_is_kept_id_by_id(tmp_path: Path, mode: str, stream: bool, shows_ids: bool) -> None:
    """Whole and streamed, as chat and as ids; and shown to an agent that asks for it."""
    said = "long text, " * 600
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as engine, running_gateway(mode=mode) as gateway:
        await gateway.add(engine)
        engine.script(Reply("one"), Reply("two"))
        ticket = await gateway.open()
        messages: list[dict[str, Any]] = [{"role": "user", "content": said}]
        for answer in ("one", "two"):
            body = {"model": "m", "messages": messages, "stream": stream, "return_token_ids": shows_ids}
            got = await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)
            assert got.status_code == 200
            assert ('"prompt_token_ids":[' in got.text) is shows_ids
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": said}]
        made = await gateway.seal(ticket["session_id"])
    assert made.incomplete is None
    expected = [body.get("prompt") or templated_ids(body["messages"]) for _, body in engine.requests]
    assert [t.prompt_token_ids.tolist() for t in made.turns] == expected
    assert [path for path, _ in engine.requests] == [CHAT, CHAT if mode == "mirror" else TEXT]
    assert len(made.turns[1].prompt_token_ids) > len(made.turns[0].prompt_token_ids) > LEAST
