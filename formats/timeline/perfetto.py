# SPDX-License-Identifier: Apache-2.0
"""Writes a timeline as a Perfetto trace, by the package `perfetto` and its messages."""

from __future__ import annotations

from typing import Any, BinaryIO

from tcpkmon.formats.base.installing import needed
from tcpkmon.formats.timeline import wire
from tcpkmon.formats.timeline.model import Array, Track

SEQUENCE = 1
"""All packets are of one sequence."""
_CLEARED = 1
_BY_RANK, _RANKS = 3, (1 << 31) - 1
_MONOTONIC, _REALTIME, _BOOTTIME = 3, 1, 6
_UNITS = {"bytes": 3}
"""Units that the format has; others are names."""


class PerfettoSink:
    """See Sink. The clock is CLOCK_MONOTONIC; CLOCK_BOOTTIME is said to be the same."""

    def __init__(self, out: BinaryIO) -> None:
        with needed("the package perfetto", "perfetto"):
            from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
        self._out, self._builder = out, StreamingTraceProtoBuilder(out)
        self._names: dict[int, str] = {}
        self._told = 0
        self._dropped = self._has_lost = False
        self._is_first = True

    def track(self, track: Track) -> None:
        packet = self._packet()
        told = packet.track_descriptor
        told.uuid = track.number
        if track.parent:
            told.parent_uuid, told.sibling_order_rank = track.parent, track.number & _RANKS
        else:
            told.child_ordering = _BY_RANK
        if track.tid:
            told.thread.pid, told.thread.tid = track.pid, track.tid
            told.thread.thread_name = track.name
        else:
            told.name = track.name
        if track.unit is not None:
            unit = _UNITS.get(track.unit)
            if unit is not None:
                told.counter.unit = unit
            else:
                told.counter.unit_name = track.unit
        self._builder.write_packet(packet)

    def name(self, number: int, text: str) -> None:
        self._names[number] = text

    def clock(self, mono_ns: int, realtime_ns: int | None) -> None:
        packet = self._packet()
        snapshot = packet.clock_snapshot
        snapshot.primary_trace_clock = _MONOTONIC
        # Perfetto relates what it opens together by CLOCK_BOOTTIME, which captures do not have.
        clocks = (_MONOTONIC, mono_ns), (_REALTIME, realtime_ns), (_BOOTTIME, mono_ns)
        for number, ns in clocks:
            if ns is not None:
                one = snapshot.clocks.add()
                one.clock_id, one.timestamp = number, ns
        self._builder.write_packet(packet)

    def dropped(self) -> None:
        self._dropped = self._has_lost = True

    def events(self, events: Array) -> None:
        self._tell_state()
        for data in wire.encode(events, SEQUENCE):
            self._out.write(data)

    def finish(self, about: dict[str, str | int]) -> None:
        if self._dropped:
            self._tell_state()
        packet = self._packet()
        for key, value in about.items():
            one = packet.trace_attributes.attribute.add()
            one.key = f"tcpkmon.{key}"
            if isinstance(value, int):
                one.long_value = value
            else:
                one.string_value = value
        self._builder.write_packet(packet)
        if self._has_lost:  # Perfetto counts what was dropped of the sequences that are named here
            packet = self._packet()
            packet.trace_stats.writer_stats.add(sequence_id=SEQUENCE, buffer=0)
            self._builder.write_packet(packet)

    def _tell_state(self) -> None:
        """What the next events need: names that are new, or all of them after a loss."""
        afresh = self._dropped or self._is_first
        if not afresh and self._told == len(self._names):
            return
        packet = self._packet()
        packet.sequence_flags = wire.NEEDS_STATE | (_CLEARED if afresh else 0)
        if afresh:
            packet.trace_packet_defaults.timestamp_clock_id = _MONOTONIC
        if self._dropped:
            packet.previous_packet_dropped = 1
        new = list(self._names.items())[0 if afresh else self._told :]
        for number, text in new:
            for kind in (
                packet.interned_data.event_names, packet.interned_data.debug_annotation_names
            ):  # fmt: skip
                one = kind.add()
                one.iid, one.name = number, text
        self._told, self._dropped, self._is_first = len(self._names), False, False
        self._builder.write_packet(packet)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet
