"""Where things are: the few top-level names, links that resolve, commands that exist, no machine's own paths."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.repository import ROOT, make_targets, texts, tracked

ALLOWED = {
    "pyproject.toml", "services", "shared", "deploy", "benchmarks", "tests", "Makefile", "README.md", "docs", "LICENSE",
    ".ci", ".gitignore", ".dockerignore",
}  # fmt: skip
FORBIDDEN = {
    "a machine's path": r"(?<![\w.\"'{}-])/(work|root|home/\w+|tmp)/\w",
    "a machine's path in quotes": r"[\"']/(work|root|tmp)(/|[\"'])",
    "a package index": r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|file:///opt",
    "an index option": r"extra-index-url|trusted-host|find-links (?!/wheels)",
    "something left for later": r"\b(TODO|FIXME|XXX|HACK)\b",
    "a skipped test": r"mark\.(skip|xfail)|pytest\.(skip|xfail|importorskip)\(",
}
THIS = "tests/rules/test_layout.py"
"""Holds what it looks for."""
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}


def test_only_the_agreed_names_stand_at_the_top() -> None:
    assert {name.split("/")[0] for name in tracked()} <= ALLOWED


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_no_tracked_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [
        f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit.group().strip()}"
        for name, text in texts()
        if name != THIS
        for hit in pattern.finditer(text)
    ]
    assert found == []


def test_every_task_has_an_owner() -> None:
    """One that nothing refers to may be collected while it runs, and its error is seen by nobody."""
    made = ("asyncio.create_task", "asyncio.ensure_future")
    found = [
        f"{name}:{node.lineno}"
        for name, text in texts()
        if name.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in made
    ]
    assert found == []


def test_pytorchs_cpu_index_is_the_only_index_named_and_only_where_torch_is_installed() -> None:
    named = {name for name, text in texts() if re.search(r"index-url|download\.pytorch\.org", text)}
    assert named == {"deploy/envs/build.sh", THIS}


def test_modules_are_named_for_what_they_are() -> None:
    assert [n for n in tracked() if n.endswith(".py") and n.split("/")[-1].removesuffix(".py") in VAGUE] == []


@pytest.mark.parametrize("name", [n for n in tracked() if n.endswith(".md")])
def test_links_in_documents_resolve(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link and "@" not in link]
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_folders_and_files_that_the_readme_names_exist() -> None:
    named = re.findall(
        r"`((?:services|shared|deploy|docs|tests|benchmarks)/[\w./-]*)`", (ROOT / "README.md").read_text()
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_make_command_in_the_documents_exists() -> None:
    said = {
        (name, target)
        for name, text in texts(".md")
        for target in re.findall(r"(?:`|^\s*)make ([a-z][a-z-]+)", text, re.M)
    }
    assert ("README.md", "demo") in said and ("README.md", "test") in said
    assert {(name, target) for name, target in said if target not in make_targets()} == set()


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert make_targets() == set(re.findall(r"^  make ([a-z-]+)", shown, re.MULTILINE))


@pytest.mark.parametrize("target", sorted(make_targets()))
def test_every_target_can_be_planned(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("name", [n for n in tracked() if n.endswith(".sh") or n == ".ci/run"])
def test_shell_scripts_are_executable_and_parse(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)


def test_layers_are_kept() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
