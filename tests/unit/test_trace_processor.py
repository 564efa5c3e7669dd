# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own trace processor opens the exports: its SQL says what the capture has."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.formats.analysis import why
from tcpkmon.formats.timeline.model import BEGIN, INSTANT
from tests.kept.make import names, unpack
from tests.unit.klogger_samples import CLOCK as CLOCK_OF_LOG
from tests.unit.magnet_log import MagnetLog, write_folder
from tests.unit.test_disk_analysis import write as write_disk
from tests.unit.test_timeline import LOST, export, write_host
from tests.unit.timeline_reader import read
from tests.unit.trace_processor import (
    COUNTERS,
    NULL,
    PROGRAM,
    ask,
    complaints,
    events_of,
    found_counts,
    must_agree,
    text,
)
from tests.unit.why_capture import CLOCK, write_capture

pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="needs Perfetto's trace_processor_shell, on PATH or named by TRACE_PROCESSOR",
)
MADE = ("lossy", "host", "host-lossy", "disk", "layers")
MONOTONIC, BOOTTIME = 3, 6


def make(kind: str, folder: Path) -> Path:
    """A capture of a kind."""
    if kind == "lossy":
        return write_capture(folder / "a.pm", 4000, 4, lose=LOST)
    if kind.startswith("host"):
        return write_host(folder / "host", 5 if kind == "host-lossy" else 0)
    if kind == "disk":
        one, two = ({"request": n, "sector": 8 * n, "bytes": 4096} for n in (1, 2))
        return write_disk(folder, [
            (10, "INSERT", one), (12, "INSERT", two), (20, "ISSUE", one), (30, "ISSUE", two),
            (40, "COMPLETE", one | {"last": 1}), (50, "COMPLETE", two | {"last": 1}),
        ])  # fmt: skip
    log = MagnetLog()
    log.connect(5, ("10.0.0.1", 1000), ("2001:db8::2", 80))
    log.put("SOCK_RECV", 130, 5, 700, 800, entered=7)
    for at, (name, lo) in enumerate([(n, s) for s in (100, 200) for n in ("TCP", "IP", "DEV")]):
        log.put(f"{name}_SEND", 10 + at, 5, lo, lo + 100)
    log.put("SOCK_SEND", 40, 5, 100, 300, entered=5)
    for at, name in enumerate(("DEV", "IP", "TCP")):
        log.put(f"{name}_RECV", 120 + at, 5, 700, 800)
    log.put("TCP_SEND", 900, 5, 100, 200, flags=16 | 256)
    return write_folder(folder / "log", log)


def source_of(kind: str, folder: Path) -> Path:
    if kind in MADE:
        return make(kind, folder)
    unpack(kind, folder)
    (source,) = folder.iterdir()
    return source


KINDS = pytest.mark.parametrize("kind", [*MADE, *sorted(names())])


@KINDS
def test_it_finds_what_the_trace_has(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    out = export(source, tmp_path / "out.pftrace")
    trace = read(out)
    must_agree(out, trace)


def test_it_finds_what_the_capture_has(tmp_path: Path) -> None:
    """Not by way of our reader of traces: counters, limits, losses, clocks, and what it tells."""
    capture = write_capture(tmp_path / "a.pm", 4000, 4, lose=LOST)
    out = export(capture, tmp_path / "out.pftrace")
    with tcpkmon.open(capture) as reader:
        columns = reader.columns(["conn_id", "time_ns", "snd_cwnd_segs", "srtt_us", "snd_wnd"])
        kept = ~reader.control()
    found = found_counts(out, COUNTERS)
    for conn_id in (1, 2, 3, 4):
        group = f"10.0.0.1:{5000 + conn_id} -> 10.0.0.1:80 #{conn_id}"
        rows = kept & (columns["conn_id"] == conn_id)
        times = columns["time_ns"][rows].tolist()
        lines = {"cwnd": "snd_cwnd_segs", "srtt": "srtt_us", "peer's window": "snd_wnd"}
        for line, name in lines.items():
            then = dict(found[group, line])
            values: list[str] = []
            for time, value in zip(times, columns[name][rows].tolist(), strict=True):
                values.append(then.get(time, values[-1] if values else NULL))
                assert values[-1] == f"{value:f}"
    table = why.intervals(capture)
    assert sorted(
        (int(begin), int(begin) + int(length)) for begin, length in ask(
            out, "select ts, dur from slice join track t on track_id = t.id where t.name = 'limit'"
        )
    ) == sorted(zip(table["start_ns"].tolist(), table["end_ns"].tolist(), strict=True))  # fmt: skip
    assert ask(out, "select sum(int_value) from slice join args using (arg_set_id) join track t"
                    " on track_id = t.id join track p on t.parent_id = p.id"
                    " where t.name = 'not known' and p.name = 'capture'") == [["3"]]  # fmt: skip
    clocks = ask(out, "select clock_name, clock_value from clock_snapshot order by 1")
    assert clocks == [
        ["BOOTTIME", str(CLOCK[0])], ["MONOTONIC", str(CLOCK[0])], ["REALTIME", str(CLOCK[1])]
    ]  # fmt: skip
    told = ask(out, "select str_value, int_value from metadata where name like '%tcpkmon.file'"
                    " or name like '%tcpkmon.lost_records' order by name")  # fmt: skip
    assert told == [["a.pm", NULL], [NULL, "3"]]
    assert ask(out, "select count(*) from thread where tid > 0") == [["0"]]


def test_threads_have_their_ids(tmp_path: Path) -> None:
    out = export(write_host(tmp_path / "host"), tmp_path / "out.pftrace")
    found = ask(out, "select tid, pid, hex(thread.name) from thread join process using (upid)"
                     " where tid in (7, 8) order by tid")  # fmt: skip
    assert [(tid, pid, text(name)) for tid, pid, name in found] == [
        ("7", "7", 'a<b>"\\x1b[31m\\u202e'), ("8", "5", "woken")
    ]  # fmt: skip


def test_a_recording_of_perfetto_beside_it(tmp_path: Path) -> None:
    """Both in one archive: its clock is CLOCK_BOOTTIME of a host that never slept."""
    packets = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2").Trace()
    ours = read(export(write_host(tmp_path / "host"), tmp_path / "run.pftrace"))
    at = min(event.time for event in ours.events if event.kind == BEGIN)
    snapshot = packets.packet.add(trusted_packet_sequence_id=1).clock_snapshot
    for number in (MONOTONIC, BOOTTIME):
        snapshot.clocks.add(clock_id=number, timestamp=CLOCK_OF_LOG[0])
    snapshot.primary_trace_clock = BOOTTIME
    event = packets.packet.add(
        trusted_packet_sequence_id=1, timestamp=at, timestamp_clock_id=BOOTTIME
    ).track_event
    event.type, event.track_uuid, event.name = INSTANT, 1, "of the recording"
    (tmp_path / "system.pftrace").write_bytes(packets.SerializeToString())
    out = tmp_path / "both.tar"
    with tarfile.open(out, "w") as archive:
        for name in ("system.pftrace", "run.pftrace"):
            archive.add(tmp_path / name, name)
    assert complaints(out) == {}
    found = ask(out, "select name, ts - (select min(ts) from slice) from slice order by ts limit 2")
    assert ["of the recording", "0"] in found and {time for _, time in found} == {"0"}
    assert len(ask(out, "select 1 from slice")) == 1 + sum(events_of(ours)[0].values())
