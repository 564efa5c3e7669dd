# SPDX-License-Identifier: Apache-2.0
"""What a Klogger log of the schema tcp lacks: all readers tell the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tcpkmon
from tcpkmon.formats.analysis.causes import causes
from tcpkmon.formats.analysis.check.capture import Capture
from tcpkmon.formats.analysis.why import Source, connections
from tcpkmon.formats.commands import connections as command
from tcpkmon.formats.commands import export, why
from tcpkmon.formats.klogger import merge
from tcpkmon.formats.registry import format_of
from tests.unit.log_files import ROOT, LogBuilder
from tests.unit.psc_files import CaptureBuilder, write_capture, write_runs
from tests.unit.test_why import SENDING

TCP = (ROOT / "bpf" / "schemata" / "tcp.conf").read_text()
ADDRESS = b"\0" * 10 + b"\xff\xff\x0a\0\0\x01"


def log_of(cpu: int) -> LogBuilder:
    return LogBuilder(cpu, schema=TCP)


def snapshot(log: LogBuilder, at_ns: int, **values: Any) -> None:
    """A snapshot of the connection 1 at this time."""
    log.log("SNAPSHOT", at_ns, **{**SENDING, "laddr": ADDRESS, "raddr": ADDRESS, **values})


def folder_of(path: Path, *logs: LogBuilder) -> Path:
    path.mkdir()
    for cpu, log in enumerate(logs):
        log.end_dump().finish().write(path / f"kernlog.dump.cpu{cpu}")
    return path


@pytest.fixture
def out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two CPUs; every second record of CPU 0 has a time before that of the one before it."""
    monkeypatch.setattr(merge, "HOLD", 400)
    logs = log_of(0), log_of(1)
    for at in range(2 * merge.HOLD):  # beyond what is merged at once
        snapshot(logs[0], 1_000_000 + 1000 * at - 2500 * (at % 2))
        snapshot(logs[1], 1_000_000 + 1000 * at + 300)
    return folder_of(tmp_path / "log", *logs)


def test_records_out_of_order_are_not_missing(out_of_order: Path) -> None:
    assert not any(one.exit_code for one in format_of(out_of_order).verify(out_of_order))
    table = connections(out_of_order)
    assert table["records"].tolist() == [4 * merge.HOLD]
    assert (table["lost_records"].tolist(), table["proven"].tolist()) == ([0], [True])
    assert not table["uncertain_us"].any()


@pytest.mark.parametrize("cpu", [0, 1])
def test_what_is_missing_is_counted_once_where_it_is(tmp_path: Path, cpu: int) -> None:
    logs = log_of(0), log_of(1)
    for at in range(40):
        if at == 20:
            logs[cpu].lose("ring_full", 7, "SNAPSHOT", location=1)
        for log in logs:
            snapshot(log, 1_000_000 + 1000 * at - 2500 * (at % 2))
    folder = folder_of(tmp_path / "log", *logs)
    with Source(folder) as source:
        steps = np.concatenate([np.diff(piece.lost, prepend=0) for piece in source.read()])
        assert (source.reader.lost, source.placed) == (7, 7)
    assert steps[steps > 0].tolist() == [7]
    table = connections(folder)
    assert (table["lost_records"].tolist(), table["proven"].tolist()) == ([7], [False])


@pytest.mark.parametrize("lost", [0, 1])
def test_close_wait_at_the_end_is_a_cause_where_nothing_is_missing(
    tmp_path: Path, lost: int
) -> None:
    """The record of a close may be the missing one."""
    log = log_of(0)
    snapshot(log, 1_000_000, location=4, state=1, callvalue=8)
    if lost:
        log.lose("ring_full", lost, "SNAPSHOT", location=1)
    snapshot(log, 6_000_000_000, conn_id=2)
    table = causes(folder_of(tmp_path / "log", log))
    assert table["cause"].tolist() == ["close_wait"] * (not lost)


def test_what_programs_missed_is_lost_for_every_reader(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "run.pm", [(1e6, 500)], missed=3)
    (report,) = format_of(path).verify(path)
    with tcpkmon.open(path) as capture:
        assert capture.lost == report.lost_total == 3
    assert connections(path)["proven"].tolist() == [False]
    assert Capture(path).lost == 3
    for one, more in ((command, []), (why, []), (export, ["-o", str(tmp_path / "run.csv")])):
        found = CliRunner().invoke(one.command, [str(path), *more], standalone_mode=False)
        assert found.return_value == 3, (one, found.output)


