# SPDX-License-Identifier: Apache-2.0
"""Writes a timeline as a Perfetto trace, by the package `perfetto` and its messages."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.installing import needed
from tcpkmon.formats.timeline.model import COUNTER, Array, Track

# Events as bytes of protobuf messages, many at a time: what the package `perfetto` would make of
# each, but for its 2 us and more an event in Python. tests/unit/test_timeline.py compares the two.
#
# A row of a matrix is a packet, and a mask says which of its bytes are there:
#
#     packet | length | 8 timestamp | 10 sequence | 11 event, length | ... | 13 sequence flags
#                                                   4 argument, 9 type, 10 name, 11 track,
#                                                   30 or 44 counter, 47 flows

NEEDS_STATE = 2
"""TracePacket.SEQ_NEEDS_INCREMENTAL_STATE: the packet uses names and defaults of its sequence."""
_ROWS = 1 << 15
_EXACT = float(1 << 53)


def encode(events: Array, sequence: int) -> list[bytes]:
    """The packets of these events, in their order."""
    return [
        _encode(events[low : low + _ROWS], sequence) for low in range(0, len(events), _ROWS)
    ]


class _Rows:
    """Bytes of n messages, which grow at their ends. Each part is (n, width) and its mask."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.parts: list[tuple[Array, NDArray[np.bool_]]] = []
        self.length = np.zeros(count, np.int64)

    def put(self, data: bytes, there: Array | None = None) -> None:
        """The same bytes in all rows, or where they are there."""
        self._add(np.broadcast_to(np.frombuffer(data, np.uint8), (self._count, len(data))), there)

    def varint(self, tag: bytes, values: Array, there: Array | None = None) -> None:
        """A tag and a number."""
        self.put(tag, there)
        data, mask = _varints(values)
        if there is not None:
            mask &= there[:, None]
        self.parts.append((data, mask))
        self.length += mask.sum(axis=1)

    def fixed(self, tag: bytes, values: Array, there: Array) -> None:
        """A tag and 8 bytes."""
        self.put(tag, there)
        data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"))
        self._add(data.view(np.uint8).reshape(-1, 8), there)

    def message(self, tag: bytes, inner: _Rows, there: Array | None = None) -> None:
        """A tag, a length and the rows of another one."""
        self.varint(tag, inner.length, there)
        for data, mask in inner.parts:
            kept = mask if there is None else mask & there[:, None]
            self.parts.append((data, kept))
        self.length += inner.length if there is None else np.where(there, inner.length, 0)

    def tobytes(self) -> bytes:
        """All rows, one behind the other."""
        data = np.concatenate([part for part, _ in self.parts], axis=1)
        mask = np.concatenate([part for _, part in self.parts], axis=1)
        return bytes(data[mask].tobytes())

    def _add(self, data: Array, there: Array | None) -> None:
        width = data.shape[1]
        if there is None:
            mask = np.ones(data.shape, np.bool_)
            self.length += width
        else:
            mask = np.repeat(there[:, None], width, axis=1)
            self.length += width * there
        self.parts.append((data, mask))


def _varints(values: Array) -> tuple[Array, NDArray[np.bool_]]:
    """(n, width) the bytes of numbers, and which of them are there."""
    rest = values.astype(np.uint64)
    width = max((int(rest.max()).bit_length() + 6) // 7, 1)
    data = np.empty((len(rest), width), np.uint8)
    mask = np.empty((len(rest), width), np.bool_)
    for place in range(width):
        mask[:, place] = rest != 0 if place else True
        low = (rest & np.uint64(127)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        data[:, place] = low | (rest != 0).astype(np.uint8) << 7
    return data, mask


def _encode(events: Array, sequence: int) -> bytes:
    count = len(events)
    event = _Rows(count)
    has_arg = events["arg"] > 0
    if has_arg.any():
        arg = _Rows(count)
        arg.varint(b"\x08", events["arg"])
        arg.varint(b"\x20", events["arg_value"].view(np.int64))
        event.message(b"\x22", arg, has_arg)
    event.varint(b"\x48", events["kind"])
    has_name = events["name"] > 0
    if has_name.any():
        event.varint(b"\x50", events["name"], has_name)
    event.varint(b"\x58", events["track"])
    is_counter = events["kind"] == COUNTER
    if is_counter.any():
        value = events["value"]
        with np.errstate(invalid="ignore"):
            is_whole = is_counter & (np.abs(value) < _EXACT) & (value == np.floor(value))
        whole = np.where(is_whole, value, 0).astype(np.int64)
        event.varint(b"\xf0\x01", whole, is_whole)
        is_other = is_counter & ~is_whole
        if is_other.any():
            event.fixed(b"\xe1\x02", value, is_other)
    for name in ("flow", "flow2"):
        has_flow = events[name] > 0
        if has_flow.any():
            event.fixed(b"\xf9\x02", events[name], has_flow)
    packet = _Rows(count)
    packet.varint(b"\x40", events["time"])
    packet.varint(b"\x50", np.full(count, sequence))
    packet.message(b"\x5a", event)
    packet.put(bytes([0x68, NEEDS_STATE]))
    trace = _Rows(count)
    trace.message(b"\x0a", packet)
    return trace.tobytes()


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
        for data in encode(events, SEQUENCE):
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
        packet.sequence_flags = NEEDS_STATE | (_CLEARED if afresh else 0)
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
