# SPDX-License-Identifier: Apache-2.0
"""Changes of what is recorded: found, written, kept on a full disk, and told by verify."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from failing_calls import FaultyCalls

from tcpkmon.collector.control.changes import Changes
from tcpkmon.collector.writer.base_events import notes_of
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.analysis import match_pairs, open_log
from tcpkmon.formats.base import control
from tcpkmon.formats.base.changes import ChangeKind, Off, Switches, describe
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.verify import verify_file, verify_log
from tests.unit.log_files import LogBuilder, clean_log
from tests.unit.psc_files import CaptureBuilder, decoded, find, replace
from tests.unit.test_spool import psc_writer


class Fake:
    """What Changes reads and writes: the maps, the rings and the stream of a capture."""

    def __init__(self) -> None:
        self.on = {1: 1, 2: 1}
        self.buffer_bytes, self.low_water_percent, self.shed_level = 4096, 75, 0
        self.cpus = [0, 1]
        self.filters = 3
        self.found: list[Change] = []

    def read_switches(self) -> None:
        return

    def states(self) -> dict[str, tuple[int, int]]:
        return {str(n): (n, state) for n, state in self.on.items()} | {"missing": (3, -1)}

    def limits(self) -> dict[int, int]:
        return {1: 0}

    def filters_in_force(self) -> int:
        return self.filters

    def changed(self, changes: list[Change]) -> None:
        self.found += changes


def test_each_change_is_found_with_its_bounds() -> None:
    fake = Fake()
    clock = iter(range(100, 10_000, 100))
    made = cast(Any, fake)
    changes = Changes(made, made, made, lambda: next(clock))
    changes.look()
    assert fake.found == []
    with changes.making():
        fake.on[2] = 0
        fake.buffer_bytes = 8192
    assert fake.found == [
        Change(ChangeKind.SWITCH, 2, 400, 500, 1, 0),
        Change(ChangeKind.RING, 0, 400, 500, 4096, 8192),
        Change(ChangeKind.RING, 1, 400, 500, 4096, 8192),
    ]
    fake.found.clear()
    fake.on[1], fake.filters, fake.cpus = 0, 2, [0]
    changes.look()  # by others, between two looks
    assert fake.found == [
        Change(ChangeKind.SWITCH, 1, 500, 600, 1, 0, 1),
        Change(ChangeKind.RING, 1, 500, 600, 8192, 0, 1),
        Change(ChangeKind.FILTERS, 0, 500, 600, 3, 2, 1),
    ]


def test_spans_are_the_longest_that_may_have_been() -> None:
    switches = Switches()
    for change in (
        Change(0, 5, 10, 20, 1, 0), Change(2, 5, 1, 2, 8, 9), Change(0, 6, 15, 16, 1, 0),
        Change(0, 5, 30, 40, 0, 1), Change(0, 7, 50, 90, 1, 1),
    ):  # fmt: skip
        switches.feed(change)
    assert switches.all() == [Off(5, 10, 40), Off(7, 50, 90), Off(6, 15, None)]
    lines = describe([Off(5, 0, 2_000_000), Off(6, 0, 2_000_000)], str, lambda ns: ns)
    assert lines == ["5, 6 were off from 1970-01-01T00:00:00.000000Z to "
                     "1970-01-01T00:00:00.002000Z (0.002 s)"]  # fmt: skip


def test_hundreds_of_spans_are_some_lines() -> None:
    spans = [Off(5, n * 10**9, n * 10**9 + 500_000_000) for n in range(300)]
    lines = describe(spans, str, lambda ns: ns)
    assert len(lines) == 20 and lines[19] == "and 281 more times, 140.500 s in all"


def test_verify_tells_when_an_event_was_off(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.switch(2, False)
    build.snapshots(0, 1, 3)
    build.switch(2, True)
    build.switch(9, False, others=True)
    build.end()
    report = verify_file(build.write(tmp_path / "a.pm"))
    assert report.exit_code == 0, report.problems
    assert report.verdict == "adds up: nothing lost while it was switched on (see below)"
    first, second = report.off
    assert first.startswith("2 was off from 2023-11-14T22:13:20.0") and "s)" in first
    assert second.endswith("to the end; not tcpkmon switched it")
    array = build.array()
    at = find(array, Change, 1)
    replace(array, at, Change(0, 2, 5, 4, 1, 1))
    assert isinstance(decoded(array, at), Change)
    what = [problem.what for problem in verify_file(build.write(tmp_path / "b.pm", array)).problems]
    assert what == ["CHANGE from 1, but 0 was in force", "CHANGE ends before it begins"]


def test_a_log_tells_it_too(tmp_path: Path) -> None:
    log = clean_log()
    point = log.point("SCHEDOUT", {})
    for on in (0, 1):
        change = Change(0, point, log.clock[0], log.clock[0] + 9, 1 - on, on)
        log.base("CHANGE", **notes_of([change], Written())[0].values)
    path = log.finish().write(tmp_path / "kernlog.dump.cpu0")
    report = verify_log(path)
    assert report.exit_code == 0, report.problems
    assert [line.partition(" from")[0] for line in report.off] == ["SCHEDOUT was off"]


def test_pairs_across_a_span_are_none(tmp_path: Path) -> None:
    log = LogBuilder()
    numbers = log.numbers
    for at, name in enumerate(("SCHEDIN", "SCHEDOUT", "SCHEDIN", "SCHEDOUT")):
        log.log(name, at=1_000_000_000 + 1000 * at)
        if at == 2:
            for on in (0, 1):
                change = Change(0, numbers["SCHEDOUT"], 2_000_002_100, 2_000_002_200, 1 - on, on)
                log.base("CHANGE", **notes_of([change], Written())[0].values)
    path = log.finish().write(tmp_path / "kernlog.dump.cpu0")
    with open_log(path) as opened:
        pairs = match_pairs(opened, "SCHEDIN", "SCHEDOUT", "cpu")
    assert (pairs.durations_ns.tolist(), pairs.unstopped, pairs.unstarted) == ([1000], 1, 1)


def test_a_change_that_a_full_disk_refuses_comes_later(tmp_path: Path) -> None:
    build = CaptureBuilder()
    path, calls = tmp_path / "x", FaultyCalls()
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    sink = FileSink(fd, build.entry_size, calls, 0, direct=False)
    writer = psc_writer(sink, build.dtype, lambda: 0, Written(entries=1, last_seq=1))
    calls.fail("write", errno.ENOSPC)
    for change in (Change(0, 2, 1, 2, 1, 0), Change(0, 2, 3, 4, 0, 1), Change(0, 1, 5, 6, 1, 0)):
        assert not writer.control([change], 7)
    calls.heal()
    assert writer.control([control.Mark(1, "x")], 8)
    rows = np.fromfile(path, build.dtype)
    entries = [decoded(rows, at) for at in range(len(rows))]
    assert entries == [Change(0, 2, 1, 4, 1, 1), Change(0, 1, 5, 6, 1, 0), control.Mark(1, "x")]
