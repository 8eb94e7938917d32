"""The journal's files: torn ends, damage, locks, full disks, reclaiming."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_gateway.journal import frames, packing
from rollway_gateway.journal.__main__ import main as mend
from rollway_gateway.journal.disk import Disk
from rollway_gateway.journal.entries import Place
from rollway_gateway.journal.found import Found, scan
from rollway_gateway.journal.frames import Damaged, Frame
from rollway_gateway.journal.journal import Journal, open_journal
from rollway_gateway.journal.problems import JournalRefused
from rollway_gateway.journal.records import Kind
from tests.gateway.conftest import running_gateway
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
FRAMES = st.lists(
    st.builds(Frame, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 255), st.binary(max_size=60)),
    min_size=1, max_size=6,
)  # fmt: skip


def _segment(some: list[Frame]) -> bytes:
    return frames.segment_header(1) + b"".join(frames.pack(*frame) for frame in some)


@given(FRAMES)
def test_frames_are_read_as_they_were_packed(some: list[Frame]) -> None:
    assert [found.frame for found in frames.scan(_segment(some))] == some


@given(FRAMES, st.data())
def test_a_torn_end_loses_the_last_frame_alone(some: list[Frame], data: st.DataObject) -> None:
    whole = _segment(some)
    last = frames.size_of(len(some[-1].payload))
    cut = data.draw(st.integers(1, last - 1))
    seen = []
    with pytest.raises(Damaged) as damaged:
        for found in frames.scan(whole[:-cut]):
            seen.append(found.frame)
    assert (seen, damaged.value.later, damaged.value.offset) == (some[:-1], None, len(whole) - last)


@given(FRAMES, st.data())
def test_a_changed_byte_is_found_and_what_stands_behind_it_too(some: list[Frame], data: st.DataObject) -> None:
    whole = bytearray(_segment(some))
    at = data.draw(st.integers(frames.SEGMENT_HEADER, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged) as damaged:
        list(frames.scan(bytes(whole)))
    assert damaged.value.offset <= at
    if (later := damaged.value.later) is not None:
        assert frames.read(bytes(whole), later) is not None


def _no_globals() -> dict[str, Any]:
    return {"pools": [], "gone": [], "standings": {}}


@asynccontextmanager
async def _open(folder: Path, *, fsync: bool = False, segment_bytes: int = 4096) -> AsyncIterator[Journal]:
    journal, _ = await open_journal(folder, fsync=fsync, segment_bytes=segment_bytes, globals_of=_no_globals)
    journal.start()
    try:
        yield journal
    finally:
        await journal.close()


async def _fill(folder: Path, sessions: int) -> None:
    async with _open(folder) as journal:
        for n in range(sessions):
            entry = journal.open_session(f"s{n}", "p", keeps_messages=False, opened_at=0.0)
            said = {"session_id": f"s{n}", "pool": "p", "keeps_messages": False, "created_at": 0.0, "x": "y" * 300}
            journal.append_tree(entry, Kind.OPENED, said)
        await journal.committed()


async def _scan(folder: Path) -> Found:
    return await asyncio.to_thread(_scanned, folder)


def _scanned(folder: Path) -> Found:
    disk = Disk(folder, fsync=False)
    try:
        return scan(disk)
    finally:
        disk.close()


async def test_a_torn_end_is_cut_off_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await _fill(tmp_path, 3)
    path = tmp_path / "00000001.rwj"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    assert sorted((await _scan(tmp_path)).entries) == ["s0", "s1"]
    said = capsys.readouterr().out
    assert "journal_torn" in said and "dropped_bytes" in said
    assert path.stat().st_size < size - 10
    assert sorted((await _scan(tmp_path)).entries) == ["s0", "s1"]
    (tmp_path / "00000002.rwj").write_bytes(b"RWJ")
    assert sorted((await _scan(tmp_path)).entries) == ["s0", "s1"]


async def test_damage_in_the_middle_refuses_and_says_how_to_mend_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await _fill(tmp_path, 3)
    path = tmp_path / "00000001.rwj"
    data = bytearray(path.read_bytes())
    data[data.index(b"s1") + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalRefused, match=r"python -m rollway_gateway\.journal mend"):
        await _scan(tmp_path)
    await asyncio.to_thread(mend, ["mend", str(tmp_path)])
    assert "2 sessions marked as incomplete" in capsys.readouterr().out
    assert sorted((await _scan(tmp_path)).entries) == ["s0", "s2"]
    assert (tmp_path / "00000001.damaged").exists()


async def test_a_folder_is_one_processs(tmp_path: Path) -> None:
    async with _open(tmp_path):
        with pytest.raises(JournalRefused, match=f"in use by process {os.getpid()}"):
            await open_journal(tmp_path, fsync=False, segment_bytes=4096, globals_of=_no_globals)


@pytest.mark.parametrize("fsync", [False, True])
async def test_segments_go_when_their_sessions_are_over(tmp_path: Path, fsync: bool) -> None:
    async with _open(tmp_path, fsync=fsync) as journal:
        entries = []
        for n in range(100):
            entry = journal.open_session(f"s{n}", "p", keeps_messages=False, opened_at=0.0)
            journal.append(entry, Kind.OPENED, b"\x02\x00\x00\x00{}" + bytes(300))
            entries.append(entry)
        await journal.committed()
        assert journal.segments > 5
        for entry in entries[1:]:
            journal.release(entry)
        journal.append(None, Kind.POOLS, b"\x02\x00\x00\x00{}")
        await journal.committed()
        assert journal.wants_compaction
        while journal.wants_compaction:
            await journal.compact(entries[:1])
        await eventually(lambda: journal.segments <= 3, "old segments are deleted")
        files = await asyncio.to_thread(lambda: list(tmp_path.glob("*.rwj")))
        assert len(files) <= 3
        (frame,) = await journal.read(entries[0].places())
        assert frame.payload.endswith(bytes(300))


@pytest.mark.parametrize("at_once", [1, 3, 256])
async def test_compaction_beside_sessions_that_begin_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """It lets others go on: what they append is kept, what they release goes, and a restart finds each record once."""
    monkeypatch.setattr("rollway_gateway.journal.journal.AT_ONCE", at_once)
    monkeypatch.setattr("rollway_gateway.journal.journal.Disk", _Slow)

    def payload(name: str) -> bytes:
        return packing.pack({"name": name, "more": "x" * 300})

    async with _open(tmp_path) as journal:
        entries = {}

        def begin(name: str) -> None:
            entries[name] = journal.open_session(name, "p", keeps_messages=False, opened_at=0.0)
            journal.append(entries[name], Kind.CHANGED, payload(name))

        for n in range(60):
            begin(f"s{n}")
        await journal.committed()
        for n in range(50):
            if n % 5 and n not in (1, 2):
                journal.release(entries.pop(f"s{n}"))
        compacting = asyncio.create_task(journal.compact(list(entries.values())))
        for n in range(20):
            begin(f"late{n}")
            for name in ("s1", "s2"):  # also while it is copied, each is where its entry says
                (frame,) = await journal.read(entries[name].places())
                assert frame.payload == payload(name)
            if f"s{5 * n}" in entries:
                journal.release(entries.pop(f"s{5 * n}"))
            await asyncio.sleep(0.001)
        await compacting
        await journal.committed()
        for name, entry in entries.items():
            (frame,) = await journal.read(entry.places())
            assert frame.payload == payload(name)
    found: Counter[tuple[int, int]] = Counter()
    for path in sorted(await asyncio.to_thread(lambda: list(tmp_path.glob("*.rwj")))):
        data = await asyncio.to_thread(path.read_bytes)
        found.update((f.frame.session, f.frame.sequence) for f in frames.scan(data) if f.frame.session)
    assert {entry.number for entry in entries.values()} <= {session for session, _ in found}


async def test_a_segment_that_is_being_read_from_stays_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last record was copied, and whoever had asked where it lies was told that the journal cannot be read."""
    begun, go_on = threading.Event(), threading.Event()

    class Held(Disk):
        def read(self, places: Iterable[Place]) -> list[bytes]:
            if not begun.is_set():
                begun.set()
                assert go_on.wait(60)
            return super().read(places)

    monkeypatch.setattr("rollway_gateway.journal.journal.Disk", Held)
    async with _open(tmp_path) as journal:
        entry = journal.open_session("s", "p", keeps_messages=False, opened_at=0.0)
        journal.append(entry, Kind.CHANGED, packing.pack({"n": 1}))
        while journal.segments < 3:
            journal.append(None, Kind.POOLS, packing.pack({"pools": ["x" * 300]}))
        await journal.committed()
        oldest = tmp_path / "00000001.rwj"
        reading = asyncio.create_task(journal.read(entry.places()))
        try:
            await eventually(begun.is_set, "it is about to be read")
            await journal.compact([entry])
            while journal._reclaiming is not None:
                await asyncio.wait([journal._reclaiming])
            assert not journal.wants_compaction, "it is only to go"
        finally:
            go_on.set()
        (frame,) = await reading
        assert packing.Packed(frame.payload).tree == {"n": 1}
        await eventually(lambda: not oldest.exists(), "then it goes")


