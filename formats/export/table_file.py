# SPDX-License-Identifier: Apache-2.0
"""One Parquet or Arrow file of tables of one kind: one thread makes them, another writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np

from formats.base.arrow import import_pyarrow
from formats.base.reader import Records

BATCH_ROWS = 1 << 16
_FEW = 128
_SAMPLE_ROWS = 1024
_STEADY = 0.005


def write_parquet(records: Records, out: BinaryIO) -> None:
    """Write the records as Parquet, a row group for each table."""
    from pyarrow import parquet

    def new_writer(sink: Any, table: Any) -> Any:
        options = encodings(table) | {"write_statistics": False, "write_batch_size": BATCH_ROWS}
        return parquet.ParquetWriter(sink, table.schema, **options)

    _write(_ahead(records), new_writer, out)


def encodings(table: Any) -> dict[str, Any]:
    """How ParquetWriter is to encode and compress the columns, by the rows of a first table.

    Numbers of many values change little from row to row: their differences are written. Others
    cost least as they are: of what stays the same LZ4 makes next to nothing, and of what changes
    now and then zstd makes less, but is slower. Of everything else there are few: a dictionary.
    """
    from pyarrow import types

    codecs = dict.fromkeys(table.column_names, "lz4")
    numbers: dict[str, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not (types.is_integer(column.type) or types.is_temporal(column.type)):
            continue
        values = column.chunk(0).to_numpy()
        if len(np.unique(values[:: len(values) // _SAMPLE_ROWS + 1])) > _FEW:
            numbers[name] = "DELTA_BINARY_PACKED"
            continue
        numbers[name] = "PLAIN"
        if np.count_nonzero(values[1:] != values[:-1]) > _STEADY * len(values):
            codecs[name] = "zstd"
    return {
        "use_dictionary": [name for name in table.column_names if name not in numbers],
        "column_encoding": numbers,
        "compression": codecs,
        "compression_level": {name: 1 for name, codec in codecs.items() if codec == "zstd"},
    }


def write_arrow(records: Records, out: BinaryIO) -> None:
    """Write the records as an Arrow IPC file."""
    pyarrow = import_pyarrow()

    def new_writer(sink: Any, table: Any) -> Any:
        return pyarrow.ipc.new_file(sink, table.schema)

    _write(map(without_dictionaries, _ahead(records)), new_writer, out)


def without_dictionaries(table: Any) -> Any:
    """The table without dictionaries, which differ from table to table."""
    pyarrow = import_pyarrow()
    fields = [
        f.with_type(f.type.value_type) if pyarrow.types.is_dictionary(f.type) else f
        for f in table.schema
    ]
    return table.cast(pyarrow.schema(fields))


def _write(tables: Iterator[Any], new_writer: Callable[[Any, Any], Any], out: BinaryIO) -> None:
    """Write the tables to an empty file, by what `new_writer` gives for the first of them."""
    pyarrow = import_pyarrow()
    writer: Any = None
    # Opened again: each of Arrow's many small writes to a file of Python would take Python's lock.
    with pyarrow.OSFile(f"/proc/self/fd/{out.fileno()}", "wb") as sink:
        try:
            for table in tables:
                if writer is None:
                    writer = new_writer(sink, table)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _ahead(records: Records) -> Iterator[Any]:
    """The tables, each made in another thread while the one before it is used."""
    tables = (table for piece in records.tables(reuse=True) for table in piece.values())
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Any] = pool.submit(next, tables, None)
        while (table := waiting.result()) is not None:
            waiting = pool.submit(next, tables, None)
            yield table
