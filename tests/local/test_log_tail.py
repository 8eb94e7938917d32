"""The log tail of `rollway up`: every line once and whole, also the last ones."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rollway_local import log_tail


async def test_a_tail_that_ends_while_it_looks_shows_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked, go_on, one_looks = threading.Event(), threading.Event(), threading.Lock()
    look = log_tail._show_new

    def slow_look(*where: Any) -> None:
        assert one_looks.acquire(blocking=False), "two look at once"
        if not looked.is_set():
            looked.set()
            go_on.wait(60)
        look(*where)
        one_looks.release()

    monkeypatch.setattr(log_tail, "_show_new", slow_look)
    (tmp_path / "gateway.log").write_text("one\ntwo\n")
    tail = asyncio.create_task(log_tail.follow(tmp_path))
    await asyncio.to_thread(looked.wait, 60)
    tail.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)  # a tail that does not wait has ended by then
    with pytest.raises(asyncio.CancelledError):
        await tail
    assert capsys.readouterr().out.splitlines() == ["gateway    | one", "gateway    | two"]