def test_what_found_no_room_in_a_table_is_lost_for_every_reader(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.lose("table_full", 0, 1, 2)
    build.lose("no_slot", 0, 1, 3)
    build.snapshots(0, 1, 3)
    build.end()
    path = build.write(tmp_path / "run.pm")
    (report,) = format_of(path).verify(path)
    with tcpkmon.open(path) as capture:
        assert capture.lost == report.lost_total == 5


def test_of_a_later_segment_only_its_own_is_missing(tmp_path: Path) -> None:
    """Programs count from the capture's start."""
    build = CaptureBuilder(settings={"segment": {"capture": "a", "number": 2, "previous": {}}})
    build.missed[1] = (5, 1)
    build.checkpoint()
    build.snapshots(0, 1, 3)
    build.missed[1] = (7, 1)
    build.end()
    with tcpkmon.open(build.write(tmp_path / "second.pm")) as capture:
        assert capture.unplaced == 2


def test_what_is_missing_nobody_knows_where_leaves_nothing_proven(tmp_path: Path) -> None:
    """The kernel counted them, and gave them no numbers."""
    log = log_of(0)
    for at in range(4):
        snapshot(log, 1_000_000 + 1000 * at)
    log.lose("table_full", 3, "SNAPSHOT", location=1)
    folder = folder_of(tmp_path / "log", log)
    assert connections(folder)["proven"].tolist() == [False]
    done = CliRunner().invoke(command.command, [str(folder)], standalone_mode=False)
    assert done.return_value == 3


def psc_of(path: Path, lose: set[int]) -> Path:
    return write_capture(path, records=300, flows=3, lose=lose)


def test_what_is_lost_behind_an_open_connections_last_record_may_be_its_own(tmp_path: Path) -> None:
    """A full disk: nothing of what came last is in the file, and no connection had ended."""
    table = connections(psc_of(tmp_path / "a.pm", set(range(290, 300))))
    assert table["lost_records"].tolist() == table["lost_after"].tolist() == [10, 10, 10]
    assert not table["proven"].any()
    assert not table["uncertain_us"].any()  # of its time until then nothing is missing
    done = CliRunner().invoke(why.command, [str(tmp_path / "a.pm"), "-v"], standalone_mode=False)
    assert done.return_value == 3
    assert "10 records were lost" in done.stderr
    assert done.stdout.count("10 records of the capture are missing behind its last one") == 3


def test_what_is_lost_before_a_connections_first_record_may_be_its_own(tmp_path: Path) -> None:
    """None of these began in the capture."""
    table = connections(psc_of(tmp_path / "a.pm", set(range(10))))
    assert table["lost_records"].tolist() == table["lost_before"].tolist() == [10, 10, 10]
    assert not table["proven"].any()


@pytest.mark.parametrize("ends", [True, False])
def test_a_connection_that_ended_lost_nothing_afterwards(tmp_path: Path, ends: bool) -> None:
    log = log_of(0)
    for at in range(4):
        snapshot(log, 1_000_000 + 1000 * at, location=4 if not at else 1, callvalue=2)
    snapshot(log, 1_010_000, location=11 if ends else 1)
    log.lose("ring_full", 3, "SNAPSHOT", location=1)
    snapshot(log, 1_020_000, conn_id=99)
    table = connections(folder_of(tmp_path / "log", log))
    own, other = range(2)
    assert table["lost_records"].tolist() == [0 if ends else 3, 3]
    assert table["lost_after"][own] == (0 if ends else 3) and table["lost_before"][other] == 3
    assert table["proven"].tolist() == [ends, False]


def test_what_nobody_knows_the_place_of_may_be_of_each(tmp_path: Path) -> None:
    log = log_of(0)
    snapshot(log, 1_000_000)
    log.lose("table_full", 3, "SNAPSHOT", location=1)
    assert connections(folder_of(tmp_path / "log", log))["lost_records"].tolist() == [3]


def test_a_later_segment_lacks_nothing_before_its_first_number(tmp_path: Path) -> None:
    """Its numbers go on from those of the segments before it."""
    path = psc_of(tmp_path / "a.pm", set())
    with tcpkmon.open(path) as capture:
        size = capture.header.entry_size
        skip = len(path.read_bytes()) - len(capture) * size
    data = path.read_bytes()
    path.write_bytes(data[:skip] + data[skip + 100 * size :])
    table = connections(path)
    assert not table["lost_records"].any() and table["proven"].all()
