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
    """Adds the tracks of all connections, piece by piece.

    end_ns: of a capture whose losses have no tracks of CPUs, when it ended: they get one of theirs.
    """

    def __init__(
        self, timeline: Timeline, source: why.Source, end_ns: int | None = None
    ) -> None:
        self._timeline, self._source, self._end_ns = timeline, source, end_ns
        self._places = why.Places()
        self._cutter = why.Cutter(self._places)
        self._tracks = np.zeros((0, len(COUNTERS) + len(_LINES)), np.uint64)
        self._values = np.zeros((0, len(COUNTERS)))
        self._state = np.zeros(0, np.int64)  # -1: none is open
        self._time, self._lost = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._gap_sums, self._gap_ns = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._last_lost = self._last_ns = 0
        self._limits = timeline.names([*why.LIMITS, *(f"{n}, uncertain" for n in why.LIMITS)])
        self._states = timeline.names([*CA_STATES, *(f"state {n}" for n in range(5, 128))])
        self._missing, self._count = timeline.name(NOT_KNOWN), timeline.name("records")
        self._instants = {
            location: (timeline.name(name), timeline.name(arg) if arg else 0)
            for location, (name, arg) in INSTANTS.items()
        }

    def write(self) -> None:
        """Read all snapshots, and write what they tell."""
        for piece in self._source.read():
            if len(piece):
                self._gaps(piece)
                self._timeline.records += len(piece)
                self._piece(why.Grouped(piece, self._places))
        if self._source.placed > self._last_lost:  # behind the last snapshot
            self._timeline.sink.dropped()
            end = max(self._last_ns, self._end_ns or 0)
            self._add_gaps(
                np.array([self._last_ns]), np.array([end]),
                np.array([self._source.placed - self._last_lost]),
            )  # fmt: skip
        self._add_limits(self._cutter.finish())
        open_ = np.flatnonzero(self._state >= 0)
        self._timeline.add(make(END, self._time[open_], self._line(open_, STATE)))
        # Nothing is known of a counter behind the connection's last record.
        for number in range(len(COUNTERS)):
            track = self._tracks[: len(self._places), number]
            last = self._values[: len(self._places), number]
            told = np.flatnonzero(~np.isnan(last))
            self._timeline.add(
                make(COUNTER, self._time[told] + 1, track[told], value=np.nan)
            )

    def _gaps(self, piece: why.Snapshots) -> None:
        """Remember where in the capture records are missing: between which times."""
        lost = np.concatenate([[self._last_lost], piece.lost])
        at = np.flatnonzero(lost[1:] > lost[:-1])
        if len(at):
            times = np.concatenate([[self._last_ns or piece.times_ns[0]], piece.times_ns])
            self._gap_sums = np.append(self._gap_sums, lost[at])
            self._gap_ns = np.append(self._gap_ns, times[at])
            self._timeline.sink.dropped()
            self._add_gaps(times[at], times[at + 1], lost[at + 1] - lost[at])
        self._last_lost, self._last_ns = int(lost[-1]), int(piece.times_ns[-1])

    def _add_gaps(self, begin: Array, end: Array, missing: Array) -> None:
        """What is missing in the capture, whichever connection it was of."""
        if self._end_ns is None:
            return
        timeline = self._timeline
        line = timeline.track(LOST, LOST, timeline.track("capture", "capture"))
        timeline.add(
            slices(begin, end, line, name=self._missing, arg=self._count, arg_value=missing)
        )

    def _piece(self, piece: why.Grouped) -> None:
        old = len(self._time)
        count = len(self._places)
        if count > old:
            self._grow(piece, old, count)
        rows, places = np.arange(len(piece)), piece.of_row
        first = piece.is_first
        before_ns, before_lost = np.empty_like(piece.times), np.empty_like(piece.lost)
        before_ns[1:], before_lost[1:] = piece.times[:-1], piece.lost[:-1]
        before_ns[first], before_lost[first] = self._time[piece.places], self._lost[piece.places]
        is_new = np.zeros(len(piece), np.bool_)
        is_new[piece.firsts] = self._lost[piece.places] < 0
        gap = np.flatnonzero((piece.lost > before_lost) & ~is_new)
        since = self._since(before_ns[gap], before_lost[gap], piece.times[gap])
        self._add_counters(piece, gap, since)
        self._add_states(piece, gap, since, before_ns)
        self._add_instants(piece, rows, places)
        self._timeline.add(
            slices(since, piece.times[gap], self._line(places[gap], LOST), name=self._missing,
                   arg=self._count, arg_value=piece.lost[gap] - before_lost[gap])
        )  # fmt: skip
        self._add_limits(self._cutter.add_grouped(piece)[0])
        self._time[piece.places] = piece.times[piece.lasts]
        self._lost[piece.places] = piece.lost[piece.lasts]

    def _since(self, before_ns: Array, before_lost: Array, now: Array) -> Array:
        """When what is missing begins: at the first place where records are missing after the
        connection's last one."""
        place = np.searchsorted(self._gap_sums, before_lost)
        place = np.minimum(place, max(len(self._gap_ns) - 1, 0))
        if not len(self._gap_ns):
            return before_ns
        return np.clip(self._gap_ns[place], before_ns, np.maximum(now, before_ns))

    def _grow(self, piece: why.Grouped, old: int, count: int) -> None:
        """The tracks of connections that are new."""
        new = np.flatnonzero(piece.places >= old)
        order = new[np.argsort(piece.places[new])]
        # The first record of a connection that is about to be opened has no port yet.
        made = [self._make_tracks(piece, int(row)) for row in piece.lasts[order]]
        self._tracks = np.concatenate([self._tracks, np.array(made, np.uint64)])
        more = count - old
        self._values = np.concatenate([self._values, np.full((more, len(COUNTERS)), np.nan)])
        self._state = np.append(self._state, np.full(more, -1))
        self._time = np.append(self._time, np.zeros(more, np.int64))
        self._lost = np.append(self._lost, np.full(more, -1))

    def _make_tracks(self, piece: why.Grouped, row: int) -> list[int]:
        timeline = self._timeline
        title = title_of(lambda name: piece[name][row], int(piece["conn_id"][row]))
        group = timeline.new_track(title)
        lines = [timeline.new_track(name, group) for name in _LINES]  # viewers show them on top
        return [*(timeline.new_track(name, group, unit) for name, unit in COUNTERS), *lines]

    def _line(self, places: Array, name: str) -> Array:
        return np.asarray(self._tracks[places, len(COUNTERS) + _LINES.index(name)])

    def _add_counters(self, piece: why.Grouped, gap: Array, since: Array) -> None:
        found: list[Array] = []
        for number, values in enumerate(counters_of(piece)):
            before = np.empty_like(values)
            before[1:] = values[:-1]
            before[piece.firsts] = self._values[piece.places, number]
            before[gap] = np.nan
            with np.errstate(invalid="ignore"):
                changed = (values != before) & ~(np.isnan(values) & np.isnan(before))
            at = np.flatnonzero(changed)
            track = self._tracks[piece.of_row, number]
            found.append(make(COUNTER, piece.times[at], track[at], value=values[at]))
            # Ahead of the values, as one may be of the same time.
            found.insert(0, make(COUNTER, np.minimum(since + 1, piece.times[gap]), track[gap],
                                 value=np.nan))  # fmt: skip
            self._values[piece.places, number] = values[piece.lasts]
        self._timeline.add(np.concatenate(found))

    def _add_states(
        self, piece: why.Grouped, gap: Array, since: Array, before_ns: Array
    ) -> None:
        state = np.where(
            piece["location"] == Location.CONG_STATE, piece["callvalue"], piece["ca_state"]
        ).astype(np.int64)  # fmt: skip
        state = np.clip(state, 0, 127)
        before = np.empty_like(state)
        before[1:] = state[:-1]
        before[piece.firsts] = self._state[piece.places]
        turns = state != before
        turns[gap] = True
        at = np.flatnonzero(turns)
        ends = piece.times.copy()
        ends[gap] = since
        events = np.empty((len(at), 2), make(END, at[:0], 0).dtype)
        line = self._line(piece.of_row[at], STATE)
        events[:, 0] = make(END, np.maximum(ends[at], 0), line)
        events[:, 1] = make(BEGIN, piece.times[at], line, name=self._states[state[at]])
        flat = events.reshape(-1)
        was_open = np.repeat(before[at] >= 0, 2) | (flat["kind"] == BEGIN)
        self._state[piece.places] = state[piece.lasts]
        self._timeline.add(flat[was_open])

    def _add_instants(self, piece: why.Grouped, rows: Array, places: Array) -> None:
        location = piece["location"]
        for number, (name, arg) in self._instants.items():
            at = rows[location == number]
            value = piece["callvalue"][at].astype(np.int64)
            self._timeline.add(
                make(INSTANT, piece.times[at], self._line(places[at], EVENTS), name=name, arg=arg,
                     arg_value=value if arg else 0)
            )  # fmt: skip

    def _add_limits(self, rows: Array) -> None:
        sure = rows["certain_ns"] >= rows["end_ns"] - rows["start_ns"]
        name = self._limits[rows["limit"] + np.where(sure, 0, len(why.LIMITS))]
        self._timeline.add(
            slices(rows["start_ns"], rows["end_ns"], self._line(rows["place"], LIMIT), name=name)
        )


def counters_of(piece: why.Grouped) -> Iterator[Array]:
    """The values (n,) of COUNTERS; NaN where the kernel has none."""
    yield piece["snd_cwnd_segs"].astype(np.float64)
    threshold = piece["snd_ssthresh"].astype(np.float64)
    yield np.where(threshold >= _INFINITE, np.nan, threshold)
    flight = why.in_flight(piece.columns).astype(np.float64)
    yield np.maximum(flight, 0)
    yield piece["snd_wnd"].astype(np.float64)
    srtt = piece["srtt_us"].astype(np.float64)
    yield np.where(srtt == 0, np.nan, srtt)
