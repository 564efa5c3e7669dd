# SPDX-License-Identifier: Apache-2.0
"""The times of records: seconds for the graphs, text for -T and -D."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.times import format_ns, format_utc
from tcpkmon.formats.lines import Cell, Kind
from tcpkmon.formats.pmgraph.arrays import Array, Columns
from tcpkmon.formats.psc.lines import number_cell
from tcpkmon.formats.psc.reader import Capture


class Seconds:
    """The time axis of the graphs: seconds since the file's first record; ahead_ns are added.

    Uses the monotonic clock if the file has it, since the wall clock may step. A segment repeats
    the last records that earlier ones have of open connections: they hold from its begin on, where
    the axis begins, however old they are.
    """

    def __init__(self, capture: Capture, ahead_ns: int = 0) -> None:
        mono = capture.columns_by_name.get("time_ns")
        self.column = "time_ns" if mono is not None and mono.is_integer else "time"
        if self.column not in capture.names:
            raise FileError(
                f"{capture.path} has no column time, so there is nothing to graph against"
            )
        self._capture = capture
        self._zero = np.int64(0)
        self._ahead = ahead_ns / 1e9
        if len(capture):
            first = capture.column(self.column, 0, 1)
            if first.dtype.kind not in "iu":
                raise FileError(f"{capture.path}: the column time is no struct timeval")
            self._zero = first.astype(np.int64)[0]

    def of(self, columns: Columns) -> Array:
        """(n,) float64 seconds of the records of `columns`, which must include self.column."""
        seconds: Array = (columns[self.column].astype(np.int64) - self._zero) / 1e9
        if self.column == "time_ns":
            seconds = np.maximum(seconds, 0.0)
        return seconds + self._ahead

    def of_mono(self, mono_ns: int) -> float:
        """The seconds of a reading of CLOCK_MONOTONIC, by the clocks at the start."""
        if self.column != "time_ns":
            start, real_ns, _ = self._capture.clock or (0, 0, 0)
            mono_ns += real_ns - start
        return (mono_ns - int(self._zero)) / 1e9 + self._ahead

    def at(self, start: int, stop: int) -> Array:
        """(stop - start,) float64 seconds of the records from start to stop."""
        return self.of(self._capture.columns((self.column,), start, stop))


class ClockText:
    """Writes times in a format of --time: epoch, iso (UTC), rel (to the first record) or mono."""

    def __init__(self, capture: Capture, clock: str = "epoch") -> None:
        self._capture = capture
        self._clock = clock
        self._digits = 9 if clock == "mono" else 6
        self._zero = 0
        mono = capture.columns_by_name.get("time_ns")
        if clock == "mono" and (mono is None or not mono.is_integer):
            raise UsageError(
                f"--time mono: {capture.path} has no column time_ns", "try --time epoch or rel"
            )
        if clock == "rel" and len(capture):
            self._zero = int(capture.time_ns(0, 1)[0])

    @property
    def column(self) -> str:
        """The file's column that is printed."""
        return "time_ns" if self._clock == "mono" else "time"

    def cell(self, before: str) -> Cell:
        """The cell that writes self.column."""
        column = self._capture.columns_by_name[self.column]
        if self._clock == "iso":
            return number_cell(self._capture, column, before, Kind.UTC)
        return number_cell(
            self._capture, column, before, Kind.SECONDS, zero=self._zero, digits=self._digits
        )

    def at(self, rows: Sequence[int]) -> list[str]:
        """The times of these rows as text. The rows should be near each other."""
        column = self._capture.find_column(self.column)
        if not (column.is_time or column.is_integer):
            raise FileError(f"{self._capture.path}: the column {self.column} holds no times")
        first = min(rows)
        times = self._capture.column(self.column, first, max(rows) + 1)
        chosen = times[np.array(rows) - first].astype(np.int64) - self._zero
        if self._clock == "iso":
            return format_utc(chosen)
        return format_ns(chosen, self._digits)
