# SPDX-License-Identifier: Apache-2.0
"""Reads a Perfetto trace by the package's messages, as its trace processor does, for tests."""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tcpkmon.formats.timeline.model import BEGIN, COUNTER, END, INSTANT
from tcpkmon.formats.timeline.perfetto import SEQUENCE


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
class Counter:
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

    def counter(self, group: str, line: str) -> Counter:
        (number,) = self.tracks_called(group, line)
        assert self.tracks[number].HasField("counter")
        found = self.of(group, line, COUNTER)
        return Counter([one.time for one in found], [one.value for one in found])

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
