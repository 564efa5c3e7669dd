# SPDX-License-Identifier: Apache-2.0
"""Opens a PSC file and reads its entries and columns as numpy arrays, a bounded piece at a time."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from formats.base import control as controls
from formats.base.byteorder import Rows
from formats.base.errors import DamagedError, FileError, TcpkmonError
from formats.base.files import InputFile
from formats.psc.columns import CLASSIC, CLASSIC_BYTES, Column, entry_dtype
from formats.psc.description import Description
from formats.psc.header import HEADER_BYTES_MAX, Header, decode_header
from formats.psc.sequence import Losses
from formats.psc.values import ORDERS, Places

READ_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20
"""What stays in the second-level cache while all its columns are taken out."""
_CONTROL_COLUMNS = ("callvalue", "location", "lport", "rport")


class Entries(InputFile, Description):
    """The entries of a PSC file that is open: `len()` is their number.

    Rows are counted from 0. Every method that takes start and stop copies those rows out of the
    file, reading at most READ_BYTES at a time; of what was read, BLOCK_BYTES are kept. Text from
    the file (names, settings, strings) may hold anything: whoever prints it escapes it.

    `warnings` is what a person should be told; `damaged` that entries may be missing for it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        InputFile.__init__(self, path)
        self.damaged = False
        self._losses: Losses | None = None
        try:
            header, self._data_offset = self._read_header()
        except TcpkmonError:
            self.close()
            raise
        Description.__init__(self, self.path, header)
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
        self.controls_fit = size >= CLASSIC_BYTES and all(
            places.get(name) == CLASSIC[name] for name in _CONTROL_COLUMNS
        )

    def _read_header(self) -> tuple[Header, int]:
        try:
            return decode_header(self._file.read(min(self._size, HEADER_BYTES_MAX)), self._size)
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error
        except DamagedError as error:
            raise DamagedError(f"{self.path}: {error.message}", error.hint) from error

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

    @property
    def seq_column(self) -> Column | None:
        """What holds the sequence numbers, of 64 bits or fewer."""
        column = self.columns_by_name.get("seq")
        if column is None or not column.is_integer or column.length != 8:
            column = self.columns_by_name.get("seq_no")
        return column if column is not None and column.is_integer else None

    def count_losses(self) -> Losses | None:
        """A counter for whoever reads all entries anyway: give it their numbers, in file order.

        None where the file has no sequence numbers.
        """
        column = self.seq_column
        self._losses = Losses(8 * column.length) if column is not None else None
        return self._losses

    def control_of(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of these rows, as rows() and read_into() give them, are control entries."""
        if not self.controls_fit:
            return np.zeros(len(rows), np.bool_)
        return is_control(np.ascontiguousarray(rows["location"]), rows["lport"], rows["rport"])

    def snapshots_of(self, rows: Rows) -> Rows:
        """The snapshots of such rows, without the control entries; the rows where all are."""
        mask = self.control_of(rows)
        # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
        return rows.view(f"V{rows.dtype.itemsize}")[~mask] if mask.any() else rows


def is_control(
    location: npt.NDArray[Any], lport: npt.NDArray[Any], rport: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Which entries with these values are control entries."""
    mask: npt.NDArray[np.bool_] = controls.is_control(location)
    # Most files have few: the ports are looked at only where the location says so.
    at = np.flatnonzero(mask)
    mask[at] = (lport[at] | rport[at]) == 0
    return mask
