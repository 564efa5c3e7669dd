# SPDX-License-Identifier: Apache-2.0
"""`import tcpkmon`: what it has."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tcpkmon
from tcpkmon.collector.commands import doctor
from tcpkmon.collector.loader import prepare
from tcpkmon.collector.ring import library
from tcpkmon.collector.ring.library import Producer, Word
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.commands.requests import command
from tests.kept.make import unpack
from tests.unit.log_files import ROOT, clean_log
from tests.unit.psc_files import write_capture


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "capture.pm", 2000, 3)


def test_the_page_has_each_function() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    functions = {name for name in tcpkmon.__all__ if name.islower()}
    assert functions == set(re.findall(r"`(\w+)\(", "\n".join(
        line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `")
    )))  # fmt: skip


def test_tables_of_a_capture(capture: Path) -> None:
    table = tcpkmon.connections(capture)
    with tcpkmon.open(capture) as reader:
        assert table.conn_id.tolist() == reader.table("connections")["conn_id"].to_pylist()
    assert set(tcpkmon.intervals(capture).conn_id) <= set(table.conn_id)
    told = tcpkmon.why(capture)
    assert {one.connection.conn_id for one in told} == set(table.conn_id)
    assert all(one.sentences for one in told)
    sizes = [max(one.connection.bytes_acked, one.connection.bytes_received) for one in told]
    assert sizes == sorted(sizes, reverse=True)


def test_verify_and_diff(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    capture = next(tmp_path.rglob("*.pm"))
    [report] = tcpkmon.verify(capture)
    assert (report.exit_code, report.path) == (0, str(capture))
    compared = tcpkmon.diff(capture, [capture]).compared
    assert compared and not any(one.is_worse for one in compared.values())


def test_requests_and_intervals(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    capture = next(tmp_path.rglob("*.pm"))
    told = tcpkmon.requests(capture)
    asked = CliRunner().invoke(command, [str(capture), "--json"]).stdout.splitlines()
    rows = [json.loads(line) for line in asked]
    assert rows and [row["start_ns"] for row in rows] == told.start_ns.tolist()
    assert [row["request_bytes"] for row in rows] == told.request_bytes.tolist()
    assert set(tcpkmon.intervals(capture).limit) == {"opening", "app", "idle", "closing"}


def test_a_capture_without_connections_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    clean_log().finish().write(folder / "kernlog.dump.cpu0")
    with pytest.raises(tcpkmon.UsageError):
        tcpkmon.connections(folder)
    with pytest.raises(tcpkmon.FileError):
        tcpkmon.open(tmp_path / "none")
    with pytest.raises(tcpkmon.UsageError, match="a PSC file, not a log of events"):
        tcpkmon.latency(write_capture(tmp_path / "run.pm", 100, 2))


SIZE, ROW = 4 * mmap.PAGESIZE, 72
BUSY = 1 << 31


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    """A BPF ring's: the producer's page, and the rows twice, where the kernel maps them twice."""
    yield mmap.mmap(-1, mmap.PAGESIZE + 2 * SIZE)


def fill(memory: mmap.mmap, producer: int, busy: tuple[int, ...]) -> Producer:
    """Records up to this position; those at `busy` are being built. Stale rows behind are busy."""
    whole = np.frombuffer(memory, np.uint32)
    whole[mmap.PAGESIZE // 4 :] = BUSY | 64
    ring = Producer(memory, SIZE, ROW)
    for position in range(max(0, producer - SIZE) // ROW * ROW, producer, ROW):
        at = ring.place(position) // 4
        whole[at] = 64 | (BUSY if position in busy else 0)
    rows = whole[mmap.PAGESIZE // 4 :].reshape(2, -1)
    rows[1] = rows[0]
    np.frombuffer(memory, np.uint64)[0] = producer
    return ring


@pytest.mark.parametrize("begin", [0, 5, SIZE // ROW - 2, (1 << 40) // ROW])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_it_goes_to_the_producer(memory: mmap.mmap, begin: int, count: int) -> None:
    start, end = begin * ROW, (begin + count) * ROW
    ring = fill(memory, end, ())
    assert ring.advance(start) == (end, False)
    assert ring.peek() == ring.load() == end


@pytest.mark.parametrize("begin", [0, SIZE // ROW - 2])
@pytest.mark.parametrize("at", [0, 1, 5, 6])
def test_it_stops_at_what_is_being_built(memory: mmap.mmap, begin: int, at: int) -> None:
    start, stop = begin * ROW, (begin + at) * ROW
    ring = fill(memory, start + 7 * ROW, (stop, start + 6 * ROW))
    assert ring.advance(start) == (stop, True)
    for row in range(7):
        place = start + row * ROW
        assert (ring.advance(place)[0] == place) == (row in {at, 6})


def test_a_word_is_stored_where_others_see_it() -> None:
    shared = np.zeros(3, np.uint64)
    word = Word(shared[1:])
    word.store((1 << 63) + 5)
    assert shared.tolist() == [0, (1 << 63) + 5, 0]
    assert word.load() == word.peek() == (1 << 63) + 5


def test_without_the_library_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "PLACE", tmp_path / "_drain")
    monkeypatch.setattr(prepare, "find_library", library.find_library.__wrapped__)
    assert cli.run(doctor.command, [], "tcpkmon doctor") == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "is missing, or of another version: rings cannot be read" in said
    with pytest.raises(TcpkmonError, match="rings cannot be read; "):
        prepare.check_machine()