async def test_what_its_last_records_free_is_gone_when_it_is_closed(tmp_path: Path) -> None:
    """The folder is another process's from then on: nothing may be deleted there."""
    async with _open(tmp_path) as journal:
        entries = [journal.open_session(f"s{n}", "p", keeps_messages=False, opened_at=0.0) for n in range(60)]
        for entry in entries:
            journal.append(entry, Kind.CHANGED, packing.pack({"more": "x" * 300}))
        await journal.committed()
        assert journal.segments > 3
        for entry in entries:
            journal.release(entry)
        journal.append(None, Kind.POOLS, packing.pack({"pools": []}))
    assert [task for task in asyncio.all_tasks() if task.get_name() == "journal-reclaim"] == []
    assert len(await asyncio.to_thread(lambda: list(tmp_path.glob("*.rwj")))) == 1


async def test_more_parts_than_one_system_call_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollway_gateway.journal.disk.PARTS_AT_ONCE", 3)
    async with _open(tmp_path) as journal:
        entry = journal.open_session("s", "p", keeps_messages=False, opened_at=0.0)
        for n in range(10):
            journal.append(entry, Kind.CHANGED, packing.pack({"n": n}))
        await journal.committed()
        assert [packing.Packed(f.payload).tree for f in await journal.read(entry.places())] == [
            {"n": n} for n in range(10)
        ]


