"""The core of the gateway does no I/O of its own: it can be reasoned about, and called from anywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rollway_gateway

FORBIDDEN = {"asyncio", "socket", "http", "urllib", "aiohttp", "httpx", "fastapi", "uvicorn", "threading", "time"}
ROOT = Path(next(iter(rollway_gateway.__path__)))
FILES = sorted(p for part in ("tree", "render") for p in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_of_tree_or_render_imports_asyncio_or_a_network_library(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    assert not imported & FORBIDDEN


def test_turns_become_sequences_without_knowing_of_templates() -> None:
    """tree stands below render."""
    for path in (ROOT / "tree").glob("*.py"):
        assert "rollway_gateway.render" not in path.read_text(), path
