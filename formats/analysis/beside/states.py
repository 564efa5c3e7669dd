# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a capture with their real times and the limit of each moment, and as words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, join
from tcpkmon.formats.analysis.why import LIMITS, Source, cut
from tcpkmon.formats.analysis.why.limits import NUMBER, in_flight, runs_bbr
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.tcp import CA_STATES, STATES, Location
from tcpkmon.formats.psc.columns import TIME
from tcpkmon.formats.psc.reader import Capture

SEGMENT = ("seg_seq", "seg_len", "seg_flags")
"""Columns without which a record tells of no segment. The default columns have them."""
FURTHER = ("seg_ack", "rcv_wscale", "advmss", "cpu", "copied_seq", "write_seq", "rttvar_us")
"""What more is told where the capture has it."""
NO_LIMIT = len(LIMITS)
"""The number of the limit of a connection's first snapshot: nothing is known of the time before."""
LIMIT_NAMES = (*LIMITS, "-")
_INFINITE = (1 << 31) - 1
_NO_RTT = (1 << 32) - 1
_ARRAYS = ("real_ns", "mono_ns", "lost", "limit", "seq")


@dataclass
class Rows:
    """n snapshots in time order. columns: by name, (n,). real_ns: (n,) since the epoch. mono_ns:
    CLOCK_MONOTONIC. lost: (n,) records of the capture that are missing before each. limit: (n,) a
    number of LIMIT_NAMES. seq: (n,) their numbers, 0 in Klogger logs."""

    columns: dict[str, Array]
    real_ns: Array
    mono_ns: Array
    lost: Array
    limit: Array
    seq: Array

    def __len__(self) -> int:
        return len(self.real_ns)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, at: Array) -> Rows:
        """Those in these rows."""
        columns = {name: values[at] for name, values in self.columns.items()}
        return Rows(columns, *(getattr(self, name)[at] for name in _ARRAYS))

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """Rows after rows; at least one of them."""
        columns = join([part.columns for part in parts])
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS)
        return Rows(columns, *arrays)


def read(source: Source) -> Iterator[Rows]:
    """All snapshots of connections. UsageError where no times of day, or no segments, are told."""
    missing = [name for name in SEGMENT if name not in source.known]
    if missing:
        raise UsageError(
            f"{source.reader.path} does not tell segments: it lacks {', '.join(missing)}",
            "capture the schema tcp with --columns default, full or all",
        )
    more = [name for name in (*SEGMENT, *FURTHER) if name in source.known]
    ahead = source.about().get("ahead_ns")
    has_times = False
    if isinstance(source.reader, Capture):
        time = source.reader.columns_by_name.get(TIME)
        has_times = time is not None and bool(time.is_time)
    if has_times:
        more.append(TIME)
    elif ahead is None:
        raise UsageError(f"{source.reader.path} does not tell the time of day")
    source.names = list(dict.fromkeys((*source.names, *more)))
    return _read(source, has_times, ahead)


def _read(source: Source, has_times: bool, ahead: Any) -> Iterator[Rows]:
    limits = _limits(source)
    low = 0
    for piece in source.read():
        if not len(piece):
            continue
        real = piece.columns.pop(TIME) if has_times else piece.times_ns + ahead
        seq = piece.seq if piece.seq is not None else np.zeros(len(piece), np.int64)
        limit = limits[low : low + len(piece)]
        low += len(piece)
        yield Rows(piece.columns, real.astype(np.int64), piece.times_ns, piece.lost, limit, seq)


def _limits(source: Source) -> Array:
    """(n,) the limit of each snapshot of the capture, in the order of the file."""
    found = []
    for block in source.blocks():
        steps = cut(block)[1]
        limit = steps.limit.astype(np.int8)
        # A single step is too short to tell whether pacing held back: see classify().
        guess = (limit == NUMBER["pacing"]) & ~steps.paces
        guess &= ~runs_bbr(block.rows, slice(None))
        limit[guess] = NUMBER["unknown"]
        limit[limit < 0] = NO_LIMIT
        found.append((block.at, limit))
    limits = np.zeros(sum(len(at) for at, _ in found), np.int8)
    for at, limit in found:
        limits[at] = limit
    return limits


LOCATIONS = {
    number: name for name, number in vars(Location).items()
    if name.isupper() and (number < Location.START or number == Location.EXISTING)
}  # fmt: skip


def words(rows: Rows) -> list[str]:
    """A line for each snapshot: where it was taken, and the state, as name=value."""
    columns = (
        rows["location"], rows["conn_id"], rows["state"], rows["snd_cwnd_segs"],
        rows["snd_ssthresh"], rows["srtt_us"], rows["min_rtt_us"], in_flight(rows.columns),
        rows["lost_out"], rows["retrans_out"], rows["snd_wnd"], rows["rcv_wnd"], rows["ca_state"],
        rows.limit,
    )  # fmt: skip
    return [
        f"{LOCATIONS.get(where) or where} limit={LIMIT_NAMES[limit]} cwnd={cwnd} "
        f"ssthresh={'inf' if thresh >= _INFINITE else thresh} srtt_us={srtt or '-'} "
        f"min_rtt_us={least if least != _NO_RTT else '-'} in_flight={flight} lost={lost} "
        f"retrans={again} snd_wnd={snd_wnd} rcv_wnd={rcv_wnd} ca_state={_name(CA_STATES, ca)} "
        f"state={_name(STATES, state)} conn={conn}"
        for where, conn, state, cwnd, thresh, srtt, least, flight, lost, again, snd_wnd, rcv_wnd,
        ca, limit in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip


def _name(names: Sequence[str], value: int) -> str:
    return names[value] if value < len(names) else str(value)
