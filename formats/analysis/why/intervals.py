# SPDX-License-Identifier: Apache-2.0
"""Runs of one limit: the time of each connection cut where what limits it changes.

    snapshots of a connection    s0      s1      s2      s3      s4
    steps between them              app     app     cwnd    cwnd
    intervals                    |     app      |     cwnd     |

A step belongs to the snapshot at its end. Memory is that of the connections that are open, and of
one piece of the capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.analysis.why.limits import NUMBER, classify, in_flight, is_paced, unsent
from formats.analysis.why.snapshots import Snapshots

Array = NDArray[Any]

INTERVAL = np.dtype(
    [
        ("conn_id", "u8"), ("start_ns", "i8"), ("end_ns", "i8"), ("limit", "i1"),
        ("bytes_sent", "i8"), ("bytes_acked", "i8"), ("bytes_received", "i8"), ("records", "i8"),
        ("lost_records", "i8"), ("cwnd_end", "u4"), ("inflight_end", "i4"), ("snd_wnd_end", "u4"),
        ("notsent_end", "i8"), ("srtt_end_us", "u4"), ("mss", "u4"), ("pacing_rate", "u8"),
        ("ca_state", "i1"),
    ]
)  # fmt: skip
"""A row of the table `intervals`. start_ns, end_ns: CLOCK_MONOTONIC. limit: a number of LIMITS.
cwnd_end in segments. lost_records: missing somewhere in the capture in that time; where it is not 0
the interval is not certain."""
_SUMS = ("bytes_sent", "bytes_acked", "bytes_received", "records", "lost_records")
_ENDS = ("end_ns", "cwnd_end", "inflight_end", "snd_wnd_end", "notsent_end", "srtt_end_us", "mss",
         "pacing_rate", "ca_state")  # fmt: skip
_CARRIED = (
    "conn_id", "snd_max", "snd_una", "rcv_nxt",
)  # fmt: skip


class Cutter:
    """Cuts snapshots, which come piece by piece, into intervals.

    begun, ended: after all pieces, the first and the last snapshot of each connection [ns].
    """

    def __init__(self) -> None:
        self._last: dict[str, Array] | None = None
        self._open = np.empty(0, INTERVAL)

    def add(self, piece: Snapshots) -> Array:
        """The intervals that ended in this piece: a structured array of INTERVAL."""
        if not len(piece):
            return self._open[:0]
        steps = self._steps(piece)
        merged = _merge(np.concatenate([self._open, steps]))
        is_last = np.ones(len(merged), np.bool_)
        is_last[:-1] = merged["conn_id"][1:] != merged["conn_id"][:-1]
        self._open = merged[is_last]
        return _settle(merged[~is_last])

    def finish(self) -> Array:
        """The intervals that were open at the end."""
        rest, self._open = self._open, self._open[:0]
        return _settle(rest)

    def _steps(self, piece: Snapshots) -> Array:
        """An interval for each snapshot that has one before it."""
        ids = piece["conn_id"].astype(np.uint64)
        order = np.argsort(ids, kind="stable")
        columns = {name: values[order] for name, values in piece.columns.items()}
        now = {
            **{name: columns[name] for name in _CARRIED},
            "time": piece.times_ns[order],
            "lost": piece.lost[order],
        }
        now["conn_id"] = ids[order]
        before, known = self._before(now)
        steps = np.zeros(int(known.sum()), INTERVAL)
        at = {name: values[known] for name, values in now.items()}
        was = {name: values[known] for name, values in before.items()}
        columns = {name: values[known] for name, values in columns.items()}
        steps["conn_id"] = at["conn_id"]
        steps["start_ns"], steps["end_ns"] = was["time"], np.maximum(at["time"], was["time"])
        for name, column in (("bytes_sent", "snd_max"), ("bytes_acked", "snd_una"),
                             ("bytes_received", "rcv_nxt")):  # fmt: skip
            steps[name] = advance(at[column], was[column])
        steps["records"] = 1
        steps["lost_records"] = at["lost"] - was["lost"]
        steps["limit"] = classify(columns)
        steps["cwnd_end"] = columns["snd_cwnd_segs"]
        steps["inflight_end"] = np.clip(in_flight(columns), -(1 << 31), (1 << 31) - 1)
        steps["snd_wnd_end"] = columns["snd_wnd"]
        steps["notsent_end"] = unsent(columns)
        steps["srtt_end_us"] = columns["srtt_us"]
        steps["mss"] = columns["mss"]
        steps["pacing_rate"] = columns["pacing_rate"]
        steps["ca_state"] = np.clip(columns["ca_state"], 0, 127)
        return steps

    def _before(self, now: dict[str, Array]) -> tuple[dict[str, Array], Array]:
        """For each snapshot the one before it of its connection, and whether there is one."""
        ids = now["conn_id"]
        first = np.ones(len(ids), np.bool_)
        first[1:] = ids[1:] != ids[:-1]
        known = ~first
        before = {name: np.concatenate((values[:1], values[:-1])) for name, values in now.items()}
        at = np.flatnonzero(first)
        if self._last is not None:
            place = np.minimum(
                np.searchsorted(self._last["conn_id"], ids[at]), len(self._last["conn_id"]) - 1
            )
            hit = self._last["conn_id"][place] == ids[at]
            for name, values in before.items():
                values[at[hit]] = self._last[name][place[hit]]
            known[at[hit]] = True
        self._remember(now, at)
        return before, known

    def _remember(self, now: dict[str, Array], firsts: Array) -> None:
        """Keep the last snapshot of each connection, ids ascending."""
        lasts = np.append(firsts[1:], len(now["conn_id"])) - 1
        latest = {name: values[lasts] for name, values in now.items()}
        if self._last is None:
            self._last = latest
            return
        old = ~np.isin(self._last["conn_id"], latest["conn_id"])
        joined = {
            name: np.concatenate([self._last[name][old], latest[name]]) for name in latest
        }
        order = np.argsort(joined["conn_id"], kind="stable")
        self._last = {name: values[order] for name, values in joined.items()}


def cut(pieces: Iterable[Snapshots]) -> Iterator[Array]:
    """All intervals of a capture, as arrays of INTERVAL; those of a connection in time order."""
    cutter = Cutter()
    for piece in pieces:
        yield cutter.add(piece)
    yield cutter.finish()


def advance(now: Array, before: Array) -> Array:
    """(n,) int64 how far 32-bit sequence numbers went forward; steps back are 0."""
    step = (now.astype(np.uint32) - before.astype(np.uint32)).astype(np.int32).astype(np.int64)
    found: Array = np.maximum(step, 0)
    return found


def _merge(rows: Array) -> Array:
    """Intervals by connection, those of one limit in a row as one."""
    order = np.argsort(rows["conn_id"], kind="stable")
    rows = rows[order]
    if not len(rows):
        return rows
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows["conn_id"][1:] != rows["conn_id"][:-1]) | (
        rows["limit"][1:] != rows["limit"][:-1]
    )
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(rows)) - 1
    merged = rows[starts]
    for name in _SUMS:
        merged[name] = np.add.reduceat(rows[name], starts)
    for name in _ENDS:
        merged[name] = rows[name][ends]
    return merged


def _settle(rows: Array) -> Array:
    """Whole intervals: those that were taken for paced, and were not, are unknown."""
    guessed = np.flatnonzero(rows["limit"] == NUMBER["pacing"])
    spans = rows["end_ns"][guessed] - rows["start_ns"][guessed]
    rates = rows["pacing_rate"][guessed].astype(np.float64)
    confirmed = is_paced(rows["bytes_sent"][guessed], spans, rates, rows["mss"][guessed])
    rows["limit"][guessed[~confirmed]] = NUMBER["unknown"]
    return rows
