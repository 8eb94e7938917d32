"""The forms of results: Arrow, NDJSON and server-sent events hold what the JSON page holds, and say when they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rollway_dispatcher.api import results
from rollway_dispatcher.api.conditional import chosen_form
from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.batch import ARROW, EVENTS, NDJSON
from rollway_wire.codec import MEDIA_TYPE
from rollway_wire.problems import NotAcceptable
from tests.dispatcher.harness import Api, serving

Make = Callable[..., dict[str, Any]]
FORMS = ["application/json", MEDIA_TYPE, ARROW, NDJSON, EVENTS]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        (EVENTS, EVENTS),
        (f"{NDJSON};q=0.5, {MEDIA_TYPE}", MEDIA_TYPE),
        (f"{NDJSON}, application/json", NDJSON),
        ("application/*;q=0.1, text/*", EVENTS),
        ("application/json;q=0, application/*", MEDIA_TYPE),
        (f"{ARROW} ; q=1.0,*/*;q=0.1", ARROW),
    ],
)
def test_accept_chooses_the_form(accept: str, form: str) -> None:
    assert chosen_form(accept, FORMS) == form


@pytest.mark.parametrize(
    "accept", ["image/png", "text/html;q=0.9", "application/json;q=0", "application/json;q=x", ";"]
)
def test_a_form_that_is_not_offered_is_refused_with_those_that_are(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/json"):
        chosen_form(accept, FORMS)


async def lines(api: Api, batch_id: str, **query: Any) -> list[dict[str, Any]]:
    """The stream to its end, without its signs of life."""
    found = []
    async with api.http.stream(
        "GET", f"/v1/batches/{batch_id}/results", params=query, headers={"accept": NDJSON}, timeout=90
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(NDJSON)
        async for line in answer.aiter_lines():
            if line:
                found.append(json.loads(line))
    return found


async def events(api: Api, batch_id: str, **headers: str) -> list[dict[str, str]]:
    """Event, id and data of each event to the stream's end."""
    where = f"/v1/batches/{batch_id}/results"
    answer = await api.http.get(where, headers={"accept": EVENTS, **headers}, timeout=90)
    assert answer.status_code == 200
    blocks = [b for b in answer.text.split("\n\n") if b and not b.startswith(":")]
    return [dict(line.split(": ", 1) for line in b.splitlines()) for b in blocks]  # type: ignore[misc]


async def test_every_form_holds_what_the_json_page_holds(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 0.5, "prompt": "ü"}, {"act": "raise"}, {"act": "no_turn"}]))
        batch_id = made["batch_id"]
        page = await api.results(batch_id)
        streamed = await lines(api, batch_id)
        assert [{"rollout": x["rollout"], "trajectory": x["trajectory"]} for x in streamed[:-1]] == page
        assert [x["cursor"] for x in streamed] == [1, 2, 3, 3]
        assert streamed[-1] == {"cursor": 3, "finished": True}
        assert await lines(api, batch_id, cursor=2) == streamed[2:]
        told = await events(api, batch_id)
        assert [(e["event"], e["id"]) for e in told] == [*(("result", str(i)) for i in (1, 2, 3)), ("finished", "3")]
        assert [json.loads(e["data"]) for e in told[:-1]] == page
        assert await events(api, batch_id, **{"last-event-id": "1"}) == told[1:]
        bare = (await api.page(batch_id, trajectories="false"))["results"]
        assert bare == [{"rollout": r["rollout"], "trajectory": None} for r in page]
        where = f"/v1/batches/{batch_id}/results"
        ended = await api.http.get(where, headers={"accept": EVENTS, "last-event-id": "3"})
        assert (ended.status_code, ended.content) == (204, b""), "a browser would connect again for ever"
        assert (await api.http.get(where, headers={"accept": EVENTS, "last-event-id": "x"})).status_code == 422
        for accept, query, status in ((NDJSON, {"cursor": 9}, 422), ("image/png", {}, 406)):
            answer = await api.http.get(where, params=query, headers={"accept": accept})
            assert answer.status_code == status
        answer = await api.http.get("/v1/batches/none/results", headers={"accept": NDJSON})
        assert answer.status_code == 404


