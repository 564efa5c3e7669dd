# SPDX-License-Identifier: Apache-2.0
"""Writes tables of one kind as one Parquet or Arrow file.

Of records one thread makes the next table while another writes the table before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.reader import Records

BATCH_ROWS = 1 << 17
_FEW = 128
_SAMPLE_ROWS = 1024


def write_parquet(records: Records, out: BinaryIO) -> None:
    """Write the records as Parquet, one row group for each table."""
    write_tables("parquet", _ahead(records), out, encodings)


def write_arrow(records: Records, out: BinaryIO) -> None:
    """Write the records as an Arrow IPC file."""
    write_tables("arrow", map(without_dictionaries, _ahead(records)), out)


def write_tables(
    form: str, tables: Iterable[Any], out: BinaryIO,
    options: Callable[[Any], dict[str, Any]] = lambda first: {"compression": "zstd"},
) -> None:  # fmt: skip
    """Write tables to an empty file. form: parquet, arrow or csv. options: see new_writer()."""
    pyarrow = import_pyarrow()
    writer: Any = None
    # Arrow opens the file itself. Through Python's file, each small write would need Python's lock.
    with pyarrow.OSFile(f"/proc/self/fd/{out.fileno()}", "wb") as sink:
        try:
            for table in tables:
                if writer is None:
                    writer = new_writer(form, sink, table.schema, options(table))
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def new_writer(form: str, sink: Any, schema: Any, options: dict[str, Any]) -> Any:
    """pyarrow's writer. options: of ParquetWriter."""
    if form == "parquet":
        from pyarrow import parquet

        return parquet.ParquetWriter(sink, schema, write_batch_size=BATCH_ROWS, **options)
    if form == "csv":
        from pyarrow import csv

        return csv.CSVWriter(sink, schema)
    return import_pyarrow().ipc.new_file(sink, schema)


def encodings(table: Any) -> dict[str, Any]:
    """Options for ParquetWriter: how to encode and compress each column, from a first table.

    column                                        encoding     codec
    numbers with more than _FEW distinct values   differences  lz4
    a single number                               plain        lz4 (the fastest)
    other numbers                                 plain        zstd (smaller, but slower)
    anything else                                 dictionary   lz4
    """
    from pyarrow import types

    codecs = dict.fromkeys(table.column_names, "lz4")
    numbers: dict[str, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not (types.is_integer(column.type) or types.is_temporal(column.type)):
            continue
        values = column.chunk(0).drop_null().to_numpy()
        if len(np.unique(values[:: len(values) // _SAMPLE_ROWS + 1])) > _FEW:
            numbers[name] = "DELTA_BINARY_PACKED"
            continue
        numbers[name] = "PLAIN"
        if (values[1:] != values[:-1]).any():
            codecs[name] = "zstd"
    return {
        "use_dictionary": [name for name in table.column_names if name not in numbers],
        "column_encoding": numbers,
        "compression": codecs,
        "compression_level": {name: 1 for name, codec in codecs.items() if codec == "zstd"},
    }


def without_dictionaries(table: Any) -> Any:
    """The table without dictionaries: an Arrow file needs one dictionary for all tables."""
    pyarrow = import_pyarrow()
    fields = [
        f.with_type(f.type.value_type) if pyarrow.types.is_dictionary(f.type) else f
        for f in table.schema
    ]
    return table.cast(pyarrow.schema(fields))


def _ahead(records: Records) -> Iterator[Any]:
    """The tables. Another thread makes each one while the caller uses the one before."""
    tables = (table for piece in records.tables(reuse=True) for table in piece.values())
    with ThreadPoolExecutor(1) as pool:
        following: Future[Any] = pool.submit(next, tables, None)
        while (table := following.result()) is not None:
            following = pool.submit(next, tables, None)
            yield table
