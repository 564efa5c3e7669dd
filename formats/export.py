# SPDX-License-Identifier: Apache-2.0
"""PSC files to Parquet, Arrow, CSV and JSON lines, in bounded memory: what tcpkmon export calls.

Snapshots alone, one row each: the time as a timestamp of microseconds, enumerated values by name,
addresses and names as text. Control entries are left out (tcpkmon verify tells them).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.errors import UsageError
from formats.klogger.values import address_of, text_of
from formats.psc.reader import BLOCK_BYTES, Capture
from formats.psc.values import Place, native_dtype

FORMS = ("parquet", "arrow", "csv", "json")
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv"}
ENDINGS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
ROWS = 1 << 17
_LEVEL = 1
_FEW = 256
_SAMPLE_ROWS = 1 << 14


def import_pyarrow() -> Any:
    """The module pyarrow; UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise UsageError("pyarrow is not installed", "pip install 'tcpkmon[export]'") from error
    return pyarrow


class Export:
    """Chosen columns of a capture, by name; UsageError for one that it lacks.

    by_connection: in each row group the rows of a connection stand together (then they take a
    third of the room); the column seq has the order of the file.
    """

    def __init__(
        self, capture: Capture, names: Sequence[str] | None = None, by_connection: bool = False
    ) -> None:
        self._pyarrow = import_pyarrow()
        self.capture = capture
        self.names = list(capture.names if names is None else dict.fromkeys(names))
        for name in self.names:
            capture.find_column(name)
        self._by_connection = by_connection
        self._enums = self._find_enums()

    def tables(self, rows: int | None = None, rooms: int = 0) -> Iterator[Any]:
        """The snapshots as pyarrow.Tables of at most so many rows (ROWS), dictionaries for texts.

        rooms: so many places in memory are used in turn; a table is valid until its place is used
        again. 0: each has its own, and stays valid.
        """
        pyarrow = self._pyarrow
        places = itertools.cycle([_Room() for _ in range(rooms)] or [None])
        entries = _Room()
        for piece in list(self.capture.chunks(rows or ROWS)) or [slice(0, 0)]:
            found = self._columns(piece, entries, next(places) or _Room())
            arrays = [self._array(name, found[name]) for name in self.names]
            fields = [
                pyarrow.field(name, array.type, nullable=False)
                for name, array in zip(self.names, arrays, strict=True)
            ]
            yield pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))

    def _columns(self, piece: slice, entries: _Room, room: _Room) -> dict[str, npt.NDArray[Any]]:
        """The columns of the snapshots of a piece of the file, in the order wanted."""
        capture = self.capture
        size = capture.header.entry_size
        columns = [capture.find_column(name) for name in self.names]
        signed = [capture.is_signed(column) for column in columns]
        places = [
            Place(column, capture.header.endian, size, is_signed)
            for column, is_signed in zip(columns, signed, strict=True)
        ]
        kinds = [
            native_dtype(column, is_signed)
            for column, is_signed in zip(columns, signed, strict=True)
        ]
        arrays = room.arrays(kinds, piece.stop - piece.start)
        done = 0
        for rows in self._ordered(piece, entries) if self._by_connection else self._kept(piece):
            for place, values in zip(places, arrays, strict=True):
                place.read(rows, values[done : done + len(rows)])
            done += len(rows)
        return {name: values[:done] for name, values in zip(self.names, arrays, strict=True)}

    def _kept(self, piece: slice) -> Iterator[npt.NDArray[Any]]:
        """The snapshots in the order of the file, a few at a time."""
        for rows in self.capture.blocks(piece.start, piece.stop):
            yield self.capture.snapshots_of(rows)

    def _ordered(self, piece: slice, entries: _Room) -> Iterator[npt.NDArray[Any]]:
        """The snapshots by connection, each in the order of the file, a few at a time."""
        capture = self.capture
        size = capture.header.entry_size
        keys = [
            column
            for column in map(capture.columns_by_name.get, ("lport", "rport", "conn_id"))
            if column is not None and column.is_integer
        ]
        places = [Place(column, capture.header.endian, size) for column in keys]
        count = piece.stop - piece.start
        (rows,) = entries.arrays([capture.entry_dtype], count)
        found = [np.empty(count, native_dtype(column)) for column in keys]
        keep = np.empty(count, np.bool_)
        step = max(BLOCK_BYTES // size, 1)
        for low in range(0, count, step):
            some = slice(low, min(low + step, count))
            capture.read_into(rows[some], piece.start + low)
            np.logical_not(capture.control_of(rows[some]), out=keep[some])
            for place, values in zip(places, found, strict=True):
                place.read(rows[some], values[some])
        order = np.flatnonzero(keep)
        if found and keys[-1].name == "conn_id" and found[-1][order].all():
            del found[:-1]  # the ports tell apart only those without an id
        for values in found:
            order = order[np.argsort(self._ranks(values)[order], kind="stable")]
        # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
        plain = rows.view(f"V{size}")
        room = np.empty(min(step, len(order)), plain.dtype)
        for low in range(0, len(order), step):
            which = order[low : low + step]
            yield np.take(plain, which, out=room[: len(which)], mode="clip")

    def _ranks(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Numbers in the order of the values, 16 bits wide where these suffice (fast to sort)."""
        if values.dtype.itemsize <= 2:
            return values
        encoded = self._pyarrow.array(values).dictionary_encode()
        known = encoded.dictionary.to_numpy()
        if len(known) > 1 << 16:
            return values
        ranks = np.empty(len(known), np.uint16)
        ranks[np.argsort(known)] = np.arange(len(known), dtype=np.uint16)
        found: npt.NDArray[Any] = ranks[encoded.indices.to_numpy()]
        return found

    def _find_enums(self) -> dict[str, dict[int, str]]:
        """By column, the names of its values, where the file's schema enumerates them."""
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

    def texts(self, name: str) -> Callable[[Any], str] | None:
        """What tells a value of a column (an int, or bytes) as text; None for plain numbers."""
        column = self.capture.find_column(name)
        if column.is_time or (column.is_integer and name not in self._enums):
            return None
        if column.is_integer:
            names = self._enums[name]
            return lambda value: names.get(value, str(value))
        return text_of if self.capture.is_text(name) else _bytes_of

    def _array(self, name: str, values: npt.NDArray[Any]) -> Any:
        pyarrow = self._pyarrow
        if self.capture.columns_by_name[name].is_time:
            return pyarrow.array(values // 1000, pyarrow.timestamp("us", "UTC"))
        text = self.texts(name)
        if text is None:
            return pyarrow.array(values)
        encoded = encode(values)
        texts = [text(value) for value in encoded.dictionary.to_pylist()]
        return pyarrow.DictionaryArray.from_arrays(
            encoded.indices, pyarrow.array(texts, pyarrow.string()), safe=False
        )


class _Room:
    """A place in memory that is used again and again: new pages cost more than what is done."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def arrays(self, kinds: Sequence[np.dtype[Any]], rows: int) -> list[npt.NDArray[Any]]:
        """An array of so many rows for each of these kinds; those made before are void."""
        sizes = [-(-kind.itemsize * rows // 64) * 64 for kind in kinds]
        if len(self._bytes) < sum(sizes):
            self._bytes = np.empty(sum(sizes), np.uint8)
        ends = list(itertools.accumulate(sizes, initial=0))
        return [
            self._bytes[start : start + kind.itemsize * rows].view(kind)
            for kind, start in zip(kinds, ends, strict=False)
        ]


def encode(values: npt.NDArray[Any]) -> Any:
    """Integers or raw bytes of one width as an Arrow dictionary array."""
    pyarrow = import_pyarrow()
    if values.dtype.kind in "iu":
        return pyarrow.array(values).dictionary_encode()
    data = pyarrow.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    kind = pyarrow.binary(values.dtype.itemsize)
    whole = pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, data])
    return whole.dictionary_encode()


def write(export: Export, form: str, out: BinaryIO) -> None:
    """Write the snapshots in one of FORMS."""
    if form == "parquet":
        _write_parquet(export, out)
    elif form == "arrow":
        _write_arrow(export, out)
    else:
        from formats.exportlines import write_lines

        write_lines(export, form, out)


def _ahead(tables: Iterator[Any]) -> Iterator[Any]:
    """The same, each made in another thread while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Any] = pool.submit(next, tables, None)
        while (table := waiting.result()) is not None:
            waiting = pool.submit(next, tables, None)
            yield table


def _write_parquet(export: Export, out: BinaryIO) -> None:
    from pyarrow import parquet

    writer: Any = None
    try:
        for table in _ahead(export.tables(rooms=2)):
            if writer is None:
                repeating, others = _sort_columns(table)
                writer = parquet.ParquetWriter(
                    out,
                    table.schema,
                    compression="zstd",
                    compression_level=_LEVEL,
                    use_dictionary=repeating,
                    column_encoding=others,
                    write_statistics=False,
                )
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _sort_columns(table: Any) -> tuple[list[str], dict[str, str]]:
    """The columns with a dictionary, and how the others are encoded, by the first rows.

    Numbers of a connection change little from row to row, and many nearly never: those cost least
    as they are, as their pages are compressed anyway (but as 8 bytes that is slow).
    """
    pyarrow = import_pyarrow()
    repeating: list[str] = []
    others: dict[str, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pyarrow.types.is_dictionary(column.type):
            repeating.append(name)
        elif pyarrow.compute.count_distinct(column.slice(0, _SAMPLE_ROWS)).as_py() > _FEW:
            others[name] = "DELTA_BINARY_PACKED"
        elif column.type.bit_width > 32:
            repeating.append(name)
        else:
            others[name] = "PLAIN"
    return repeating, others


def _write_arrow(export: Export, out: BinaryIO) -> None:
    pyarrow = import_pyarrow()
    writer: Any = None
    try:
        for table in _ahead(export.tables(rooms=2)):
            plain = _plain(table)
            if writer is None:
                writer = pyarrow.ipc.new_file(out, plain.schema)
            writer.write_table(plain)
    finally:
        if writer is not None:
            writer.close()


def _plain(table: Any) -> Any:
    """The table without dictionaries, which differ from table to table."""
    pyarrow = import_pyarrow()
    fields = [
        f.with_type(f.type.value_type) if pyarrow.types.is_dictionary(f.type) else f
        for f in table.schema
    ]
    return table.cast(pyarrow.schema(fields))


def _bytes_of(data: bytes) -> str:
    """A column of raw bytes that is no name: an address, or whatever else as hex digits."""
    return address_of(data) if len(data) == 16 else data.hex()
