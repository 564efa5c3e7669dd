# SPDX-License-Identifier: Apache-2.0
"""Opens a PSC file and reads its entries and columns as numpy arrays, in bounded memory."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import control as controls
from tcpkmon.formats.base import facts
from tcpkmon.formats.base.byteorder import Endian, Rows, integers
from tcpkmon.formats.base.errors import DamagedError, FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.files import InputFile
from tcpkmon.formats.base.limits import MOST_SCHEMA_BYTES
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.psc.columns import CLASSIC, CLASSIC_BYTES, Column, entry_dtype
from tcpkmon.formats.psc.dumps import join
from tcpkmon.formats.psc.header import HEADER_DAMAGED, KIND_CLOCK, KIND_SCHEMA, Header, read_header
from tcpkmon.formats.psc.pieces import Piece, find_files, follow
from tcpkmon.formats.psc.sequence import Losses
from tcpkmon.formats.psc.values import ORDERS, ColumnReader

if TYPE_CHECKING:
    from tcpkmon.formats.schema import Schema



# The parts of a PSC header that are parsed on demand: schema, settings, clock, location names.

class Description:
    """The header of the file at `path`.

    A part that cannot be parsed counts as missing, and `warnings` reports it. Text can hold any
    character: escape it before you print it.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self.warnings: list[str] = []
        self._unreadable: list[str] = []
        self.columns_by_name = {
            one.name: one for one in header.columns if one.length and one.is_for(header.mods)
        }
        self.names = tuple(self.columns_by_name)

    def find_column(self, name: str) -> Column:
        """The column called `name`; UsageError if the file has none."""
        if name not in self.columns_by_name:
            raise UsageError(f"{self.path} has no column {name}{suggest(name, self.names)}",
                             f"it has {' '.join(self.names)}")
        return self.columns_by_name[name]

    def is_text(self, name: str) -> bool:
        """Whether a column is raw bytes that hold text (a name), not an address."""
        column = self.find_column(name)
        raw = not (column.is_integer or column.is_time)
        return raw and column.is_raw and not name.endswith("addr")

    def is_signed(self, column: Column) -> bool:
        """Whether the file's schema declares this column as signed."""
        return bool(self._signed) and (column.name, column.length) in self._signed

    def none_of(self, name: str) -> int | None:
        """The value of a number, or 0 of bytes, that means that there is none: null in tables.

        The file's schema declares it; None where it does not.
        """
        return self._nones.get(name)

    @functools.cached_property
    def _nones(self) -> dict[str, int]:
        events = self.schema.events if self.schema else ()
        fields = (field for event in events for field in event.fields)
        return {field.name: none for field in fields if (none := field.none) is not None}

    @functools.cached_property
    def _signed(self) -> frozenset[tuple[str, int]]:
        if self.schema is None:
            return frozenset()
        from tcpkmon.formats.schema import field_type

        fields = (field for event in self.schema.events for field in event.fields)
        kinds = ((field.name, field_type(self.schema, field)) for field in fields)
        return frozenset((name, kind.width) for name, kind in kinds if kind.signed)

    @functools.cached_property
    def clock(self) -> tuple[int, int, int] | None:
        """(monotonic ns, realtime ns, uncertainty ns) at the start, or None."""
        clock = self.header.clock()
        if clock is None and KIND_CLOCK in self.header.extras:
            self._complain("the header's clock record cannot be read")
        return clock

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """How the file was captured; empty if the header has no settings."""
        if self.header.settings is None:
            self._complain("the header's settings cannot be read")
        return self.header.settings or {}

    @functools.cached_property
    def schema(self) -> Schema | None:
        """The schema in the header, or None."""
        text = self.header.text(KIND_SCHEMA)
        if text is None:
            return None
        from tcpkmon.formats.schema import parse

        try:
            if len(text) > MOST_SCHEMA_BYTES:
                raise DamagedError(f"more than {MOST_SCHEMA_BYTES} characters")
            schema: Schema = parse(text, "schema")
            return schema
        except TcpkmonError as error:
            first = str(error).split("\n", maxsplit=1)[0]
            self._complain(f"the schema in the header cannot be read: {first}")
            return None

    def _complain(self, what: str) -> None:
        self._unreadable.append(what)
        self.warnings.append(what)

    def find_unreadable(self) -> list[str]:
        """Those of the `warnings` that are about parts of the header."""
        for part in (self.schema, self.settings, self.clock):
            del part  # it was parsed
        return self._unreadable

    def location_name(self, number: int) -> str:
        """A location's name: from the file's schema, else of a control entry, else its digits."""
        return self._location_names.get(number) or facts.NAMES.get(number) or str(number)

    @functools.cached_property
    def _location_names(self) -> dict[int, str]:
        enums = self.schema.enums if self.schema else ()
        members = (member for enum in enums if enum.name == "location" for member in enum.members)
        return {member.value: member.name for member in members}


