"""Sealed trajectories in the object store: memory and journal are free of them, and sealing again answers the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollway_wire.codec import load_packed, load_trajectory, trajectory_tree
from rollway_wire.ids import trajectory_key
from tests.gateway.conftest import running_gateway
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket
from tests.kit.scripted_engine import ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_a_sealed_session_goes_to_the_object_store(s3: Bucket, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "durability": "journal", "journal_dir": tmp_path / "j", "archive_bucket": s3.name, "s3_region": s3.region,
        "s3_endpoint_url": s3.endpoint_url,
    }  # fmt: skip
    key = trajectory_key("trajectories", "a b/c")
    async with ScriptedEngine() as engine:
        async with running_gateway(**settings) as gateway:
            await gateway.add(engine)
            ticket = await gateway.open(session_id="a b/c")
            view = (await gateway.http.get("/v1/sessions/a%20b/c")).json()
            assert (view["state"], view["archived"], view["sealed_at"], view["calls"]) == ("open", None, None, 0)
            asked = await gateway.http.post(ticket["base_url"] + "/chat/completions", json={"messages": HI})
            assert asked.status_code == 200
            made = await gateway.seal("a b/c")
            entry = gateway.inside.store.entry("a b/c")
            assert entry is not None
            await eventually(lambda: entry.object_key, "it is archived")
            assert (entry.object_key, gateway.inside.store.find("a b/c")) == (key, None)
            assert len(list(entry.all_places())) == 2, "its records but the first and last are released"
            assert trajectory_tree(await gateway.seal("a b/c")) == trajectory_tree(made)
            view = (await gateway.http.get("/v1/sessions/a%20b/c")).json()
            assert (view["state"], view["pool"], view["in_flight"], view["calls"]) == ("sealed", "default", 0, None)
            assert view["archived"] == f"s3://{s3.name}/{key}"
            assert view["created_at"] < view["sealed_at"] == entry.sealed_at
        async with running_gateway(**settings) as gateway:
            assert trajectory_tree(await gateway.seal("a b/c")) == trajectory_tree(made)
            assert trajectory_tree(await gateway.trajectory("a b/c")) == trajectory_tree(made)
            assert (await gateway.http.get("/v1/sessions/a%20b/c")).json() == view, "also after a restart"
            refused = await gateway.http.post("/sessions/a%20b/c/v1/chat/completions", json={"messages": HI})
            assert refused.status_code == 410
            assert (await gateway.http.delete("/v1/sessions/a%20b/c")).status_code == 204
            assert (await gateway.http.get("/v1/sessions/a%20b/c/trajectory")).status_code == 404
            assert (await gateway.http.get("/v1/sessions/a%20b/c")).status_code == 404
    packed = await asyncio.to_thread(s3.get, key)
    assert trajectory_tree(load_trajectory(load_packed(packed))) == trajectory_tree(made)


async def test_a_bucket_that_is_not_there_refuses_to_start(s3: Bucket, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no-such-bucket"):
        async with running_gateway(
            durability="journal",
            journal_dir=tmp_path / "j",
            archive_bucket="no-such-bucket",
            s3_region=s3.region,
            s3_endpoint_url=s3.endpoint_url,
        ):
            pass
