# SPDX-License-Identifier: Apache-2.0
"""PSC files to Parquet, Arrow, CSV and JSON lines, in bounded memory: what tcpkmon export calls.

Snapshots alone, one row each: the time as a timestamp of microseconds, enumerated values by name,
addresses and names as text. Control entries are left out (tcpkmon verify tells them).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.errors import UsageError
from formats.escape import for_terminal
from formats.klogger.values import address_of, text_of
from formats.psc.reader import Capture

FORMS = ("parquet", "arrow", "csv", "json")
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv"}
ENDINGS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
ROWS = 1 << 18
TEXT_ROWS = 1 << 14
_LEVEL = 6


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
        self._capture = capture
        self.names = list(capture.names if names is None else dict.fromkeys(names))
        for name in self.names:
            capture.find_column(name)
        self._by_connection = by_connection
        self._enums = self._find_enums()

    def tables(self, rows: int = ROWS) -> Iterator[Any]:
        """The snapshots as pyarrow.Tables of at most so many rows, dictionaries for texts."""
        pieces = list(self._capture.chunks(rows)) or [slice(0, 0)]
        for piece in pieces:
            keep = ~self._capture.control(piece.start, piece.stop)
            found = self._capture.columns(self.names, piece.start, piece.stop)
            if not keep.all():
                found = {name: values[keep] for name, values in found.items()}
            if self._by_connection and keep.any():
                order = self._order(piece, keep)
                found = {name: values[order] for name, values in found.items()}
            arrays = [self._array(name, found[name]) for name in self.names]
            yield self._pyarrow.Table.from_arrays(arrays, names=self.names)

    def _order(self, piece: slice, keep: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Rows by connection, and in the order of the file within each."""
        keys = [name for name in ("conn_id", "rport", "lport") if self._has(name)]
        found = self._capture.columns(keys, piece.start, piece.stop)
        order: npt.NDArray[np.int64] = np.lexsort([found[name][keep] for name in reversed(keys)])
        return order

    def _has(self, name: str) -> bool:
        return name in self._capture.names

    def _find_enums(self) -> dict[str, dict[int, str]]:
        """By column, the names of its values, where the file's schema enumerates them."""
        schema = self._capture.schema
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

    def _array(self, name: str, values: npt.NDArray[Any]) -> Any:
        pyarrow = self._pyarrow
        if self._capture.columns_by_name[name].is_time:
            return pyarrow.array(values // 1000, pyarrow.timestamp("us", "UTC"))
        if values.dtype.kind in "iu":
            if name not in self._enums:
                return pyarrow.array(values)
            names = self._enums[name]
            encoded = pyarrow.array(values).dictionary_encode()
            return self._named(encoded, lambda value: names.get(value, str(value)))
        data = pyarrow.py_buffer(np.ascontiguousarray(values).view(np.uint8))
        whole = pyarrow.FixedSizeBinaryArray.from_buffers(
            pyarrow.binary(values.dtype.itemsize), len(values), [None, data]
        )
        is_text = self._capture.is_text(name)
        return self._named(whole.dictionary_encode(), text_of if is_text else _bytes_of)

    def _named(self, encoded: Any, text: Callable[[Any], str]) -> Any:
        """A dictionary array with a text in place of each value."""
        pyarrow = self._pyarrow
        texts = [text(value) for value in encoded.dictionary.to_pylist()]
        return pyarrow.DictionaryArray.from_arrays(
            encoded.indices, pyarrow.array(texts, pyarrow.string())
        )


def write(export: Export, form: str, out: BinaryIO) -> None:
    """Write the snapshots in one of FORMS."""
    if form == "parquet":
        _write_parquet(export, out)
    elif form == "arrow":
        _write_arrow(export, out)
    else:
        _write_text(export, form, out)


def _write_parquet(export: Export, out: BinaryIO) -> None:
    from pyarrow import parquet

    pyarrow = import_pyarrow()
    writer: Any = None
    try:
        for table in export.tables():
            if writer is None:
                texts = [f.name for f in table.schema if pyarrow.types.is_dictionary(f.type)]
                numbers = [name for name in export.names if name not in texts]
                writer = parquet.ParquetWriter(
                    out,
                    table.schema,
                    compression="zstd",
                    compression_level=_LEVEL,
                    use_dictionary=texts,
                    # Numbers of a connection change little from row to row.
                    column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
                    write_statistics=False,
                )
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _write_arrow(export: Export, out: BinaryIO) -> None:
    pyarrow = import_pyarrow()
    writer: Any = None
    try:
        for table in export.tables():
            plain = _plain(table)
            if writer is None:
                writer = pyarrow.ipc.new_file(out, plain.schema)
            writer.write_table(plain)
    finally:
        if writer is not None:
            writer.close()


def _write_text(export: Export, form: str, out: BinaryIO) -> None:
    """CSV with a line of names, or a JSON object a line: all cells of a column at a time."""
    pyarrow = import_pyarrow()
    names = export.names
    if form == "csv":
        out.write((",".join(names) + "\n").encode())
    begin, separators = "", [","] * len(names)
    if form == "json":
        begin = "{" + json.dumps(names[0]) + ":"
        separators = [f",{json.dumps(name)}:" for name in names[1:]] + ["}"]
    else:
        separators[-1] = ""
    for table in export.tables(TEXT_ROWS):
        if not len(table):
            continue
        pieces: list[Any] = [pyarrow.scalar(begin)] if begin else []
        for index, name in enumerate(names):
            pieces.append(_cells(table.column(name).combine_chunks(), form))
            if index < len(names) - 1 or separators[index]:
                pieces.append(pyarrow.scalar(separators[index]))
        lines = pyarrow.compute.binary_join_element_wise(*pieces, pyarrow.scalar("\n"), "")
        _, offsets, data = lines.buffers()
        ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
        out.write(memoryview(data)[int(ends[0]) : int(ends[-1])])


def _cells(values: Any, form: str) -> Any:
    """A column's values as text, as they stand in CSV or JSON."""
    pyarrow = import_pyarrow()
    if pyarrow.types.is_dictionary(values.type):
        quote = json.dumps if form == "json" else _csv_text
        texts = pyarrow.array([quote(text) for text in values.dictionary.to_pylist()])
        return texts.cast(pyarrow.string()).take(values.indices)
    cells = values.cast(pyarrow.string())
    if form == "json" and pyarrow.types.is_timestamp(values.type):
        quote_mark = pyarrow.scalar('"')
        return pyarrow.compute.binary_join_element_wise(quote_mark, cells, quote_mark, "")
    return cells


def _csv_text(text: str) -> str:
    text = for_terminal(text)
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text


def _plain(table: Any) -> Any:
    """The table without dictionaries, which differ from table to table."""
    pyarrow = import_pyarrow()
    fields = [
        pyarrow.field(f.name, f.type.value_type if pyarrow.types.is_dictionary(f.type) else f.type)
        for f in table.schema
    ]
    return table.cast(pyarrow.schema(fields))


def _bytes_of(data: bytes) -> str:
    """A column of raw bytes that is no name: an address, or whatever else as hex digits."""
    return address_of(data) if len(data) == 16 else data.hex()
