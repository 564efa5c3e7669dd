# SPDX-License-Identifier: Apache-2.0
"""The reader of PSC files: numbered snapshots with their times, and control entries."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import control as controls
from tcpkmon.formats.base import facts
from tcpkmon.formats.base.analysed import Analysed
from tcpkmon.formats.base.changes import Off, Switches
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reader import TIMELINE, Records
from tcpkmon.formats.base.segments import has_earlier
from tcpkmon.formats.psc.columns import TIME
from tcpkmon.formats.psc.entries import READ_BYTES, Entries
from tcpkmon.formats.psc.sequence import Gap, Numbers
from tcpkmon.formats.psc.tables import Snapshots, build_table
from tcpkmon.formats.psc.values import decode, words

_COUNTED_ROWS = 1 << 14
_PIECE_ROWS = 1 << 16


def open_capture(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Capture:
    """Open the PSC file at `path`, or several segments of one capture. Raises FileError, or
    DamagedError, which names the offset; UsageError for files of several captures."""
    return Capture(path, *more)


class Capture(Entries, Analysed):
    """An open PSC file; a formats.base.reader.Reader.

    Rows are counted from 0. Methods with start and stop work as those of Entries.
    """

    kinds: Sequence[str] = ()

    def seq(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint64]:
        """The 64-bit sequence numbers, uint64: of `seq`, else seq_no extended, else the row + 1."""
        return self._numbers.numbers(*self._range(start, stop))

    @functools.cached_property
    def _numbers(self) -> Numbers:
        column = self.seq_column
        if column is None:
            self.warnings.append("the file has no sequence numbers; gaps cannot be seen")
            return Numbers(lambda start, stop: np.arange(start + 1, stop + 1), self._rows, 64)
        read = functools.partial(self.column, column.name)
        return Numbers(read, self._rows, 8 * column.length)

    def gaps(self) -> Iterator[Gap]:
        """The gaps in the sequence numbers, in file order."""
        return self._numbers.gaps()

    @property
    def lost(self) -> int:
        """How many sequence numbers are missing between the entries of the file, and `unplaced`.

        This reads the file, unless the counter of count_losses() has all sequence numbers already.
        """
        return self._missing_numbers() + self.unplaced

    @functools.cached_property
    def unplaced(self) -> int:
        """Lost events without a number, by the last ledger: those that the programs never saw, or
        could not begin a record for. Nobody knows of which connections they are."""
        first = self._counted([0], at_first=True) if self.controls_fit else {}
        if not first:  # no ledger
            return 0
        last = self._counted(range(self._rows // _PIECE_ROWS * _PIECE_ROWS, -1, -_PIECE_ROWS))
        before = first if has_earlier(self.settings) else {}
        return sum(max(0, count - before.get(key, 0)) for key, count in last.items())

    def _counted(
        self, lows: Iterable[int], at_first: bool = False
    ) -> dict[tuple[int, int, int], int]:
        """Such events by the row of the ledger, as the first piece of rows says that has them: its
        last count, or the first one. lows: where the pieces begin."""
        for low in lows:
            found: dict[tuple[int, int, int], int] = {}
            # A checkpoint may begin in the piece before.
            for _, entry in self.controls(max(low - _PIECE_ROWS, 0), low + _PIECE_ROWS):
                if isinstance(entry, controls.Program):
                    key, count = (entry.location, 0, entry.point), entry.missed
                    count += entry.kprobe_missed
                elif isinstance(entry, controls.Losses):
                    key, count = (entry.location, entry.cpu, entry.point), entry.table_full
                    count += entry.no_slot
                else:
                    continue
                if not at_first or key not in found:
                    found[key] = count
            if found:
                return found
        return {}

    def _missing_numbers(self) -> int:
        if self._losses is not None and self._losses.rows == len(self):
            return self._losses.lost
        column, losses = self.seq_column, self.count_losses()
        if column is None or losses is None:
            return sum(gap.missing for gap in self.gaps())
        for piece in self.chunks(_COUNTED_ROWS):
            losses.add(self.column(column.name, piece.start, piece.stop))
        return losses.lost

    def time_ns(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """The wall-clock time of rows, int64 ns since the epoch; UsageError without that column."""
        if not self.find_column(TIME).is_time:
            raise UsageError(f"{self.path} has a column {TIME} that is no struct timeval")
        return self.column(TIME, start, stop)

    def mono_ns(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64] | None:
        """CLOCK_MONOTONIC of rows, int64 ns; None if the file has no column time_ns."""
        column = self.columns_by_name.get("time_ns")
        if column is None or not column.is_integer:
            return None
        return self.column("time_ns", start, stop).astype(np.int64)

    def controls(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, controls.Control]]:
        """The row and the value of each control entry, in file order."""
        start, stop = self._range(start, stop)
        step = max(READ_BYTES // self.entry_dtype.itemsize, 1)
        for low in range(start, stop, step):
            at = np.flatnonzero(self.control(low, min(low + step, stop)))
            if not len(at):
                continue
            # As plain bytes: see snapshots_of().
            rows = self.rows(low, low + int(at[-1]) + 1)
            chosen = rows.view(f"V{rows.dtype.itemsize}")[at]
            endian = self.header.endian
            columns = (
                decode(chosen, self.columns_by_name[name], endian).tolist()
                for name in ("callvalue", "location")
            )
            listed = zip(at.tolist(), *columns, words(chosen, endian).tolist(), strict=True)
            for row, callvalue, location, values in listed:
                yield low + row, facts.decode(callvalue, location, values)

    @functools.cached_property
    def off(self) -> list[Off]:
        """When locations were switched off. This reads the file."""
        switches = Switches()
        for piece in self.chunks() if self.controls_fit else ():
            found = self.column("location", piece.start, piece.stop)
            for row in np.flatnonzero(found == controls.Change.location).tolist():
                at = piece.start + row
                for _, entry in self.controls(at, at + 1):
                    if isinstance(entry, controls.Change):
                        switches.feed(entry)
        return switches.all()

    @functools.cached_property
    def complete(self) -> bool:
        """Whether the last entry is END, so that the capture ended in order. In a folder, and of
        several files, it is not the END of a file that another one follows, and none is missing."""
        last = [entry for _, entry in self.controls(max(self._rows - 1, 0))]
        if self.damaged or self.lacks_files or not last or not isinstance(last[0], controls.End):
            return False
        of_many = len(self._pieces) > 1 or self.path.is_dir()
        return not of_many or last[0].reason != controls.EndReason.ROTATED

    def table(self, names: str | Sequence[str] | None = None) -> Any:
        """A table of the capture by its name ("connections"), see Analysed.named_table(); or
        columns of all snapshots (by default all columns) as a pyarrow.Table in memory.

        Of snapshots the time is a timestamp[ns, UTC], text is a dictionary of strings, other raw
        bytes are fixed-size binary. Raises UsageError for a missing column, and if pyarrow is
        missing.
        """
        if isinstance(names, str):
            return self.named_table(names)
        return build_table(self, self.names if names is None else names)

    def for_export(
        self, form: str, columns: Sequence[str] | None = None, sort: str | None = None
    ) -> Records:
        """The snapshots for an export; see formats.base.reader.Reader."""
        if form == TIMELINE:
            if columns is not None or sort is not None:
                raise UsageError(
                    f"{form} takes neither --columns nor --sort",
                    "it has tracks, not columns; tcpkmon cut makes a part of a capture",
                )
            return self
        by_default = "connection" if form == "parquet" else "seq"
        return Snapshots(self, columns, (sort or by_default) == "connection", form == "arrow")

    def tables(self, reuse: bool = False) -> Iterator[dict[str, Any]]:
        """The snapshots as tables; see formats.psc.tables.Snapshots."""
        return Snapshots(self).tables(reuse)

    def write_text(self, form: str, out: BinaryIO) -> None:
        """Write the snapshots as "csv", "spreadsheet" or "json"."""
        Snapshots(self).write_text(form, out)