async def test_arrow_has_a_row_per_rollout_and_the_tokens_as_lists(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = await api.submit(
            batch([{"reward": [0.5, 1]}, {"act": "raise"}, {"act": "die"}], limits={"max_attempts": 1})
        )
        page = await api.results(made["batch_id"])
        where = f"/v1/batches/{made['batch_id']}/results"
        answer = await api.http.get(where, headers={"accept": ARROW})
        some = await api.http.get(where, params={"limit": 2}, headers={"accept": ARROW})
        none = await api.http.get(where, params={"cursor": 3}, headers={"accept": ARROW})
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.metadata == {b"rollway.cursor": b"3", b"rollway.finished": b"true"}
    assert pa.ipc.open_stream(some.content).read_all().schema.metadata[b"rollway.finished"] == b"false"
    assert pa.ipc.open_stream(none.content).read_all().schema.equals(table.schema), "also of an empty page"
    assert table.schema.field("sequences").type.value_type.field("logprobs").type == pa.list_(pa.float32())
    for row, result in zip(table.to_pylist(), page, strict=True):
        rollout, trajectory = result["rollout"], result["trajectory"]
        for name in ("rollout_id", "group_id", "index", "attempt", "state", "session_id", "rewards"):
            assert row[name] == rollout[name]
        assert row["failure_type"] == (rollout["failure"] or {}).get("type")
        assert (row["result"] and json.loads(row["result"])) == rollout["result"]
        assert {k: row[k] for k in rollout["timings"]} == rollout["timings"]
        assert row["mode"] == (trajectory or {}).get("mode")
        assert row["ledger"] == (trajectory or {}).get("ledger")
        cut = ("token_ids", "loss_mask", "logprobs", "policy_versions", "turn_ids")
        wanted = trajectory and [{k: s[k] for k in cut} for s in trajectory["sequences"]]
        assert row["sequences"] == wanted
    assert sum(row is not None and len(row) for row in table["sequences"].to_pylist()) >= 1


async def test_a_stream_follows_the_batch_and_shows_signs_of_life(
    settings: DispatcherSettings, batch: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line comes as its rollout finishes; until then empty lines; the last line when the last has finished."""
    monkeypatch.setattr(results, "BEAT_S", 0.1)
    gate = tmp_path / "go"
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}, {"reward": 2, "wait_for": str(gate)}]))
        request = api.http.stream(
            "GET", f"/v1/batches/{made['batch_id']}/results", headers={"accept": NDJSON}, timeout=90
        )
        async with request as answer:
            seen: list[str] = []
            async for line in answer.aiter_lines():
                seen.append(line)
                if len(seen) > 3 and seen[-2:] == ["", ""] and any(seen):
                    await asyncio.to_thread(gate.touch)
    said = [json.loads(line) for line in seen if line]
    assert [x.get("finished", x.get("rollout", {}).get("rewards")) for x in said] == [[1.0], [2.0], True]


async def test_a_reader_that_goes_away_leaves_nothing_waiting(settings: DispatcherSettings, batch: Make) -> None:
    """Its request ends at the dispatcher, too: a clean stop with an open stream takes no longer than one without."""
    async with serving(settings) as api:
        made = await api.submit(batch([{"act": "hang"}]))
        for accept in (NDJSON, EVENTS):
            where = f"/v1/batches/{made['batch_id']}/results"
            async with api.http.stream("GET", where, headers={"accept": accept}) as answer:
                assert await anext(answer.aiter_raw()), "a sign of life: the request is being served"
        await api.cancel(made["batch_id"])
        assert len(await lines(api, made["batch_id"])) == 2


async def test_what_the_caller_has_already_is_not_sent_again(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": i} for i in range(3)]))
        await api.results(made["batch_id"])
        where = f"/v1/batches/{made['batch_id']}"
        for path in ("/v1/batches", where, f"{where}/rollouts", f"{where}/results", f"{where}/results?limit=2"):
            first = await api.http.get(path)
            again = await api.http.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
            assert (await api.http.get(path, headers={"if-none-match": '"other"'})).content == first.content
        tags = {
            (await api.http.get(f"{where}/results", params=query, headers={"accept": accept})).headers["etag"]
            for query in ({}, {"limit": 2}, {"cursor": 1}, {"trajectories": "false"})
            for accept in FORMS[:3]
        }
        assert len(tags) == 12, "each form of each page is another answer"
