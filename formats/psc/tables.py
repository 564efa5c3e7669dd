# SPDX-License-Identifier: Apache-2.0
"""A PSC file as pyarrow tables, in bounded memory: for exports and `capture.table()`.

Exports have one row for each snapshot: the time as a timestamp of microseconds, enumerated values
by name, addresses and names as text. They leave out control entries (tcpkmon verify reads them).
Where the file's schema says that a value means that there is none, it is null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.arrow import encode, fixed, import_pyarrow, with_texts
from tcpkmon.formats.base.text import address_of, text_of
from tcpkmon.formats.lines import StringWriter
from tcpkmon.formats.psc.entries import Entries
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.psc.lines import Text, write_lines
from tcpkmon.formats.psc.sequence import Losses
from tcpkmon.formats.psc.values import ORDERS, decode

# A PSC file as the report of 2000 has it, for readers that know nothing else.
#
# No control entries, no header kinds beyond those of the report. Entries are numbered as if control
# entries had never been: a gap in the numbers is a loss, as in the report.

_NUMBERS = ("seq_no", "seq")
_ALWAYS = ("seq_no", "time", "lport", "rport")


def write_plain(entries: Entries, names: Collection[str], out: BinaryIO) -> None:
    """Write all snapshots. names: the columns that the header describes, beside those that each
    reader needs; the entries are as long as they were. UsageError."""
    header = entries.header
    columns = tuple(one for one in header.columns if one.name in names or one.name in _ALWAYS)
    plain = replace(header, columns=columns, extras={}, has_checksum=False)
    out.write(encode_header(plain))
    numbers = [one for one in header.columns if one.name in _NUMBERS and one.is_integer]
    left_out = 0
    for piece in entries.chunks():
        rows = entries.rows(piece.start, piece.stop)
        is_control = entries.control_of(rows)
        found = np.ascontiguousarray(entries.snapshots_of(rows)).view(np.uint8)
        found = found.reshape(-1, header.entry_size).copy()
        before = (left_out + np.cumsum(is_control))[~is_control]
        for column in numbers if left_out or is_control.any() else ():
            order = ">" if column.is_network else ORDERS[header.endian]
            place = slice(column.offset, column.offset + column.length)
            was = np.ascontiguousarray(found[:, place]).view(f"{order}u{column.length}").ravel()
            now = was - before.astype(was.dtype)
            found[:, place] = now.astype(was.dtype).view(np.uint8).reshape(-1, column.length)
        left_out += int(is_control.sum())
        out.write(found.data)


SNAPSHOT = "SNAPSHOT"
ROWS = 1 << 16
SORTED_ROWS = 1 << 17
"""Rows of a table that is sorted by connection: more rows of each connection need less space."""
_TABLE_ROWS = 1 << 18
_SAMPLE_STRIDE = 512


def build_table(entries: Entries, names: Sequence[str]) -> Any:
    """Columns of all snapshots as one table; see Capture.table()."""
    pyarrow = import_pyarrow()
    texts = {
        name: _or_none(entries, name, text_of) if entries.is_text(name) else None for name in names
    }
    pieces = list(entries.chunks(_TABLE_ROWS)) or [slice(0, 0)]
    tables = []
    for piece in pieces:
        keep = ~entries.control(piece.start, piece.stop)
        found = entries.columns(names, piece.start, piece.stop)
        snapshots = {name: values[keep] for name, values in found.items()}
        tables.append(_make_table(entries, snapshots, texts, "ns"))
    return pyarrow.concat_tables(tables).unify_dictionaries()


def _make_table(
    entries: Entries,
    found: Mapping[str, npt.NDArray[Any]],
    texts: Mapping[str, Text | None],
    unit: str,
    writers: Mapping[str, StringWriter] | None = None,
) -> Any:
    """A table of the columns in `texts`; `found` has their values; times have this unit.

    Text is in dictionaries, or in plain strings where `writers` has a writer for its column.
    """
    pyarrow = import_pyarrow()
    arrays, fields = [], []
    for name, text in texts.items():
        if entries.columns_by_name[name].is_time:
            array = pyarrow.array(found[name], pyarrow.timestamp(unit, "UTC"))
        elif text is None:
            array = fixed(found[name], entries.none_of(name))
        elif writers and name in writers:
            array = _strings(writers[name], found[name])
        else:
            array = with_texts(encode(found[name]), text)
        arrays.append(array)
        nullable = entries.none_of(name) is not None
        fields.append(pyarrow.field(name, array.type, nullable))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _or_none(entries: Entries, name: str, text: Callable[[bytes], str]) -> Text:
    """The function that returns the text of a column's bytes; None for those that mean none."""
    if entries.none_of(name) is None:
        return text
    return lambda data: text(data) if any(data) else None


