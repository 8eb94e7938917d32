"""The page's tables are the recorded runs', and nobody's handwriting."""

from __future__ import annotations

import pytest

from benchmarks import readme


def test_every_table_is_what_its_recorded_run_says() -> None:
    written = readme.PAGE.read_text()
    assert readme.page(written) == written, "run python -m benchmarks.readme"


def test_a_section_without_a_recorded_run_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(readme.baseline, "FOLDER", tmp_path)
    assert readme.section("gateway") == readme.MISSING


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="gateway: begin"):
        readme.page("# Benchmarks\n")
