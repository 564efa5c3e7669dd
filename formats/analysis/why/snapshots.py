# SPDX-License-Identifier: Apache-2.0
"""The snapshots of the schema tcp, of a PSC file or of Klogger logs, as arrays in time order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import UsageError
from formats.klogger.batch import LogBatch
from formats.klogger.logs import Logs
from formats.psc.reader import Capture
from formats.registry import format_of

Array = NDArray[Any]
SNAPSHOT = "SNAPSHOT"
_LISTEN = 10
NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "ca_state",
    "snd_una", "snd_max", "snd_sb_cc", "snd_wnd", "snd_cwnd_segs", "snd_ssthresh", "mss",
    "packets_out", "sacked_out", "lost_out", "retrans_out", "sk_wmem_bytes", "sb_hiwat",
    "sk_wmem_alloc", "pacing_rate", "srtt_us", "min_rtt_us", "rcv_nxt", "rcv_sb_cc", "rcv_wnd",
    "sk_rcvbuf", "seg_len",
)  # fmt: skip
"""What a capture must have. The default columns are enough."""
OPTIONAL = ("pid", "comm", "ca_name", "bytes_retrans", "total_retrans")


@dataclass(frozen=True)
class Snapshots:
    """n snapshots. columns: by name, (n,). times_ns: (n,) int64, CLOCK_MONOTONIC. lost: (n,) int64,
    how many records of the capture are missing before each one, since its start."""

    columns: dict[str, Array]
    times_ns: NDArray[np.int64]
    lost: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.times_ns)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]


class Source:
    """A capture that is read snapshot by snapshot; use `with`.

    Raises UsageError where it lacks a column of NEEDED, FileError, DamagedError. lost and complete:
    see formats.base.reader.Reader; they are known when all snapshots were read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = format_of(path).open(path)
        self.names: Sequence[str] = ()
        try:
            self._check()
        except BaseException:
            self.reader.close()
            raise

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def _check(self) -> None:
        reader = self.reader
        if isinstance(reader, Capture):
            known = {name for name in reader.names if name}
            usable = reader.controls_fit and reader.columns_by_name.get("time_ns") is not None
        elif isinstance(reader, Logs):
            event = reader.format.find_event(SNAPSHOT)
            known = {field.name for field in event.fields} if event is not None else set()
            usable = True
        else:
            known, usable = set(), False
        missing = [name for name in NEEDED if name not in known]
        if missing or not usable:
            lacks = ", ".join(missing[:5]) or "time_ns"
            raise UsageError(
                f"{reader.path} lacks what tells the limits of a connection: {lacks}"
                f"{' and more' if len(missing) > 5 else ''}",
                "capture the schema tcp with --columns default, full or all",
            )
        self.names = [*NEEDED, *(name for name in OPTIONAL if name in known)]

    def read(self) -> Iterator[Snapshots]:
        """All snapshots with a connection, some ten thousand at a time."""
        if isinstance(self.reader, Capture):
            return self._read_capture(self.reader)
        assert isinstance(self.reader, Logs)
        return self._read_logs(self.reader)

    def _read_capture(self, capture: Capture) -> Iterator[Snapshots]:
        before, total = 0, 0
        for piece in capture.chunks():
            columns = capture.columns(self.names, piece.start, piece.stop)
            numbers = capture.seq(piece.start, piece.stop).astype(np.int64)
            times = capture.mono_ns(piece.start, piece.stop)
            assert times is not None
            steps = np.diff(numbers, prepend=before) - 1
            lost = total + np.cumsum(np.maximum(steps, 0))
            before, total = int(numbers[-1]), int(lost[-1])
            is_control = capture.control(piece.start, piece.stop)
            keep = np.flatnonzero(~is_control & _is_connection(columns))
            yield Snapshots(
                {name: values[keep] for name, values in columns.items()}, times[keep], lost[keep]
            )

    def _read_logs(self, logs: Logs) -> Iterator[Snapshots]:
        last: dict[int, int] = {}
        total = 0
        for _, stream in logs.streams():
            for batch, _ in stream:
                missing = _missing(batch, last)
                lost = total + np.cumsum(missing)
                total = int(lost[-1]) if len(lost) else total
                at = batch.where(SNAPSHOT)
                rows = batch.rows(SNAPSHOT, at)
                columns = {
                    name: np.ascontiguousarray(rows[name], rows[name].dtype.newbyteorder("="))
                    for name in self.names
                }
                keep = np.flatnonzero(_is_connection(columns))
                yield Snapshots(
                    {name: values[keep] for name, values in columns.items()},
                    batch.times_ns[at][keep].astype(np.int64),
                    lost[at][keep],
                )


def _is_connection(columns: dict[str, Array]) -> NDArray[np.bool_]:
    """Snapshots of connections that are known; those of listeners are none."""
    found: NDArray[np.bool_] = (columns["conn_id"] != 0) & (columns["state"] != _LISTEN)
    return found


def _missing(batch: LogBatch, last: dict[int, int]) -> NDArray[np.int64]:
    """(n,) how many serials of the same CPU are missing directly before each record."""
    serials = batch.serials.astype(np.int64)
    found = np.zeros(len(batch), np.int64)
    for cpu in np.unique(batch.cpus).tolist():
        at = np.flatnonzero(batch.cpus == cpu)
        mine = serials[at]
        found[at] = np.maximum(np.diff(mine, prepend=last.get(cpu, 0)) - 1, 0)
        last[cpu] = int(mine[-1])
    return found