def _strings(writer: StringWriter, values: npt.NDArray[Any]) -> Any:
    """A string array."""
    pyarrow = import_pyarrow()
    buffers = [None, *map(pyarrow.py_buffer, writer.write(values))]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(values), buffers)


class Snapshots:
    """The snapshots of a capture, with some of its columns. UsageError for a missing column.

    by_connection: each table is sorted by connection, which makes its file three times smaller. The
    column seq then has the order of the capture. plain_text: tables have strings where this is
    faster than dictionaries of strings.
    """

    kinds: Sequence[str] = ()

    def __init__(
        self,
        capture: Entries,
        names: Sequence[str] | None = None,
        by_connection: bool = False,
        plain_text: bool = False,
    ) -> None:
        self.capture = capture
        self.names = list(capture.names if names is None else dict.fromkeys(names))
        for name in self.names:
            capture.find_column(name)
        self._by_connection = by_connection
        self._keys = [
            column.name
            for column in map(capture.columns_by_name.get, ("lport", "rport", "conn_id"))
            if by_connection and column is not None and column.is_integer
        ]
        self._reader = capture.column_reader(dict.fromkeys([*self.names, *self._keys]))
        enums = self._find_enums()
        self.texts = {name: self._text(name, enums.get(name)) for name in self.names}
        # One of these writes no nulls.
        self._writers = {
            name: StringWriter(cast("Callable[[Any], str]", text))
            for name, text in self.texts.items()
            if text is not None and capture.none_of(name) is None
        }
        self._plain_text = plain_text

    def write_text(self, form: str, out: BinaryIO) -> None:
        """Write "csv", "spreadsheet" or "json", in the order of the file, or the file "psc1" of
        write_plain() below; else UsageError."""
        if form == "psc1":
            write_plain(self.capture, self.names, out)
            return
        write_lines(self.capture, self.texts, form, out)

    def tables(self, reuse: bool = False, rows: int | None = None) -> Iterator[dict[str, Any]]:
        """Tables of at most `rows` snapshots, named SNAPSHOT.

        After the last table, capture.lost needs no second pass. reuse: see formats.base.reader.
        """
        rows = rows or (SORTED_ROWS if self._by_connection else ROWS)
        losses = self.capture.count_losses()
        buffers = itertools.cycle([_Buffer(), _Buffer()] if reuse else [None])
        for piece in list(self.capture.chunks(rows)) or [slice(0, 0)]:
            found = self._columns(piece, next(buffers) or _Buffer(), losses)
            if self._by_connection:
                self._sort(found)
            for name in self.names:
                if self.capture.columns_by_name[name].is_time:
                    found[name] //= 1000
            writers = self._writers if self._plain_text else None
            yield {SNAPSHOT: _make_table(self.capture, found, self.texts, "us", writers)}

    def _columns(
        self, piece: slice, buffer: _Buffer, losses: Losses | None
    ) -> dict[str, npt.NDArray[Any]]:
        """The wanted columns and the sort keys, for the snapshots in a slice of the entries."""
        capture, reader = self.capture, self._reader
        rows = reader.rows
        arrays = buffer.arrays(reader.dtypes, piece.stop - piece.start)
        done = 0
        for low in range(piece.start, piece.stop, len(rows)):
            some = rows[: piece.stop - low]
            capture.read_into(some, low)
            if losses is not None and capture.seq_column is not None:
                losses.add(decode(some, capture.seq_column, capture.header.endian))
            kept = capture.snapshots_of(some)
            if len(kept) < len(some):
                some[: len(kept)] = kept.view(some.dtype)
            reader.read(len(kept), arrays, done)
            done += len(kept)
        names = dict.fromkeys([*self.names, *self._keys])
        return {name: values[:done] for name, values in zip(names, arrays, strict=True)}

    def _sort(self, found: dict[str, npt.NDArray[Any]]) -> None:
        """Sort the rows by connection; those of a connection stay in the order of the file."""
        keys = [found[name] for name in self._keys]
        if keys and self._keys[-1] == "conn_id" and keys[-1].all():
            del keys[:-1]  # ports matter only where an id is missing
        order = np.arange(len(next(iter(found.values()))))
        for values in keys:
            order = order[np.argsort(self._ranks(values)[order], kind="stable")]
        unused: dict[int, npt.NDArray[Any]] = {}
        for name, values in found.items():
            if not _is_constant(values):
                size = values.itemsize
                # The array of one column, once sorted, takes the next column of the same width.
                out = unused[size].view(values.dtype) if size in unused else np.empty_like(values)
                found[name] = np.take(values, order, out=out, mode="clip")
                unused[size] = values

    def _ranks(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Numbers in the same order as the values, of 16 bits if possible (fast to sort)."""
        narrow = _narrow(values)
        if narrow is not None:
            return narrow
        encoded = import_pyarrow().array(values).dictionary_encode()
        known = encoded.dictionary.to_numpy()
        if len(known) > 1 << 16:
            return values
        ranks = np.empty(len(known), np.uint16)
        ranks[np.argsort(known)] = np.arange(len(known), dtype=np.uint16)
        found: npt.NDArray[Any] = ranks[encoded.indices.to_numpy()]
        return found

    def _find_enums(self) -> dict[str, dict[int, str]]:
        """The names of values, for each column that has an enum in the file's schema."""
        schema = self.capture.schema
        if schema is None:
            return {}
        enums = {enum.name: enum.names() for enum in schema.enums}
        types = {field.name: field.type for event in schema.events for field in event.fields}
        return {
            name: enums[key]
            for name in self.names
            for key in (types.get(name, ""), name)
            if key in enums
        }

    def _text(self, name: str, names: Mapping[int, str] | None) -> Text | None:
        """The function that converts the column to text; None for plain numbers and times."""
        column = self.capture.find_column(name)
        if column.is_time or (column.is_integer and names is None):
            return None
        if column.is_integer and names is not None:
            return lambda value: names.get(value, str(value))
        text = text_of if self.capture.is_text(name) else _bytes_of
        return _or_none(self.capture, name, text)


class _Buffer:
    """Memory that is used again for each table: new pages would cost more time than the work."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def arrays(self, dtypes: Sequence[np.dtype[Any]], rows: int) -> list[npt.NDArray[Any]]:
        """One array of `rows` values for each dtype. They overwrite the arrays of the last call."""
        sizes = [-(-dtype.itemsize * rows // 64) * 64 for dtype in dtypes]
        if len(self._bytes) < sum(sizes):
            self._bytes = np.empty(sum(sizes), np.uint8)
        starts = itertools.accumulate(sizes, initial=0)
        return [
            self._bytes[start : start + dtype.itemsize * rows].view(dtype)
            for dtype, start in zip(dtypes, starts, strict=False)
        ]


def _is_constant(values: npt.NDArray[Any]) -> bool:
    """Whether all values are equal. Only integers are compared, others count as different."""
    if values.dtype.kind not in "iu" or not len(values):
        return not len(values)
    some = values[::_SAMPLE_STRIDE]
    return bool((some == some[0]).all() and (values == some[0]).all())


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The integers minus their minimum, as 16 bits; None if that range is too large."""
    if not len(values):
        return values
    least = values.min()
    is_narrow = int(values.max()) - int(least) < 1 << 16
    return (values - least).astype(np.uint16) if is_narrow else None


def _bytes_of(data: bytes) -> str:
    """The text of raw bytes that are no name: an address, or else hex digits."""
    return address_of(data) if len(data) == 16 else data.hex()
