# SPDX-License-Identifier: Apache-2.0
"""Opens a PSC file and hands out its columns as native numpy arrays, a bounded piece at a time."""

from __future__ import annotations

import functools
import os
import stat
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from formats.base import control as controls
from formats.base.errors import DamagedError, FileError, TcpkmonError, UsageError
from formats.psc.columns import CLASSIC, CLASSIC_BYTES, TIME, Column, entry_dtype
from formats.psc.description import Description
from formats.psc.header import HEADER_BYTES_MAX, Header, decode_header
from formats.psc.sequence import Gap, Numbers
from formats.psc.values import ORDERS, Places, Rows, decode, words

READ_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20
"""What stays in the second-level cache while all its columns are taken out."""
_CONTROL_COLUMNS = ("callvalue", "location", "lport", "rport")


def open_capture(path: str | os.PathLike[str]) -> Capture:
    """Open the PSC file at `path`. Raises FileError, or DamagedError, which names the offset."""
    return Capture(path)


class Capture(Description):
    """A PSC file, open for reading: `len()` is its number of entries.

    Rows are counted from 0. Every method that takes start and stop copies those rows out of the
    file, reading at most READ_BYTES at a time; of what was read, BLOCK_BYTES are kept. Text from
    the file (names, settings, strings) may hold anything: whoever prints it escapes it.

    `warnings` is what a person should be told; `damaged` that entries may be missing for it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged = False
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise FileError(f"cannot read {self.path}: not a regular file")
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
            self._finalizer = weakref.finalize(self, self._file.close)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FileError(f"cannot open {self.path}: {reason}") from error
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            header, self._data_offset = self._read_header()
        except TcpkmonError:
            self.close()
            raise
        super().__init__(self.path, header)
        size = header.entry_size
        self._rows, rest = divmod(self._size - self._data_offset, size)
        if rest:
            self.damaged = True
            self.warnings.append(
                f"at offset {self._size - rest}: the last entry is cut short, "
                f"{rest} of {size} bytes; it is left out"
            )
        self.entry_dtype = entry_dtype(header.columns, size, ORDERS[header.endian])
        """The type of an entry, see formats.psc.columns."""
        places = {
            column.name: (column.offset, column.length)
            for column in header.columns
            if column.is_integer
        }
        self._spare: dict[tuple[str, ...], Places] = {}
        self._controls_fit = size >= CLASSIC_BYTES and all(
            places.get(name) == CLASSIC[name] for name in _CONTROL_COLUMNS
        )

    def _read_header(self) -> tuple[Header, int]:
        try:
            return decode_header(self._file.read(min(self._size, HEADER_BYTES_MAX)), self._size)
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error
        except DamagedError as error:
            raise DamagedError(f"{self.path}: {error.message}", error.hint) from error

    def close(self) -> None:
        """Close the file; `array` stays valid."""
        self._finalizer()

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._rows

    @functools.cached_property
    def array(self) -> npt.NDArray[Any]:
        """The entries as they stand in the file: a read-only memory map of entry_dtype()."""
        if not self._rows:
            empty = np.empty(0, self.entry_dtype)
            empty.flags.writeable = False
            return empty
        try:
            return np.memmap(self._file, self.entry_dtype, "r", self._data_offset, (self._rows,))
        except (OSError, ValueError) as error:
            raise FileError(f"cannot map {self.path}: {error}") from error

    def chunks(self, rows: int = 65536) -> Iterator[slice]:
        """Slices of at most `rows` rows that cover the file in order."""
        for start in range(0, self._rows, rows):
            yield slice(start, min(start + rows, self._rows))

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """A copy of entries as they stand in the file, of entry_dtype(); all at once."""
        start, stop = self._range(start, stop)
        found = np.empty(stop - start, self.entry_dtype)
        self.read_into(found, start)
        return found

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """The same, about BLOCK_BYTES at a time; each is valid until the next is asked for."""
        start, stop = self._range(start, stop)
        step = self._block_rows()
        room = np.empty(min(step, stop - start), self.entry_dtype)
        for low in range(start, stop, step):
            rows = room[: stop - low]
            self.read_into(rows, low)
            yield rows

    def read_into(self, rows: Rows, start: int) -> None:
        """Read the entries from `start` on into `rows`, an array of entries; in any thread."""
        view = memoryview(rows.view(np.uint8).data)
        offset = self._data_offset + start * self.entry_dtype.itemsize
        try:
            done = 0
            while done < len(view):
                count = os.preadv(self._file.fileno(), [view[done:]], offset + done)
                if not count:
                    raise DamagedError(f"{self.path}: the file became shorter while it was read")
                done += count
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        start, stop, _ = slice(start, stop).indices(self._rows)
        return start, max(start, stop)

    def columns(
        self, names: Iterable[str], start: int = 0, stop: int | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Several columns in one pass over the file; see column()."""
        wanted = tuple(dict.fromkeys(names))
        places = self._spare.pop(wanted, None) or self.places(wanted)
        start, stop = self._range(start, stop)
        found = [np.empty(stop - start, kind) for kind in places.kinds]
        step = len(places.rows)
        for low in range(start, stop, step):
            count = min(step, stop - low)
            self.read_into(places.rows[:count], low)
            places.read(count, found, low - start)
        # Whoever reads a piece at a time asks for the same again.
        self._spare.clear()
        self._spare[wanted] = places
        return dict(zip(wanted, found, strict=True))

    def places(self, names: Iterable[str]) -> Places:
        """What takes these columns out of BLOCK_BYTES of rows, for read_into()."""
        columns = [self.find_column(name) for name in names]
        signed = [self.is_signed(column) for column in columns]
        rows = np.empty(self._block_rows(), self.entry_dtype)
        return Places(columns, signed, self.header.endian, rows)

    def _block_rows(self) -> int:
        return max(min(BLOCK_BYTES, READ_BYTES) // self.entry_dtype.itemsize, 1)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """A column's values as a native array of stop - start rows.

        Integers come in the machine's order, unsigned but where the file's schema says signed; the
        time as int64 ns since the epoch; strings as S with their length (numpy leaves trailing
        NULs off when it hands out one), and other raw bytes as V. Raises UsageError if absent.
        """
        return self.columns([name], start, stop)[name]

    def seq(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint64]:
        """The 64-bit sequence numbers, uint64: of `seq`, else seq_no unwrapped, else the row's."""
        return self._numbers.numbers(*self._range(start, stop))

    @functools.cached_property
    def _numbers(self) -> Numbers:
        column = self.seq_column
        if column is None:
            self.warnings.append("the file has no sequence numbers; gaps cannot be seen")
            return Numbers(lambda start, stop: np.arange(start + 1, stop + 1), self._rows, 64)
        read = functools.partial(self.column, column.name)
        return Numbers(read, self._rows, 8 * column.length)

    @property
    def seq_column(self) -> Column | None:
        """What holds the sequence numbers, of 64 bits or fewer."""
        column = self.columns_by_name.get("seq")
        if column is None or not column.is_integer or column.length != 8:
            column = self.columns_by_name.get("seq_no")
        return column if column is not None and column.is_integer else None

    def gaps(self) -> Iterator[Gap]:
        """The gaps in the sequence numbers, in file order."""
        return self._numbers.gaps()

    @functools.cached_property
    def lost(self) -> int:
        """How many sequence numbers are missing between the entries of the file.

        Whoever reads the whole file anyway may count them and set it.
        """
        return self._numbers.lost()

    def time_ns(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """The wall-clock time of rows, int64 ns since the epoch; UsageError if not recorded."""
        if not self.find_column(TIME).is_time:
            raise UsageError(f"{self.path} has a column {TIME} that is no struct timeval")
        return self.column(TIME, start, stop)

    def mono_ns(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64] | None:
        """CLOCK_MONOTONIC of rows, int64 ns, or None where the file has no column time_ns."""
        column = self.columns_by_name.get("time_ns")
        if column is None or not column.is_integer:
            return None
        return self.column("time_ns", start, stop).astype(np.int64)

    def control(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.bool_]:
        """Which rows are control entries (see formats.base.control) and not snapshots."""
        start, stop = self._range(start, stop)
        if not self._controls_fit:
            return np.zeros(stop - start, np.bool_)
        found = self.columns(("location", "lport", "rport"), start, stop)
        return _is_control(found["location"], found["lport"], found["rport"])

    def control_of(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """The same of rows as rows() or blocks() gave them."""
        if not self._controls_fit:
            return np.zeros(len(rows), np.bool_)
        return _is_control(np.ascontiguousarray(rows["location"]), rows["lport"], rows["rport"])

    def snapshots_of(self, rows: Rows) -> Rows:
        """The snapshots of such rows, without the control entries; the rows where all are."""
        mask = self.control_of(rows)
        # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
        return rows.view(f"V{rows.dtype.itemsize}")[~mask] if mask.any() else rows

    def controls(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, controls.Control]]:
        """The control entries with the row of each, in file order."""
        start, stop = self._range(start, stop)
        step = max(READ_BYTES // self.entry_dtype.itemsize, 1)
        for low in range(start, stop, step):
            at = np.flatnonzero(self.control(low, min(low + step, stop)))
            if not len(at):
                continue
            # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
            rows = self.rows(low, low + int(at[-1]) + 1)
            chosen = rows.view(f"V{rows.dtype.itemsize}")[at]
            endian = self.header.endian
            columns = (
                decode(chosen, self.columns_by_name[name], endian).tolist()
                for name in ("callvalue", "location")
            )
            listed = zip(at.tolist(), *columns, words(chosen, endian).tolist(), strict=True)
            for row, callvalue, location, values in listed:
                yield low + row, controls.decode(callvalue, location, values)

    @functools.cached_property
    def complete(self) -> bool:
        """Whether the last entry is END: the capture ended in order. Else the tail is unknown."""
        last = [entry for _, entry in self.controls(max(self._rows - 1, 0))]
        return not self.damaged and bool(last) and isinstance(last[0], controls.End)

    def table(self, names: Sequence[str] | None = None) -> Any:
        """Columns (all of them by default) as a pyarrow.Table; see formats.psc.table."""
        from formats.psc.table import build_table

        return build_table(self, self.names if names is None else names)


def _is_control(
    location: npt.NDArray[Any], lport: npt.NDArray[Any], rport: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = controls.is_control(location)
    # Most files have few: the ports are looked at only where the location says so.
    at = np.flatnonzero(mask)
    mask[at] = (lport[at] | rport[at]) == 0
    return mask
