"""The harness counts rightly; how fast anything is, no test says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway import baseline, table
from benchmarks.gateway.bench import body
from benchmarks.gateway.turns import growth
from benchmarks.load_answers import FIRST_SEED, Answers, Script
from benchmarks.load_client import Call, run_load
from rollway_gateway.capture.routing import Reported, read_rows
from tests.rules.repository import ROOT


def test_sessions_of_a_group_have_one_prompt_and_other_groups_have_others() -> None:
    answers = Answers(Script(prompt_tokens=4, sampled_tokens=2))
    asked = body([{"role": "user", "content": "x"}])
    other = asked.replace(b"%d" % FIRST_SEED, b"%d" % (FIRST_SEED + 7))
    for answer in (answers.chat, answers.opening):
        first, again, second = answer.of(asked), answer.of(asked), answer.of(other)
        assert first == again == answer.of(b"{}") and len(second) == len(first)
        assert second == first.replace(b"%d" % FIRST_SEED, b"%d" % (FIRST_SEED + 7)) != first


@pytest.mark.timeout(400)
def test_a_small_run_measures_floor_and_gateway_and_its_counts_are_exact(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway", "--quick", "--rounds", "1",
         "--suites", "plain,stream,memory,rendering,routing,scale", "--subjects", "relay,rollway,rollway-two",
         "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = json.loads(out.read_text())
    relay, ours = run["results"]["relay"], run["results"]["rollway"]
    assert run["failures"] == {}
    assert (relay["plain_upstream_per_call"], ours["plain_upstream_per_call"]) == (1, 1)
    assert (relay["plain_captured_per_call"], ours["plain_captured_per_call"]) == (0, 1)
    assert relay["stream_events_per_call"] == ours["stream_events_per_call"] == Script().events
    assert ours["plain_cpu_ms_per_call"] > 0 and ours["stream_us_per_event"] > 0
    assert ours["first_turn_kept_bytes"] is not None and relay["first_turn_kept_bytes"] is None
    assert ours["rendering_next_loop_late_max_ms"] > 0 and ours["routing_cpu_ms_per_call"] > 0
    two = run["results"]["rollway-two"]
    assert 0.5 <= two["scale_busiest_share"] < 1 and two["scale_times_one_process"] > 0
    assert "rollway" in ended.stdout


def test_later_prompts_of_the_load_engine_extend_what_was_prompted_and_sampled() -> None:
    def answer(tokens: int) -> dict[str, list[int]]:
        said = Answers(Script(prompt_tokens=tokens, sampled_tokens=8)).chat.of(b"")
        made = json.loads(said.partition(b"\r\n\r\n")[2])
        return {"prompt": made["prompt_token_ids"], "sampled": made["choices"][0]["token_ids"]}

    first, second = answer(16), answer(16 + 8 + 4)
    assert second["prompt"][:24] == first["prompt"] + first["sampled"]


async def _serve(reply: bytes | None) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readuntil(b"\r\n\r\n")) and reply is not None:
            writer.write(reply)
        await reader.read()
        writer.close()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return await asyncio.start_server(quietly, "127.0.0.1", 0)


def _url(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


CALL = Call("/", b"", method="GET")


async def test_each_call_is_made_once_and_counted_by_its_status() -> None:
    async with await _serve(b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno") as server:
        got = await run_load(_url(server), [CALL] * 10, in_flight=3, keeps=True)
    assert (dict(got.answered), got.failed, got.ok, len(got.latencies)) == ({503: 10}, 10, 0, 10)
    assert got.bodies == [b"no"] * 10


async def test_calls_that_are_not_answered_are_given_up_and_the_load_ends() -> None:
    async with await _serve(None) as server:
        got = await run_load(_url(server), [CALL] * 4, in_flight=2, timeout_s=0.2)
    assert (got.timeouts, got.ok, got.lost) == (4, 0, 0)


async def test_events_of_a_stream_are_counted_without_its_end() -> None:
    body = b'data: {"a":1}\n\ndata: {"a":2}\n\ndata: [DONE]\n\n'
    stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with await _serve(stream) as server:
        got = await run_load(_url(server), [CALL] * 3, in_flight=1)
    assert (got.events, got.ok) == (6, 3)


def test_growth_is_what_a_longer_context_costs_apart_from_its_bodies() -> None:
    def run(short: float, long: float, bodies: float) -> dict[str, float | int | None]:
        return {"turns_4k_cpu_ms_per_call": short, "turns_4k_bodies_ms": bodies,
                "turns_128k_cpu_ms_per_call": long, "turns_128k_bodies_ms": 30 * bodies}  # fmt: skip

    floor: dict[str, float | int | None] = {"turns_4k_cpu_ms_per_call": 0.1, "turns_128k_cpu_ms_per_call": 1.0}
    found = growth(run(2.2, 6.2, 0.1), floor)
    assert found is not None and round(found, 3) == 1.1
    assert growth({"turns_4k_cpu_ms_per_call": 1.0, "turns_4k_bodies_ms": 0.1}, floor) is None
    assert growth(run(2.2, 6.2, 0.1), {}) is None


def test_growth_may_not_rise_and_two_processes_may_not_do_less() -> None:
    def run(grown: float, times: float) -> dict[str, dict[str, float | int | None]]:
        return {"ours": {"turns_growth_apart_from_bodies": grown, "scale_times_one_process": times}}

    assert baseline.regressions(run(1.3, 1.5), run(1.1, 1.9), "ours") == []
    assert baseline.regressions(run(1.0, 2.0), run(1.4, 1.4), "ours") == []
    assert len(baseline.regressions(run(1.6, 1.4), run(1.1, 1.9), "ours")) == 2


def _ids_of(answer: bytes) -> list[int]:
    got = json.loads(answer.partition(b"\r\n\r\n")[2] or answer)
    ids: list[int] = got.get("prompt_token_ids") or got["choices"][0]["prompt_token_ids"]
    assert got["usage"]["prompt_tokens"] == len(ids)
    return ids


def test_an_answer_of_the_load_engine_gives_back_the_prompt_it_was_asked_with() -> None:
    answers = Answers(Script(prompt_tokens=4, sampled_tokens=8))
    assert _ids_of(answers.any_chat.of(b"5,6,7")) == _ids_of(answers.completions.whole.of(b"5,6,7")) == [5, 6, 7]
    assert len(_ids_of(answers.chat.of(b""))) == 4


def test_routing_of_the_load_engine_is_a_row_for_each_token_but_the_last() -> None:
    answers = Answers(Script(prompt_tokens=4, sampled_tokens=8, routing_bytes=100))
    text = json.loads(answers.chat.of(b"").partition(b"\r\n\r\n")[2])["choices"][0]["routed_experts"]
    rows = read_rows([Reported(text, 0, 12)])
    assert (rows.end, rows.layers, rows.top_k) == (11, 100, 1)


FLOOR = {"plain_cpu_ms_per_call": 0.1, "first_turn_kept_bytes": None}


def _run(cpu: float, kept: float) -> dict[str, dict[str, float | int | None]]:
    return {"relay": dict(FLOOR), "rollway": {"plain_cpu_ms_per_call": cpu, "first_turn_kept_bytes": kept}}


def test_a_slower_machine_is_no_regression_and_a_worse_ratio_is() -> None:
    then = _run(0.5, 12_000)
    slow = {name: {k: v and v * 3 for k, v in numbers.items()} for name, numbers in _run(0.5, 4_000).items()}
    assert baseline.regressions(slow, then, "rollway") == []
    worse = baseline.regressions(_run(0.7, 12_000), then, "rollway")
    assert worse == ["rollway plain_cpu_ms_per_call: 7.00× the floor, baseline 5.00×"]
    assert len(baseline.regressions(_run(0.5, 20_000), then, "rollway")) == 1


def test_the_table_shows_ratios_to_the_floor_and_dashes_for_what_was_not_measured() -> None:
    shown = table.text({**_run(0.5, 12_000), "peer": {"plain_cpu_ms_per_call": 5.0}})
    assert "0.5 (5.0×)" in shown and "5 (50.0×)" in shown and "12,000" in shown and "–" in shown


def test_what_is_measured_again_takes_the_place_of_its_own_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "GATEWAY", tmp_path / "gateway.json")
    then: dict[str, Any] = {
        "machine": {"cores": 2},
        "results": {"relay": {"a": 1.0, "b": 2.0}, "ours": {"a": 3.0}},
        "rounds": {"relay": {"a": [1.0, 1.0]}, "ours": {}},
        "failures": {"nginx": "not measured: it is not installed", "ours, a": "Refused: x", "ours, b": "Refused: y"},
    }
    baseline.save(baseline.GATEWAY, **then)
    now: dict[str, Any] = {
        "machine": {"cores": 3},
        "results": {"ours": {"a": 5.0, "c": 6.0}, "nginx": {"a": 0.5}},
        "rounds": {"ours": {"a": [5.0, 5.0]}},
        "failures": {},
    }
    assert baseline.again(now, "a,c") == {
        "machine": {"cores": 2},
        "results": {"relay": {"a": 1.0, "b": 2.0}, "ours": {"a": 5.0, "c": 6.0}, "nginx": {"a": 0.5}},
        "rounds": {"relay": {"a": [1.0, 1.0]}, "ours": {"a": [5.0, 5.0]}},
        "failures": {"ours, b": "Refused: y"},
        "again": [{"suites": "a,c", "machine": {"cores": 3}}],
    }