async def test_a_write_that_the_system_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def short(fd: int, parts: Sequence[bytes], at: int) -> int:
        return whole(fd, [b"".join(parts)[:7]], at)

    monkeypatch.setattr(os, "pwritev", short)
    async with _open(tmp_path) as journal:
        entry = journal.open_session("s", "p", keeps_messages=False, opened_at=0.0)
        places = [journal.append(entry, Kind.CHANGED, bytes([n]) * 50) for n in range(5)]
        await journal.committed()
        assert [f.payload for f in await journal.read(places)] == [bytes([n]) * 50 for n in range(5)]


class _Slow(Disk):
    def write(self, number: int, parts: Sequence[bytes]) -> None:
        time.sleep(0.01)  # what waits to be written is not yet to be read
        super().write(number, parts)


class _Full(Disk):
    """A disk that can be told to fail. Stands in for a full one where the test must also empty it again."""

    error: OSError | None = None

    def write(self, number: int, parts: Sequence[bytes]) -> None:
        if self.error is not None:
            raise self.error
        super().write(number, parts)


async def test_a_full_disk_is_said_and_nothing_in_memory_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent gets 503 and not the end of its answer, /health says why, and when there is room it goes on."""
    monkeypatch.setattr("rollway_gateway.journal.journal.Disk", _Full)
    async with (
        ScriptedEngine() as engine,
        running_gateway(durability="journal", journal_dir=tmp_path / "j", retry_grace_s=5) as gateway,
    ):
        await gateway.add(engine)
        ticket, other = await gateway.open(session_id="one"), await gateway.open(session_id="two")
        url = ticket["base_url"] + "/chat/completions"
        assert (await gateway.http.post(url, json={"messages": HI})).status_code == 200

        def full_once_asked(body: dict[str, Any]) -> Reply:
            _Full.error = OSError(errno.ENOSPC, "No space left on device")
            return Reply()

        engine.answer = full_once_asked
        try:
            refused = await gateway.http.post(url, json={"messages": HI, "seed": 1})
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")
            assert "No space left on device" in refused.json()["error"]["message"]
            assert "retry-after" in refused.headers
            sampled = len(engine.requests)
            early = await gateway.http.post(other["base_url"] + "/chat/completions", json={"messages": HI})
            assert (early.status_code, len(engine.requests)) == (503, sampled), "nothing is sampled in vain"
            health = await gateway.http.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "failing")
            assert (await gateway.http.post("/v1/sessions/two/seal")).status_code == 503
        finally:
            _Full.error = None
            engine.answer = lambda body: Reply()
        journal = gateway.inside.keeping.journal
        assert journal is not None
        await eventually(lambda: journal.problem is None, "it writes again")
        assert (await gateway.http.get("/health")).status_code == 200
        assert (await gateway.http.post(url, json={"messages": HI, "seed": 2})).status_code == 200
        made = await gateway.seal("one")
        assert [t.incomplete is None for t in made.turns] == [True, False, True]
        assert made.incomplete is not None and "No space left on device" in made.incomplete
        assert made.ledger.lost == len(made.turns[1].completion_token_ids)
        assert (await gateway.seal("two")).incomplete is None


async def test_a_stream_ends_with_an_error_event_when_it_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollway_gateway.journal.journal.Disk", _Full)
    async with ScriptedEngine() as engine, running_gateway(journal_dir=tmp_path / "j", durability="journal") as gateway:
        await gateway.add(engine)
        ticket = await gateway.open(session_id="one")
        url = ticket["base_url"] + "/chat/completions"

        def failing_once_asked(body: dict[str, Any]) -> Reply:
            _Full.error = OSError(errno.EIO, "Input/output error")
            return Reply()

        engine.answer = failing_once_asked
        try:
            async with gateway.http.stream("POST", url, json={"messages": HI, "stream": True}) as answer:
                text = (await answer.aread()).decode()
        finally:
            _Full.error = None
        assert answer.status_code in (200, 503)
        assert "Input/output error" in text
        assert '"finish_reason":"stop"' not in text


async def test_a_real_limit_on_file_size_is_met_and_left_again(tmp_path: Path) -> None:
    """RLIMIT_FSIZE in a process of its own: the kernel refuses the write with EFBIG, in the middle of a record."""
    script = (
        "import asyncio, pathlib, resource, signal, sys\n"
        "from rollway_gateway.journal.journal import open_journal\n"
        "from rollway_gateway.journal.problems import JournalDown\n"
        "from rollway_gateway.journal.records import Kind\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))\n"
        "async def run():\n"
        "    journal, _ = await open_journal(pathlib.Path(sys.argv[1]), fsync=True, segment_bytes=1 << 20,\n"
        "        globals_of=lambda: {'pools': [], 'gone': [], 'standings': {}})\n"
        "    journal.start()\n"
        "    told = 0\n"
        "    for n in range(10):\n"
        "        entry = journal.open_session(f's{n}', 'p', keeps_messages=False, opened_at=0.0)\n"
        "        said = {'session_id': f's{n}', 'pool': 'p', 'keeps_messages': False, 'created_at': 0}\n"
        "        said['x'] = 'y' * 500\n"
        "        journal.append_tree(entry, Kind.OPENED, said)\n"
        "        try:\n"
        "            await journal.committed()\n"
        "        except JournalDown as e:\n"
        "            told += 1\n"
        "            print(e.detail)\n"
        "    size = (pathlib.Path(sys.argv[1]) / '00000001.rwj').stat().st_size\n"
        "    assert 0 < told < 10 and size <= 3000, (told, size)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "    while journal.problem:\n"
        "        await asyncio.sleep(0.05)\n"
        "    await journal.committed()\n"
        "    await journal.close()\n"
        "asyncio.run(run())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert len((await _scan(tmp_path)).entries) == 10
