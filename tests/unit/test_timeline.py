# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces and trace-event JSON: read back by the package's messages, and by json."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.analysis import why
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.export import command
from tcpkmon.formats.timeline import perfetto
from tcpkmon.formats.timeline.model import BEGIN, COUNTER, END, EVENT, INSTANT
from tcpkmon.formats.timeline.perfetto import SEQUENCE
from tests.full import first
from tests.kept.make import names, unpack
from tests.unit.log_files import CLOCK, LogMaker, MagnetLog, write_folder
from tests.unit.psc_files import CLOCK as PSC_CLOCK
from tests.unit.psc_files import write_capture
from tests.unit.test_disk_analysis import write as write_disk


@dataclass
class Event:
    track: int
    kind: int
    time: int
    name: str
    value: float
    flows: list[int]
    args: dict[str, int]


@dataclass
class Drawn:
    times: list[int]
    values: list[float]

    def at(self, time: int) -> float:
        """The value that is drawn at a time."""
        return self.values[bisect.bisect_right(self.times, time) - 1]


@dataclass
class Trace:
    tracks: dict[int, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    clocks: list[tuple[int, int]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    primary_clock: int = 0
    dropped: int = 0
    cleared: int = 0

    def called(self, track: Any) -> str:
        return str(track.thread.thread_name or track.name)

    def groups(self) -> list[str]:
        return [self.called(one) for one in self.tracks.values() if not one.parent_uuid]

    def lines(self, group: str) -> list[str]:
        return [
            one.name for one in self.tracks.values()
            if one.parent_uuid and self.called(self.tracks[one.parent_uuid]) == group
        ]  # fmt: skip

    def threads(self) -> dict[tuple[int, int], str]:
        found = (one.thread for one in self.tracks.values() if one.HasField("thread"))
        return {(one.pid, one.tid): one.thread_name for one in found}

    def tracks_called(self, group: str, line: str) -> list[int]:
        found = [
            number for number, one in self.tracks.items()
            if one.name == line and self.called(self.tracks[one.parent_uuid]) == group
        ]  # fmt: skip
        return found

    def of(self, group: str, line: str, *kinds: int) -> list[Event]:
        """In the order of the trace processor: by time, then as in the file."""
        numbers = self.tracks_called(group, line)
        found = [one for one in self.events if one.track in numbers and one.kind in kinds]
        return sorted(found, key=lambda one: one.time)

    def counter(self, group: str, line: str) -> Drawn:
        (number,) = self.tracks_called(group, line)
        assert self.tracks[number].HasField("counter")
        found = self.of(group, line, COUNTER)
        return Drawn([one.time for one in found], [one.value for one in found])

    def slices(self, group: str, line: str) -> list[tuple[str, int, int]]:
        open_: dict[int, Event] = {}
        found = []
        for one in self.of(group, line, BEGIN, END):
            if one.kind == BEGIN:
                assert one.track not in open_
                open_[one.track] = one
            else:
                begin = open_.pop(one.track)
                found.append((begin.name, begin.time, one.time))
        assert not open_
        return found

    def instants(self, group: str, line: str) -> list[tuple[str, int, int]]:
        return [(one.name, one.time, one.time) for one in self.of(group, line, INSTANT)]

    def nested(self) -> bool:
        """Whether no slice overlaps another one of its track."""
        depth: dict[int, int] = defaultdict(int)
        for one in sorted(self.events, key=lambda one: one.time):
            if one.kind in (BEGIN, END):
                depth[one.track] += 1 if one.kind == BEGIN else -1
                if depth[one.track] not in (0, 1):
                    return False
        return not any(depth.values())


def read(path: Path) -> Trace:
    """A trace: each packet must be valid where it stands."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    found, names, has_state, counted = Trace(), dict[int, str](), False, set[int]()
    for packet in perfetto_trace_pb2.Trace.FromString(path.read_bytes()).packet:
        assert packet.trusted_packet_sequence_id
        if packet.previous_packet_dropped:
            found.dropped += 1
            has_state = False
        if packet.sequence_flags & 1:
            names, has_state = {}, True
            found.cleared += 1
            assert packet.trace_packet_defaults.timestamp_clock_id == 3
        for kind in (packet.interned_data.event_names, packet.interned_data.debug_annotation_names):
            names.update((one.iid, one.name) for one in kind)
        if packet.HasField("track_descriptor"):
            found.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("clock_snapshot"):
            found.primary_clock = packet.clock_snapshot.primary_trace_clock
            times = {one.clock_id: one.timestamp for one in packet.clock_snapshot.clocks}
            found.clocks.append((times[3], times[1]))
        counted.update(one.sequence_id for one in packet.trace_stats.writer_stats)
        for one in packet.trace_attributes.attribute:
            is_text = one.HasField("string_value")
            found.about[one.key] = one.string_value if is_text else one.long_value
        if packet.HasField("track_event"):
            assert has_state and packet.sequence_flags & 2
            event = packet.track_event
            assert event.track_uuid in found.tracks
            is_double = event.HasField("double_counter_value")
            found.events.append(Event(
                event.track_uuid, event.type, packet.timestamp,
                names[event.name_iid] if event.name_iid else "",
                event.double_counter_value if is_double else float(event.counter_value),
                list(event.flow_ids),
                {names[one.name_iid]: one.int_value for one in event.debug_annotations},
            ))  # fmt: skip
    assert counted == ({SEQUENCE} if found.dropped else set())
    return found


perfetto_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
LOST = frozenset({500, 501, 700})
HOST = """
enum syscall { read = 0, write = 1 }
event TRY_TO_WAKEUP { int pid; int wakes; int cpu }
event SCHEDIN { int pid; string16 comm }
event SCHEDOUT { int pid }
event SYSCALL_START { int tid; int tgid; syscall number }
event SYSCALL_EXIT { int tid; int tgid; syscall number }
event PAGEIN_START { int tid; int tgid; ulonglong since; int with_io }
event PAGEIN_END { int tid; int tgid; ulonglong since; int with_io }
event MINE { int value }
"""


def export(source: Path, out: Path, *more: str) -> Path:
    assert run(source, "-o", out, *more) in (0, 3, 5)
    return out


def run(*arguments: object) -> int:
    return cli.run(command, [str(one) for one in arguments], prog="tcpkmon export")


def trace_of(source: Path) -> Trace:
    return read(export(source, source.parent / "out.pftrace", "--force"))


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("psc") / "a.pm", 4000, 4, lose=LOST)


@pytest.fixture(scope="module")
def trace(capture: Path) -> Trace:
    return trace_of(capture)


def test_bytes_are_those_of_the_package() -> None:
    kinds = perfetto_pb2.TrackEvent.Type.values()
    assert kinds[:5] == [0, BEGIN, END, INSTANT, COUNTER]
    rng = np.random.default_rng(1)
    events = np.zeros(3000, EVENT)
    events["kind"] = rng.integers(1, 5, len(events))
    events["time"] = rng.integers(0, 1 << 62, len(events)) >> rng.integers(0, 62, len(events))
    events["track"] = rng.integers(1, 1 << 40, len(events)) >> rng.integers(0, 40, len(events)) | 1
    is_counter = events["kind"] == COUNTER
    events["name"] = np.where(is_counter | (events["kind"] == END), 0, rng.integers(1, 9000))
    values = rng.choice([0.0, -1.0, 0.5, np.nan, 1e300, -np.inf, 2.0**53, 12345.0], len(events))
    events["value"] = np.where(is_counter, values, 0)
    for name in ("flow", "flow2"):
        events[name] = rng.integers(0, 2, len(events)) * rng.integers(1, 1 << 63, len(events))
    events["arg"] = rng.integers(0, 300, len(events))
    events["arg_value"] = rng.integers(-(1 << 62), 1 << 62, len(events))
    data = b"".join(perfetto.encode(events, 1))
    found = perfetto_pb2.Trace.FromString(data)
    assert len(found.packet) == len(events)
    for packet, row in zip(found.packet, events, strict=True):
        wanted = perfetto_pb2.TracePacket(
            timestamp=int(row["time"]), trusted_packet_sequence_id=1, sequence_flags=2
        )
        event = wanted.track_event
        event.type, event.track_uuid = int(row["kind"]), int(row["track"])
        if row["name"]:
            event.name_iid = int(row["name"])
        if row["kind"] == COUNTER:
            value = float(row["value"])
            if math.isfinite(value) and value == int(value) and abs(value) < 2**53:
                event.counter_value = int(value)
            else:
                event.double_counter_value = value
        event.flow_ids.extend(int(row[name]) for name in ("flow", "flow2") if row[name])
        if row["arg"]:
            arg = event.debug_annotations.add()
            arg.name_iid, arg.int_value = int(row["arg"]), int(row["arg_value"])
        assert packet.SerializeToString() == wanted.SerializeToString()
    assert found.SerializeToString() == data


def test_counters_have_the_values_of_the_table(capture: Path, trace: Trace) -> None:
    names = ["conn_id", "time_ns", "snd_cwnd_segs", "snd_ssthresh", "snd_wnd", "srtt_us"]
    with tcpkmon.open(capture) as reader:
        columns = reader.columns(names)
        keep = ~reader.control()
    lines = {"cwnd": 2, "ssthresh": 3, "peer's window": 4, "srtt": 5}
    for conn_id in (1, 2, 3, 4):
        rows = keep & (columns["conn_id"] == conn_id)
        times = columns["time_ns"][rows].astype(np.int64)
        for line, column in lines.items():
            counter = trace.counter(f"10.0.0.1:{5000 + conn_id} -> 10.0.0.1:80 #{conn_id}", line)
            wanted = columns[names[column]][rows].tolist()
            assert [counter.at(time) for time in times.tolist()] == wanted


def test_no_counter_goes_through_a_loss(trace: Trace) -> None:
    for conn_id in (1, 2, 3, 4):
        group = f"10.0.0.1:{5000 + conn_id} -> 10.0.0.1:80 #{conn_id}"
        gaps = trace.slices(group, "not known")
        # 500 and 501 are missing between 499 and 502, and 700 between 699 and 701.
        assert [name for name, _, _ in gaps] == ["records missing"] * 2
        assert [begin for _, begin, _ in gaps] == [499_000, 699_000]
        for _, begin, end in gaps:
            for line in ("cwnd", "in flight", "srtt"):
                counter = trace.counter(group, line)
                assert math.isnan(counter.at((begin + end) // 2))
                assert not math.isnan(counter.at(begin))
                assert not math.isnan(counter.at(end))
        states = trace.slices(group, "congestion state")
        assert [end for _, _, end in states[:-1]] == [begin for _, begin, _ in gaps]
        # Nothing is told of the time after the last record.
        assert math.isnan(trace.counter(group, "cwnd").at(1 << 60))
    assert trace.slices("capture", "not known") == [
        ("records missing", 499_000, 502_000), ("records missing", 699_000, 701_000)
    ]  # fmt: skip
    assert trace.dropped == 1
    assert trace.about["tcpkmon.lost_records"] == 3


def test_tracks_clock_and_instants(trace: Trace) -> None:
    groups = [name for name in trace.groups() if name != "capture"]
    assert len(groups) == 4
    assert all(len(trace.lines(group)) == 9 for group in groups)
    assert trace.clocks == [(PSC_CLOCK[0], PSC_CLOCK[1])]
    assert trace.primary_clock == 3  # CLOCK_MONOTONIC
    assert trace.lines(groups[0])[:2] == ["limit", "congestion state"]
    group = groups[0]
    assert {name for name, _, _ in trace.instants(group, "events")} == {"retransmission"}
    assert len(trace.instants(group, "events")) == 1000 // 97
    assert trace.about["tcpkmon.records"] == 3997
    assert "none" in trace.about["tcpkmon.decimation"]


def write_host(folder: Path, lose: int = 0) -> Path:
    """Two CPUs: thread 7 (on CPU 0) wakes thread 8 (on CPU 1)."""
    folder.mkdir(exist_ok=True)
    one = LogMaker(HOST, 0)
    name = {"comm": b'a<b>"\x1b[31m\xe2\x80\xae'}
    one.add("SCHEDIN", {"pid": 7, **name}, at=1000)
    one.add("SYSCALL_START", {"tid": 7, "tgid": 7, "number": 1}, at=1100)
    one.add("TRY_TO_WAKEUP", {"pid": 8, "wakes": 1, "cpu": 1}, at=1200)
    one.add("TRY_TO_WAKEUP", {"pid": 9, "wakes": 0, "cpu": 1}, at=1250)
    if lose:
        one.skip(lose)
    one.add("SYSCALL_EXIT", {"tid": 7, "tgid": 7, "number": 1}, at=1300)
    one.add("SCHEDOUT", {"pid": 7}, at=1400)
    one.add("SCHEDIN", {"pid": 0}, at=1400)
    one.add("MINE", {"value": 3}, at=1450)
    one.add("SCHEDOUT", {"pid": 0}, at=1500)
    two = LogMaker(HOST, 1)
    two.add("SCHEDIN", {"pid": 8, "comm": b"woken"}, at=2000)
    two.add("PAGEIN_END", {"tid": 8, "tgid": 5, "since": CLOCK[0] + 2100, "with_io": 1}, at=2200)
    two.add("SCHEDOUT", {"pid": 8}, at=2500)
    for cpu, maker in enumerate((one, two)):
        maker.write(folder / f"kernlog.dump.cpu{cpu}")
    return folder


def shifted(found: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [(name, begin - CLOCK[0], end - CLOCK[0]) for name, begin, end in found]


def test_threads_wake_ups_calls_and_page_ins(tmp_path: Path) -> None:
    trace = trace_of(write_host(tmp_path / "host"))
    safe = 'a<b>"\\x1b[31m\\u202e'
    assert shifted(trace.slices("CPU 0", "threads")) == [(f"{safe} (7)", 1000, 1400)]
    assert shifted(trace.slices("CPU 1", "threads")) == [("woken (8)", 2000, 2500)]
    assert shifted(trace.instants("CPU 0", "threads")) == [("wake-up", 1200, 1200)]
    (wake,) = (event for event in trace.events if event.name == "wake-up")
    (woken,) = (event for event in trace.events if event.name == "woken (8)")
    assert wake.flows == woken.flows and len(wake.flows) == 1
    assert shifted(trace.slices(safe, "calls")) == [("write", 1100, 1300)]
    assert shifted(trace.slices("woken", "page-ins")) == [("page-in", 2100, 2200)]
    assert shifted(trace.instants("CPU 0", "events")) == [("MINE", 1450, 1450)]
    assert trace.threads() == {(7, 7): safe, (5, 8): "woken"}
    assert trace.clocks[0] == CLOCK[:2]
    assert trace.dropped == 0


def test_no_thread_runs_through_a_loss(tmp_path: Path) -> None:
    trace = trace_of(write_host(tmp_path / "host", lose=5))
    assert trace.slices("CPU 0", "threads") == []
    assert shifted(trace.slices("CPU 0", "not known")) == [("records missing", 1250, 1300)]
    (gap,) = (event for event in trace.events if event.name == "records missing")
    assert gap.args == {"records": 5}
    (calls,) = (one for one in trace.groups() if one == "thread 7" or one.startswith("a<b>"))
    assert shifted(trace.slices(calls, "calls")) == [("write, uncertain", 1100, 1300)]
    assert len(trace.slices("CPU 1", "threads")) == 1
    assert trace.dropped == 1


def test_disk_requests_lie_in_lanes(tmp_path: Path) -> None:
    one, two, three = ({"request": n, "sector": 8 * n, "bytes": 4096} for n in (1, 2, 3))
    write_disk(tmp_path, [
        (10, "INSERT", one), (12, "INSERT", two), (20, "ISSUE", one), (30, "ISSUE", two),
        (35, "COMPLETE", one | {"bytes": 512}), (40, "COMPLETE", one | {"last": 1}),
        (50, "COMPLETE", two | {"last": 1}), (55, "COMPLETE", {"request": 0, "last": 1}),
        (60, "INSERT", three), (70, "COMPLETE", three | {"last": 1}),
    ])  # fmt: skip
    trace = read(export(tmp_path, tmp_path / "d.perfetto-trace"))
    (group,) = (name for name in trace.groups() if name.startswith("disk"))
    assert group == "disk 254:1"
    found = shifted(trace.slices(group, "at the device"))
    assert sorted(found) == [("READ", 20, 40), ("READ", 30, 50), ("READ", 60, 70)]
    assert sorted(shifted(trace.slices(group, "queued"))) == [("READ", 10, 20), ("READ", 12, 30)]
    assert trace.nested()
    assert len(trace.tracks_called(group, "at the device")) == 2
    flows = [event.flows for event in trace.events if event.name == "READ"]
    assert sorted(map(flows.count, flows)) == [1, 2, 2, 2, 2]


def test_a_segment_flows_through_the_layers(tmp_path: Path) -> None:
    log = MagnetLog()
    log.connect(5, ("10.0.0.1", 1000), ("2001:db8::2", 80))
    for lo, at in ((100, 10), (200, 20)):
        log.put("TCP_SEND", at, 5, lo, lo + 100)
        log.put("IP_SEND", at + 1, 5, lo, lo + 100)
        log.put("DEV_SEND", at + 2, 5, lo, lo + 100)
    log.put("SOCK_SEND", 40, 5, 100, 300, entered=5)
    log.put("TCP_SEND", 900, 5, 100, 200, flags=16 | 256)
    trace = trace_of(write_folder(tmp_path / "log", log))
    group = "layers of 10.0.0.1:1000 -> [2001:db8::2]:80 #5"
    assert shifted(trace.slices(group, "SOCK_SEND")) == [("SOCK_SEND", 5, 40)]
    names: dict[int, list[str]] = defaultdict(list)
    for event in sorted(trace.events, key=lambda one: one.time):
        for flow in event.flows:
            names[flow].append(event.name)
    way = ["TCP_SEND", "IP_SEND", "DEV_SEND"]
    assert sorted(names.values()) == sorted(
        [["SOCK_SEND", "TCP_SEND", "TCP_SEND", "TCP_SEND again"], [*way, "TCP_SEND again"], way]
    )


@pytest.mark.parametrize("name", first(8, sorted(names(), key=lambda name: name.partition("-")[2])))
def test_captures_of_every_kind(name: str, tmp_path: Path) -> None:
    """Those of tests/kept: files and folders, rotated, lossy, damaged, of killed processes."""
    unpack(name, tmp_path)
    (capture,) = tmp_path.iterdir()
    trace = read(export(capture, tmp_path / "out.pftrace"))
    assert trace.nested()
    counted = Counter(event.kind for event in trace.events)
    assert counted[BEGIN] == counted[END]
    gaps = [event for event in trace.events if event.name == "records missing"]
    assert bool(gaps) == ("lossy" in name) == bool(trace.dropped)
    if name == "psc-lossy":  # all behind the last snapshot
        assert sum(event.args["records"] for event in gaps) == trace.about["tcpkmon.lost_records"]
    if name.startswith(("psc", "klogger")):
        groups = dict.fromkeys(one for one in trace.groups() if "limit" in trace.lines(one))
        found = [one for group in groups for one in trace.slices(group, "limit")]
        table = why.intervals(capture)
        assert sorted(one[1:] for one in found) == sorted(
            zip(table["start_ns"].tolist(), table["end_ns"].tolist(), strict=True)
        )


@pytest.mark.full
def test_names_are_told_again_after_a_loss(tmp_path: Path) -> None:
    """read() forgets them where the trace says so, and fails for one that it does not know."""
    trace = trace_of(write_capture(tmp_path / "a.pm", 140_000, 2, lose=frozenset({100_000})))
    assert (trace.cleared, trace.dropped) == (1, 1)  # the first packet says both
    assert "" not in {event.name for event in trace.events if event.kind == BEGIN}
    assert trace.nested()
