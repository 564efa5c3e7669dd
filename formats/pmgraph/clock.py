# SPDX-License-Identifier: Apache-2.0
"""Times of records as pmgraph shows them: seconds for the graphs, text for -T and -D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from formats.base.errors import FileError, UsageError
from formats.base.times import format_ns, format_utc
from formats.lines import Cell, Kind
from formats.psc.lines import number_cell

if TYPE_CHECKING:
    from formats.psc.reader import Capture

Array = npt.NDArray[Any]


class Seconds:
    """Time axis of the graphs: seconds since the file's first record.

    Of the monotonic clock where the file has it (so that a step of the wall clock bends no
    curve), else of the wall clock.
    """

    def __init__(self, capture: Capture) -> None:
        mono = capture.columns_by_name.get("time_ns")
        self.column = "time_ns" if mono is not None and mono.is_integer else "time"
        if self.column not in capture.names:
            raise FileError(
                f"{capture.path} has no column time, so there is nothing to graph against"
            )
        self._capture = capture
        self._zero = np.int64(0)
        if len(capture):
            self._zero = self._check(capture.column(self.column, 0, 1)).astype(np.int64)[0]

    def _check(self, times: Array) -> Array:
        if times.dtype.kind not in "iu":
            raise FileError(f"{self._capture.path}: the column time is no struct timeval")
        return times

    def of(self, columns: Mapping[str, Array]) -> Array:
        """Seconds of records of which `columns` hold self.column, float64."""
        seconds: Array = (columns[self.column].astype(np.int64) - self._zero) / 1e9
        return seconds

    def at(self, start: int, stop: int) -> Array:
        """Seconds of the records start..stop, float64."""
        return self.of(self._capture.columns((self.column,), start, stop))


class ClockText:
    """Writes times as --time says: epoch, iso (UTC), rel (to the first record) or mono."""

    def __init__(self, capture: Capture, clock: str = "epoch") -> None:
        self._capture = capture
        self._clock = clock
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
        """The cell of self.column, a time or a number of ns."""
        column = self._capture.columns_by_name[self.column]
        if self._clock == "iso":
            return number_cell(self._capture, column, before, Kind.UTC)
        digits = 9 if self._clock == "mono" else 6
        return number_cell(
            self._capture, column, before, Kind.SECONDS, zero=self._zero, digits=digits
        )

    def at(self, rows: Sequence[int]) -> list[str]:
        """Times of records that are near each other, by their rows, as text."""
        first = min(rows)
        times = self._capture.column(self.column, first, max(rows) + 1)
        chosen = times[np.array(rows) - first].astype(np.int64) - self._zero
        if self._clock == "iso":
            return format_utc(chosen)
        return format_ns(chosen, 9 if self._clock == "mono" else 6)
