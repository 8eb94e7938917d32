"""The wire is what the golden files say; a change of one is a change that every deployed peer sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollway_wire import batch, codec, gateway, rollout
from tests.wire.examples import GOLDEN, LOADERS, MODELS, TREES, json_documents


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def packed(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def test_every_example_has_its_golden_file_and_every_file_its_example() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == json_documents().keys()
    assert {p.stem for p in GOLDEN.glob("*.hex")} == TREES.keys()


def test_every_public_model_of_the_wire_has_an_example() -> None:
    shown = {type(m) for m in MODELS.values()}
    inside = {
        batch.AgentCoreRuntime, batch.HttpRuntime, batch.KubernetesRuntime, batch.ProcessRuntime, batch.ProcessLimits,
        batch.Group, batch.Capture, batch.Limits, batch.Policy, batch.Timings, gateway.WorkerLedger, gateway.EngineLoad,
        rollout.ReportTarget,
    }  # fmt: skip
    declared = {
        value
        for module in (batch, gateway, rollout)
        for name, value in vars(module).items()
        if isinstance(value, type) and hasattr(value, "model_fields") and value.__module__ == module.__name__
        and not name.startswith("_")
    }  # fmt: skip
    assert declared - inside <= shown


@pytest.mark.parametrize("name", sorted(json_documents()))
def test_each_example_is_written_as_its_golden_json(name: str) -> None:
    assert json_documents()[name] == golden(name)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_each_model_reads_back_from_its_golden_json(name: str) -> None:
    assert type(MODELS[name]).model_validate_json((GOLDEN / f"{name}.json").read_bytes()) == MODELS[name]


@pytest.mark.parametrize("name", sorted(TREES))
def test_each_tree_is_packed_as_its_golden_bytes_and_reads_back(name: str) -> None:
    assert codec.dump_packed(TREES[name]) == packed(name)
    assert codec.load_packed(packed(name)) == TREES[name]


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_json_and_packed_forms_read_as_the_same_value(name: str) -> None:
    load = LOADERS[name]
    assert load(golden(name)) == load(codec.load_packed(packed(name)))
