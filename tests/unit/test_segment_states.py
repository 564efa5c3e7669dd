# SPDX-License-Identifier: Apache-2.0
"""A later segment repeats the last records of open connections; a folder has them once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.writer.states import MOST
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import verify_file
from tests.unit.makers import CPUS, LOCATION, Maker
from tests.unit.test_takeover import Killed, cut

STATE_CHANGE = 4


def connections(maker: Maker, *numbers: int, **columns: Any) -> None:
    """A record of each of these connections on CPU 0 (and as many of CPU 1, of none)."""
    maker.columns = {"conn_id": np.array(numbers), **columns}
    maker.records(len(numbers))
    maker.columns = {}


def states_of(path: Path) -> dict[int, Any]:
    with tcpkmon.open(path) as capture:
        rows = capture.columns(("conn_id", "location", "snd_cwnd", "callvalue", "serial", "cpu"))
        found = rows["location"] == EXISTING
        assert set(rows["cpu"][found].tolist()) <= {CPUS}
        return dict(zip(rows["conn_id"][found].tolist(), rows["snd_cwnd"][found].tolist(),
                        strict=True))  # fmt: skip


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "out")


def test_each_later_segment_begins_with_what_is_open(maker: Maker) -> None:
    connections(maker, 7, 9, 7, 12, snd_cwnd=np.array([1, 2, 3, 4]))
    maker.rotate()
    closed = {"location": STATE_CHANGE, "callvalue": 7}
    connections(maker, 9, **closed)
    connections(maker, 13, snd_cwnd=5)
    maker.rotate()
    maker.rotate()
    maker.close()
    paths = maker.paths
    found = [states_of(path) for path in paths]
    assert found == [{}, {7: 3, 9: 2, 12: 4}, {7: 3, 12: 4, 13: 5}, {7: 3, 12: 4, 13: 5}]
    for path, states in zip(paths, found, strict=True):
        report = verify_file(path)
        assert report.exit_code == 0 and not report.existing, (report.verdict, report.problems)
        told = f"it repeats the last record before it of {len(states)} connections that were open"
        assert report.window == ([told] if states else [])
        row = {row.cpu: row for row in report.rows if row.location == EXISTING}
        assert sum(one.in_file for one in row.values()) == len(states)
    *_, chain = format_of(maker.folder).verify(maker.folder)
    assert chain.exit_code == 0 and not chain.existing, (chain.verdict, chain.problems)


def test_a_folder_has_them_once_without_a_gap(maker: Maker) -> None:
    connections(maker, 7, 9)
    maker.rotate()
    connections(maker, 7)
    maker.rotate()
    connections(maker, 9)
    maker.close()
    first, second, third = maker.paths
    with open_capture(maker.folder) as capture:
        plain = ~capture.control()
        assert not np.isin(capture.column("location"), [EXISTING]).any()
        assert capture.column("conn_id")[plain & (capture.column("cpu") == 0)].tolist() == [
            7, 9, 7, 9,
        ]  # fmt: skip
        assert capture.lost == 0 and not capture.warnings
        seq = capture.seq().astype(np.int64)
        assert (np.diff(seq) == 1).all()
        assert capture.complete
    with open_capture(second, third) as capture:  # the first of them keeps its own
        assert (capture.column("location") == EXISTING).sum() == 2 and capture.lost == 0
    with open_capture(first, third) as capture:  # one is missing: what it had is repeated
        assert (capture.column("location") == EXISTING).sum() == 2


def test_what_is_repeated_is_bounded_by_the_size_of_a_segment(maker: Maker) -> None:
    connections(maker, *range(1, 401))
    maker.stream.rotate(maker.books(), maker.clocks.read(), "size")
    maker.close()
    _, path = maker.paths
    states = states_of(path)
    # The latest; 800 records were in the file, and a quarter of that may be repeated.
    assert sorted(states) == list(range(201, 401))
    assert "of 200 of 400 connections" in verify_file(path).window[0]


def test_connections_that_share_a_place(maker: Maker) -> None:
    connections(maker, 5, 5 + MOST, 6)
    maker.rotate()
    maker.close()
    assert sorted(states_of(maker.paths[1])) == [6, 5 + MOST]


def test_what_a_full_disk_takes_of_them_is_counted(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections(maker, *range(1, 101))
    writer = maker.stream._writer
    from tcpkmon.collector.writer import file_sink

    write = file_sink.FileSink.write

    def fail(self: Any, *data: Any, **named: Any) -> Any:
        size = sum(memoryview(one).nbytes for one in data)
        if size == 100 * maker.dtype.itemsize:
            write(self, memoryview(data[0])[: 40 * maker.dtype.itemsize], **named)
            return file_sink.Outcome(40 * maker.dtype.itemsize, OSError(28, "full"))
        return write(self, *data, **named)

    real = writer._repeat

    def narrow(states: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(file_sink.FileSink, "write", fail)
            real(states)

    monkeypatch.setattr(writer, "_repeat", narrow)
    maker.rotate()
    maker.stream._spool.flush()
    maker.close()
    *parts, chain = format_of(maker.folder).verify(maker.folder)
    assert not chain.problems, [one.problems for one in parts]
    assert chain.totals.lost["disk full"] >= 60
    with open_capture(maker.folder) as capture:
        assert not np.isin(capture.column("location"), [EXISTING]).any()


def test_a_header_that_lies_hides_nothing(maker: Maker) -> None:
    from tests.unit.test_segments import flip

    connections(maker, 7, 9)
    maker.rotate()
    connections(maker, 7)
    maker.close()
    with open_capture(maker.paths[1]) as capture:
        row = capture.settings["segment"]["states"]["row"]
    old, new = (f'"states": {{"row": {n},'.encode() for n in (row, row + 2))
    flip(maker.paths[1], old, new)
    with open_capture(maker.folder) as capture:
        rows = capture.column("location") == LOCATION
        assert int(rows.sum()) == 3 * CPUS


@pytest.mark.parametrize("short", [0, 10, 11])
def test_a_capture_that_goes_on_after_a_kill_adds_up(tmp_path: Path, short: int) -> None:
    """The next process counts on from what was repeated: 2 states, then 10 records."""
    killed = Killed(tmp_path / "a")
    connections(killed, 7, 9)
    killed.checkpoint()
    killed.rotate()
    killed.columns = {"conn_id": 9}
    killed.records(5)
    killed.wait()
    cut(killed.folder, tmp_path / "b", short * killed.dtype.itemsize)
    killed.go_on(tmp_path / "b", killed.notes(), 0)
    killed.rotate()
    killed.close()
    *parts, chain = format_of(tmp_path / "b").verify(tmp_path / "b")
    assert chain.exit_code == 0, (chain.problems, [one.problems for one in parts])
    paths = [one.path(tmp_path / "b") for one in find_segments(tmp_path / "b")]
    # The new process repeats what it put into the file itself.
    states = [sorted(states_of(path)) for path in paths]
    assert states == [[], [7, 9][: 2 - (short > 10)], [9] if short else []]