READ_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20
"""So much stays in the second-level cache while all its columns are decoded."""
_PLACE = ("location", "lport", "rport")
_CONTROL_COLUMNS = ("callvalue", *_PLACE)


class Entries(InputFile, Description):
    """The entries of an open PSC file, of all segments in a folder, or of some; `len()` is their
    number. path: what it is called for people; more: of further segments of the same capture.

    Rows are counted from 0. Each method with start and stop copies these rows from the file, and
    buffers at most BLOCK_BYTES. Text from the file (names, settings, strings) can hold any
    character: escape it before you print it.

    warnings: messages for the user. damaged: the file is damaged, so entries may be missing.
    """

    def __init__(
        self, path: str | os.PathLike[str], *more: str | os.PathLike[str]
    ) -> None:
        (first, *later), missing = find_files(path, *more)
        InputFile.__init__(self, first)
        self._losses: Losses | None = None
        with self.reading_header():
            header, self.data_offset = read_header(functools.partial(self.read_at, 0), self._size)
            """Where the entries of the (first) file begin."""
        self.path = Path(path)
        Description.__init__(self, self.path, header)
        size = header.entry_size
        self._rows, rest = divmod(self._size - self.data_offset, size)
        self.is_cut = bool(rest)
        """Whether the last entry is cut short."""
        self.damaged = self.is_cut or not header.is_intact
        self.lacks_files = bool(missing)
        """Whether segments of the capture are missing."""
        if missing:
            self.warnings.append(missing)
        if not header.is_intact:
            self.warnings.append(HEADER_DAMAGED)
        if rest:
            self.warnings.append(
                f"at offset {self._size - rest}: the last entry is cut short, "
                f"{rest} of {size} bytes; it is left out"
            )
        self._pieces = [
            Piece(first, header, self.data_offset, self._rows, rest, self._file)
        ]
        if later:
            pieces, is_damaged = follow(self._pieces[0], later, self.warnings)
            try:
                self._pieces = join(pieces, self.warnings)
            except TcpkmonError:
                self.close()
                raise
            self._rows = sum(piece.rows for piece in self._pieces)
            self.damaged |= is_damaged
        self.entry_dtype = entry_dtype(header.columns, size, ORDERS[header.endian])
        """The type of an entry, see formats.psc.columns."""
        self._readers: dict[tuple[str, ...], ColumnReader] = {}
        integers = {c.name: (c.offset, c.length) for c in header.columns if c.is_integer}
        self.controls_fit = size >= CLASSIC_BYTES and all(
            integers.get(name) == CLASSIC[name] for name in _CONTROL_COLUMNS
        )
        """Whether the entries can be control entries: they have the classic columns for it."""

    def __len__(self) -> int:
        return self._rows

    @property
    def rest_bytes(self) -> int:
        """Of an entry that is cut short at the end of the (first) file."""
        return self._pieces[0].rest

    @functools.cached_property
    def array(self) -> npt.NDArray[Any]:
        """The raw entries: a read-only memory map of entry_dtype(); a copy of several files'."""
        if len(self._pieces) > 1:
            return self.rows()
        if not self._rows:
            return np.frombuffer(b"", self.entry_dtype)
        try:
            return np.memmap(self._file, self.entry_dtype, "r", self.data_offset, (self._rows,))
        except (OSError, ValueError) as error:
            raise FileError(f"cannot map {self.path}: {error}") from error

    def chunks(self, rows: int = 65536) -> Iterator[slice]:
        """Slices of at most `rows` rows that cover the file in order."""
        for start in range(0, self._rows, rows):
            yield slice(start, min(start + rows, self._rows))

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """A copy of raw entries, of entry_dtype()."""
        start, stop = self._range(start, stop)
        found = np.empty(stop - start, self.entry_dtype)
        self.read_into(found, start)
        return found

    def read_into(self, rows: Rows, start: int) -> None:
        """Fill the array `rows` with the entries from `start` on. Any thread may call it."""
        view = memoryview(rows.view(np.uint8).data)
        size = self.entry_dtype.itemsize
        for piece in self._pieces:
            count = min(max(piece.rows - start, 0), len(view) // size)
            if count:
                piece.read(view[: count * size], start)
                if piece.shifts:
                    rows = np.frombuffer(view[: count * size], self.entry_dtype)
                    for name, shift in piece.shifts.items():
                        kind = rows.dtype[name]
                        rows[name] += np.array(shift % (1 << 8 * kind.itemsize), kind)
                view = view[count * size :]
            start = max(start - piece.rows, 0)

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        start, stop, _ = slice(start, stop).indices(self._rows)
        return start, max(start, stop)

    def columns(
        self, names: Iterable[str], start: int = 0, stop: int | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Several columns in one pass over the file; see column()."""
        wanted = tuple(dict.fromkeys(names))
        reader = self._readers.pop(wanted, None) or self.column_reader(wanted)
        start, stop = self._range(start, stop)
        found = [np.empty(stop - start, dtype) for dtype in reader.dtypes]
        step = len(reader.rows)
        for low in range(start, stop, step):
            count = min(step, stop - low)
            self.read_into(reader.rows[:count], low)
            reader.read(count, found, low - start)
        # A caller that reads slice by slice needs the same columns again.
        self._readers = {wanted: reader}
        return dict(zip(wanted, found, strict=True))

    def column_reader(
        self, names: Iterable[str], rows: Rows | None = None, offset: int = 0
    ) -> ColumnReader:
        """A reader of these columns, whose `rows` hold BLOCK_BYTES: fill them by read_into().

        rows, offset: others than its own, and where in each of them the entry begins.
        """
        columns = [self.find_column(name) for name in names]
        signed = [self.is_signed(column) for column in columns]
        if rows is None:
            count = max(min(BLOCK_BYTES, READ_BYTES) // self.entry_dtype.itemsize, 1)
            rows = np.empty(count, self.entry_dtype)
        placed = [replace(column, offset=column.offset + offset) for column in columns]
        return ColumnReader(placed, signed, self.header.endian, rows)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """A column's values as a native array of stop - start rows, of control entries too: what
        is a snapshot says ~control(start, stop).

        Integers have the machine's byte order. They are unsigned unless the file's schema declares
        them signed. The time is int64 ns since the epoch. Strings are S with their length (numpy
        removes trailing NULs from a single value), other raw bytes are V. Raises UsageError if the
        file has no such column.
        """
        return self.columns([name], start, stop)[name]

    @property
    def seq_column(self) -> Column | None:
        """The column of the sequence numbers, of 64 bits or fewer; None if there is none."""
        column = self.columns_by_name.get("seq")
        if column is None or not column.is_integer or column.length != 8:
            column = self.columns_by_name.get("seq_no")
        return column if column is not None and column.is_integer else None

    def count_losses(self) -> Losses | None:
        """A counter of losses for a caller that reads all entries anyway.

        Add their sequence numbers to it in file order; `lost` then needs no second pass. None if
        the file has no sequence numbers.
        """
        column = self.seq_column
        self._losses = Losses(8 * column.length) if column is not None else None
        return self._losses

    def control(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.bool_]:
        """The mask of the rows that are control entries (see formats.base.control)."""
        start, stop = self._range(start, stop)
        if not self.controls_fit:
            return np.zeros(stop - start, np.bool_)
        found = self.columns(("location", "lport", "rport"), start, stop)
        return is_control(found["location"], found["lport"], found["rport"])

    def control_of(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """The mask of the control entries in these rows, which rows() or read_into() returned."""
        if not self.controls_fit:
            return np.zeros(len(rows), np.bool_)
        location, lport, rport = (self._integers(rows, name) for name in _PLACE)
        return is_control(np.ascontiguousarray(location), lport, rport)

    def _integers(self, rows: Rows, name: str) -> npt.NDArray[Any]:
        """The values of a column of integers, in any byte order of the file."""
        column = self.columns_by_name[name]
        order = Endian.BIG if column.is_network else self.header.endian
        return integers(rows, column.offset, column.length, order)

    def snapshots_of(self, rows: Rows) -> Rows:
        """The snapshots in these rows; the rows themselves if no control entry is among them."""
        mask = self.control_of(rows)
        # As plain bytes: numpy may skip the bytes of a structured row that belong to no column.
        return rows.view(f"V{rows.dtype.itemsize}")[~mask] if mask.any() else rows


def is_control(
    location: npt.NDArray[Any], lport: npt.NDArray[Any], rport: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """The mask of the control entries among entries with these values."""
    mask: npt.NDArray[np.bool_] = controls.is_control(location)
    # Most entries are snapshots, so the ports of few are compared.
    at = np.flatnonzero(mask)
    mask[at] = (lport[at] | rport[at]) == 0
    return mask
