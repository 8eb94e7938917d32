"""Environments are reproducible: names and versions only, enough for what they are for, and nothing of CUDA."""

from __future__ import annotations

import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from tests.rules.repository import ROOT, definition, pins

EXTRAS = {"dev": ("dev",), "agent": ("shim",), "trainer": ("verl",)}
OURS = "rollway"


def requirements(extra: str) -> list[Requirement]:
    """What an extra asks for on this platform, with the extras of ours that it names."""
    project = definition()["project"]
    found = [Requirement(r) for r in project["dependencies"]]
    for text in project["optional-dependencies"][extra]:
        asked = Requirement(text)
        if asked.name == OURS:
            found += [r for inner in sorted(asked.extras) for r in requirements(inner)]
        elif asked.marker is None or asked.marker.evaluate(default_environment()):
            found.append(asked)
    return found


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_pins_are_names_and_versions_only(name: str) -> None:
    lines = (ROOT / f"deploy/envs/{name}.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    assert len(pins(name)) == len([line for line in lines if not line.startswith("#")]), "a name is pinned twice"


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_pins_hold_what_the_extra_asks_for(name: str) -> None:
    held = pins(name)
    for extra in EXTRAS[name]:
        for asked in requirements(extra):
            key = re.sub(r"[-_.]+", "-", asked.name).lower()
            assert key in held, f"{asked} is not pinned in {name}.txt"
            assert asked.specifier.contains(held[key], prereleases=True), f"{asked}, pinned {held[key]}"


def test_the_trainers_pins_hold_no_cuda() -> None:
    held = pins("trainer")
    assert held["torch"].endswith("+cpu")
    assert [
        n
        for n in held
        if n.startswith(("nvidia", "cuda", "triton")) or n in ("torchvision", "torchaudio", "torchcodec")
    ] == []


def test_the_shim_asks_for_nothing_that_an_agents_container_would_quarrel_with() -> None:
    asked = requirements("shim")
    assert {r.name for r in asked} == {"pydantic", "bedrock-agentcore"}
    assert [str(r) for r in asked if any(s.operator != ">=" for s in r.specifier)] == []


def test_every_dependency_of_an_extra_is_used_by_its_package() -> None:
    sources = {"gateway": "services/rollway_gateway", "dispatcher": "services/rollway_dispatcher"}
    indirect = {"uvloop", "httptools", "uvicorn", "pydantic-settings", "structlog", "aioboto3", "fastapi"}
    for extra, folder in sources.items():
        code = "\n".join(p.read_text() for p in (ROOT / folder).rglob("*.py"))
        for asked in definition()["project"]["optional-dependencies"][extra]:
            name = Requirement(asked).name
            assert name in indirect or re.search(rf"^\s*(import|from) {name}\b", code, re.M), f"{extra}: {name}"
