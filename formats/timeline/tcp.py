# SPDX-License-Identifier: Apache-2.0
"""The tracks of each connection, from the snapshots of the schema tcp.

    cwnd, ssthresh, in flight, window, srtt     counters: a value where it changes
    limit                                       slices: the intervals of `tcpkmon why`
    congestion state                            slices
    events                                      retransmissions, timeouts, resets: instants
    not known                                   slices: records are missing, which may be of it

Where a record is missing the counters have no value (NaN), and the congestion state ends: from the
place of the loss to the connection's next record.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.drops import REASON_BITS
from tcpkmon.formats.base.tcp import CA_STATES, Location
from tcpkmon.formats.timeline.model import (
    BEGIN,
    COUNTER,
    END,
    INSTANT,
    Array,
    Timeline,
    make,
    slices,
    title_of,
)

COUNTERS = (
    ("cwnd", "segments"), ("ssthresh", "segments"), ("in flight", "segments"),
    ("peer's window", "bytes"), ("srtt", "us"),
)  # fmt: skip
LIMIT, STATE, EVENTS, LOST = "limit", "congestion state", "events", "not known"
NOT_KNOWN = "records missing"
_LINES = (LIMIT, STATE, EVENTS, LOST)
INSTANTS = {
    Location.RETRANSMIT: ("retransmission", "seq"),
    Location.RETRANSMIT_SYNACK: ("SYN-ACK again", "times"),
    Location.RESET_SENT: ("reset sent", "reason"),
    Location.RESET_RECEIVED: ("reset received", ""),
    Location.RCVQ_FULL: ("receive queue full", "reason"),
    Location.DROPPED: ("packet dropped", "reason"),
    Location.SOCKET_ERROR: ("socket error", "errno"),
    Location.RTO: ("RTO", "retransmissions"),
    Location.LOSS_PROBE: ("loss probe", "retransmissions"),
    Location.ZERO_WINDOW_PROBE: ("zero window probe", "probes"),
    Location.CWND_UNDO: ("window reduction undone", ""),
    Location.REO_TIMEOUT: ("reordering timeout", "retransmissions"),
}
"""By location: the name, and what its callvalue is."""
_INFINITE = (1 << 31) - 1


class Connections:
    """Adds the tracks of all connections.

    end_ns: of a capture whose losses have no tracks of CPUs, when it ended: they get one of theirs.
    """

    def __init__(
        self, timeline: Timeline, source: why.Source, end_ns: int | None = None
    ) -> None:
        self._timeline, self._source, self._end_ns = timeline, source, end_ns
        self._tracks = np.zeros((0, len(COUNTERS) + len(_LINES)), np.uint64)
        self._limits = timeline.names([*why.LIMITS, *(f"{n}, uncertain" for n in why.LIMITS)])
        self._states = timeline.names([*CA_STATES, *(f"state {n}" for n in range(5, 128))])
        self._missing, self._count = timeline.name(NOT_KNOWN), timeline.name("records")
        self._instants = {
            location: (timeline.name(name), timeline.name(arg) if arg else 0)
            for location, (name, arg) in INSTANTS.items()
        }

    def write(self) -> None:
        """Read all snapshots, and write what they tell."""
        losses: why.Losses | None = None
        for block in self._source.blocks():
            if losses is None:
                losses = block.losses
                self._add_gaps(losses)
            self._timeline.records += len(block)
            self._add(block)

    def _add_gaps(self, losses: why.Losses) -> None:
        """What is missing in the capture, whichever connection it was of."""
        if not len(losses.missing):
            return
        self._timeline.sink.dropped()
        if self._end_ns is None:
            return
        timeline = self._timeline
        line = timeline.track(LOST, LOST, timeline.track("capture", "capture"))
        timeline.add(
            slices(losses.begin_ns, losses.end_ns, line, name=self._missing, arg=self._count,
                   arg_value=losses.missing)
        )  # fmt: skip

    def _add(self, block: why.Block) -> None:
        # The first record of a connection that is about to be opened has no port yet.
        made = [self._make_tracks(block, int(row)) for row in block.lasts]
        self._tracks = np.array(made, np.uint64)
        before_ns, before_lost = block.before(block.times_ns), block.before(block.lost)
        gap = np.flatnonzero(block.lost > before_lost)
        since = block.losses.since(before_lost[gap], before_ns[gap], block.times_ns[gap])
        self._add_counters(block, gap, since)
        self._add_states(block, gap, since)
        self._add_instants(block)
        self._timeline.add(
            slices(since, block.times_ns[gap], self._line(block.of_row[gap], LOST),
                   name=self._missing, arg=self._count,
                   arg_value=block.lost[gap] - before_lost[gap])
        )  # fmt: skip
        rows, _ = why.cut(block)
        sure = rows["certain_ns"] >= rows["end_ns"] - rows["start_ns"]
        name = self._limits[rows["limit"] + np.where(sure, 0, len(why.LIMITS))]
        self._timeline.add(
            slices(rows["start_ns"], rows["end_ns"], self._line(rows["place"], LIMIT), name=name)
        )

    def _make_tracks(self, block: why.Block, row: int) -> list[int]:
        timeline = self._timeline
        title = title_of(lambda name: block[name][row], int(block["conn_id"][row]))
        group = timeline.new_track(title)
        lines = [timeline.new_track(name, group) for name in _LINES]  # viewers show them on top
        return [*(timeline.new_track(name, group, unit) for name, unit in COUNTERS), *lines]

    def _line(self, places: Array, name: str) -> Array:
        return np.asarray(self._tracks[places, len(COUNTERS) + _LINES.index(name)])

    def _add_counters(self, block: why.Block, gap: Array, since: Array) -> None:
        found: list[Array] = []
        for number, values in enumerate(counters_of(block)):
            before = block.before(values, np.nan)
            before[gap] = np.nan
            with np.errstate(invalid="ignore"):
                changed = (values != before) & ~(np.isnan(values) & np.isnan(before))
            at = np.flatnonzero(changed)
            track = self._tracks[block.of_row, number]
            found.append(make(COUNTER, block.times_ns[at], track[at], value=values[at]))
            # Ahead of the values, as one may be of the same time.
            found.insert(0, make(COUNTER, np.minimum(since + 1, block.times_ns[gap]), track[gap],
                                 value=np.nan))  # fmt: skip
            # Nothing is known of a counter behind the connection's last record.
            ends = block.lasts[~np.isnan(values[block.lasts])]
            found.append(make(COUNTER, block.times_ns[ends] + 1, track[ends], value=np.nan))
        self._timeline.add(np.concatenate(found))

    def _add_states(self, block: why.Block, gap: Array, since: Array) -> None:
        state = np.where(
            block["location"] == Location.CONG_STATE, block["callvalue"], block["ca_state"]
        ).astype(np.int64)  # fmt: skip
        state = np.clip(state, 0, 127)
        before = block.before(state, -1)
        turns = state != before
        turns[gap] = True
        at = np.flatnonzero(turns)
        ends = block.times_ns.copy()
        ends[gap] = since
        events = np.empty((len(at), 2), make(END, at[:0], 0).dtype)
        line = self._line(block.of_row[at], STATE)
        events[:, 0] = make(END, np.maximum(ends[at], 0), line)
        events[:, 1] = make(BEGIN, block.times_ns[at], line, name=self._states[state[at]])
        flat = events.reshape(-1)
        was_open = np.repeat(before[at] >= 0, 2) | (flat["kind"] == BEGIN)
        self._timeline.add(flat[was_open])
        last = np.arange(len(block.groups))
        self._timeline.add(make(END, block.times_ns[block.lasts], self._line(last, STATE)))

    def _add_instants(self, block: why.Block) -> None:
        for number, (name, arg) in self._instants.items():
            at = np.flatnonzero(block["location"] == number)
            value = block["callvalue"][at].astype(np.int64)
            if number == Location.DROPPED:
                value &= REASON_BITS
            self._timeline.add(
                make(INSTANT, block.times_ns[at], self._line(block.of_row[at], EVENTS), name=name,
                     arg=arg, arg_value=value if arg else 0)
            )  # fmt: skip


def counters_of(block: why.Block) -> Iterator[Array]:
    """The values (n,) of COUNTERS; NaN where the kernel has none."""
    yield block["snd_cwnd_segs"].astype(np.float64)
    threshold = block["snd_ssthresh"].astype(np.float64)
    yield np.where(threshold >= _INFINITE, np.nan, threshold)
    flight = why.in_flight(block.rows).astype(np.float64)
    yield np.maximum(flight, 0)
    yield block["snd_wnd"].astype(np.float64)
    srtt = block["srtt_us"].astype(np.float64)
    yield np.where(srtt == 0, np.nan, srtt)
