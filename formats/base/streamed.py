# SPDX-License-Identifier: Apache-2.0
"""PSC entries as an Arrow stream, which pandas and DuckDB read, and out of which they come again.

    schema           metadata: tcpkmon.header, the header of the PSC file; tcpkmon.entry, its layout
    record batch     a row for each entry; of a control entry, the column `control` alone: its bytes
    ...

Every message is written at once, so that a stream can be read while it grows.
"""

from __future__ import annotations

import json
import os
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.arrow import damage, import_pyarrow
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_COLUMNS, MOST_GROUP_ROWS, MOST_HEADER_BYTES

CONTROL = "control"
_HEADER, _ENTRY = b"tcpkmon.header", b"tcpkmon.entry"
_MOST_ENTRY_BYTES = 1 << 16


def make_schema(header: bytes, dtype: np.dtype[Any]) -> Any:
    """The schema of entries of this type; header: all that is before the first."""
    pyarrow = import_pyarrow("--format arrow")
    places = dict(dtype.fields or {})
    kinds = [places[name][0] for name in dtype.names or ()]
    offsets = [places[name][1] for name in dtype.names or ()]
    entry = {"names": dtype.names, "formats": [kind.str for kind in kinds], "offsets": offsets,
             "itemsize": dtype.itemsize}  # fmt: skip
    columns = [
        pyarrow.field(name, pyarrow.binary(kind.itemsize) if kind.kind == "V" else
                      pyarrow.from_numpy_dtype(kind.newbyteorder("=")))
        for name, kind in zip(dtype.names or (), kinds, strict=True)
    ]  # fmt: skip
    return pyarrow.schema(
        [*columns, pyarrow.field(CONTROL, pyarrow.binary())],
        {_HEADER: header.hex().encode(), _ENTRY: json.dumps(entry).encode()},
    )


def make_batch(schema: Any, entries: NDArray[Any], is_control: NDArray[np.bool_]) -> bytes:
    """The message of some entries."""
    pyarrow, count = import_pyarrow(), len(entries)
    valid = pyarrow.py_buffer(np.packbits(~is_control, bitorder="little").tobytes())
    arrays = []
    for field in list(schema)[:-1]:
        values = entries[field.name]
        data = values.astype(values.dtype.newbyteorder("="), copy=False).tobytes()
        buffers = [valid, pyarrow.py_buffer(data)]
        arrays.append(pyarrow.Array.from_buffers(field.type, count, buffers))
    raw: list[bytes | None] = [None] * count
    for at in np.flatnonzero(is_control).tolist():
        raw[at] = entries[at : at + 1].tobytes()
    arrays.append(pyarrow.array(raw, pyarrow.binary()))
    batch = pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
    return bytes(batch.serialize())


def header_of(file: FileIO, path: Any) -> bytes:
    """The header in an open stream, and nothing more. DamagedError, OSError."""
    return _open(file, path)[1]


def restore(file: FileIO, path: Any, out: FileIO) -> None:
    """Write the entries of a stream, behind their header, to an empty file; of a message that is
    cut short or damaged, and what follows it, the beginning of an entry. DamagedError, OSError."""
    reader, header, dtype = _open(file, path)
    _write(out, header)
    try:
        with damage(str(path)):
            for batch in reader:
                _write(out, _rows(batch, dtype).tobytes())
    except DamagedError:
        _write(out, b"\0")


def _rows(batch: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """ValueError for what make_batch() has not made."""
    batch.validate(full=True)
    if batch.num_rows > MOST_GROUP_ROWS:
        raise ValueError("too many rows")
    rows = np.zeros(batch.num_rows, dtype)
    for name, column in zip(dtype.names or (), batch.columns, strict=False):
        kind = dtype[name].newbyteorder("=")
        data = column.buffers()[1] if batch.num_rows else b""
        rows[name] = np.frombuffer(data, kind, batch.num_rows, column.offset * kind.itemsize)
    raw = rows.view(f"V{dtype.itemsize}")
    *_, control = batch.columns
    at = np.flatnonzero(control.is_valid().to_numpy(zero_copy_only=False))
    for row, data in zip(at.tolist(), control.drop_null().to_pylist(), strict=True):
        if len(data) != dtype.itemsize:
            raise ValueError("a control entry of another size")
        raw[row] = data
    return rows


def _open(file: FileIO, path: Any) -> tuple[Any, bytes, np.dtype[Any]]:
    pyarrow = import_pyarrow()
    with damage(f"{path}: an Arrow stream that is no capture"):
        reader = pyarrow.ipc.open_stream(pyarrow.PythonFile(file, "r"))
        found = reader.schema.metadata or {}
        header = bytes.fromhex(found[_HEADER].decode("ascii"))
        entry = json.loads(found[_ENTRY])
        names = entry["names"]
        if entry["itemsize"] > _MOST_ENTRY_BYTES or len(names) > MOST_COLUMNS:
            raise ValueError("an entry is too large")
        if len(header) > MOST_HEADER_BYTES or reader.schema.names != [*names, CONTROL]:
            raise ValueError("the schema is another one")
        keys = ("names", "formats", "offsets", "itemsize")
        dtype: np.dtype[Any] = np.dtype({key: entry[key] for key in keys})  # type: ignore[call-overload]
        if dtype.hasobject or make_schema(header, dtype) != reader.schema:
            raise ValueError("the columns are others")
        return reader, header, dtype


def _write(out: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out.fileno(), view) :]
