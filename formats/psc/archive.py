# SPDX-License-Identifier: Apache-2.0
"""What the metadata of a Parquet file need, so that the capture comes out of it again."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tcpkmon.formats.base import restore
from tcpkmon.formats.base.arrow import encode
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.limits import MOST_CONTROLS_BYTES, MOST_STRANGE
from tcpkmon.formats.base.restore import Original, Packed
from tcpkmon.formats.psc.columns import Column
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.psc.tables import Snapshots


def describe(capture: Capture, records: Snapshots) -> dict[bytes, bytes]:
    """The metadata for a capture of one file, whose rows `records` are.

    FileError for one that does not come out of Parquet again.
    """
    header, number = capture.header, capture.seq_column
    if header.endian == Endian.PDP or number is None or capture.is_cut:
        raise FileError(f"{capture.path} does not come out of Parquet again")
    first_bytes = capture.read_at(0, capture.data_offset)
    size = capture.data_offset + len(capture) * header.entry_size
    order = ">" if header.endian == Endian.BIG else "<"
    first = int(capture.column(number.name, 0, 1)[0]) if len(capture) else 0
    original = Original(
        _digest(capture, first_bytes), size, len(capture), header.entry_size, order,
        (number.name, number.offset, number.length), first,
        [_packed(capture, records, name, order) for name in records.names],
    )  # fmt: skip
    return {
        restore.CAPTURE: original.as_json().encode(),
        restore.HEADER: restore.pack(first_bytes),
        restore.CONTROL: restore.pack(_controls(capture)),
    }


def _digest(capture: Capture, header: bytes) -> str:
    """Of the file, with zeros in the bytes of snapshots that belong to no column."""
    digest = hashlib.sha256(header)
    unused = np.ones(capture.header.entry_size, np.bool_)
    for column in capture.columns_by_name.values():
        unused[column.offset : column.offset + column.length] = False
    for piece in capture.chunks():
        rows = capture.rows(piece.start, piece.stop)
        octets = rows.view(np.uint8).reshape(len(rows), -1)
        if unused.any():
            octets[np.ix_(~capture.control_of(rows), unused)] = 0
        digest.update(octets.data)
    return digest.hexdigest()


def _controls(capture: Capture) -> bytes:
    """The entries that are no snapshots."""
    found, size = [], 0
    for piece in capture.chunks():
        rows = capture.rows(piece.start, piece.stop)
        rows = rows.view(f"V{rows.dtype.itemsize}")[capture.control_of(rows)]
        size += rows.nbytes
        if size > MOST_CONTROLS_BYTES:
            raise FileError(f"{capture.path} has too many control entries for Parquet")
        found.append(rows.tobytes())
    return b"".join(found)


def _packed(capture: Capture, records: Snapshots, name: str, order: str) -> Packed:
    column, form = capture.columns_by_name[name], restore.TEXT
    own = ">" if column.is_network else order
    if column.is_time:
        form = restore.TIME
    elif records.texts[name] is None:
        form = restore.NUMBER
    elif not column.is_integer and not capture.is_text(name):
        form = restore.ADDRESS if column.length == 16 else restore.BYTES
    values = {} if records.texts[name] is None else _strange(capture, records, column, form)
    none = capture.none_of(name)
    return Packed(name, column.offset, column.length, form, own, values, none)


def _strange(capture: Capture, records: Snapshots, column: Column, form: str) -> dict[str, Any]:
    """By its text, each value that the text alone does not tell: a number, or bytes in hex."""
    text, found = records.texts[column.name], dict[str, Any]()
    assert text is not None
    for piece in capture.chunks():
        kept = ~capture.control(piece.start, piece.stop)
        values = encode(capture.column(column.name, piece.start, piece.stop)[kept]).dictionary
        for value in values.to_pylist():
            told = text(value)
            if told is None:
                continue
            if column.is_integer:
                found[told] = value & ((1 << 8 * column.length) - 1)
            elif restore.guess(form, told, column.length) != value:
                found[told] = value.hex()
        if len(found) > MOST_STRANGE:
            raise FileError(f"{capture.path}: column {column.name} does not come out of Parquet")
    return found
