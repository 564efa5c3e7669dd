# SPDX-License-Identifier: Apache-2.0
"""Makes a file again of the Parquet file that it was archived as, byte for byte.

The Parquet file has the snapshots as its rows, sorted for queries; its metadata have the rest:

    tcpkmon.capture   JSON: see Original
    tcpkmon.header    the file's header
    tcpkmon.control   its other entries, raw, one behind the other

The entries' numbers tell their order. formats/psc/archive.py writes the metadata.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.arrow import damage, import_pyarrow
from tcpkmon.formats.base.errors import DamagedError, UnprovenError
from tcpkmon.formats.base.limits import (
    FEW_UNPACKED_BYTES,
    MOST_COLUMNS,
    MOST_CONTROLS_BYTES,
    MOST_GROUP_ROWS,
    MOST_HEADER_BYTES,
    MOST_UNPACKED_BYTES,
    MOST_UNPACKED_TIMES,
)

CAPTURE, HEADER, CONTROL = b"tcpkmon.capture", b"tcpkmon.header", b"tcpkmon.control"
TIME, NUMBER, TEXT, ADDRESS, BYTES = "time", "number", "text", "address", "hex"
_ROWS = 1 << 16
_WIDTHS = {TIME: (8, 16), NUMBER: (1, 2, 4, 8), ADDRESS: (16,)}
_MOST_ENTRY_BYTES = 1 << 16
_METADATA = "the metadata of an archive are damaged"
_WORDS = ("sha256", "order", "name", "form")


@dataclass(frozen=True)
class Packed:
    """A column, and how the bytes of an entry are made of its value.

    form: of these above. order: "<" or ">", of a number or the time. values: of a text, the number
    or the bytes (in hex) that it stands for, where the form does not tell. none: what null stands
    for, of a text bytes that are all 0; None where there are no nulls.
    """

    name: str
    offset: int
    length: int
    form: str
    order: str
    values: Mapping[str, Any] = field(default_factory=dict)
    none: int | None = None


@dataclass(frozen=True)
class Original:
    """The file that was archived. number: name, offset and length of the column with the number of
    an entry, of which the first entry has `first`."""

    sha256: str
    bytes: int
    entries: int
    entry_size: int
    order: str
    number: tuple[str, int, int]
    first: int
    columns: Sequence[Packed]

    def as_json(self) -> str:
        """For the metadata."""
        return json.dumps(asdict(self), separators=(",", ":"))


def pack(data: bytes) -> bytes:
    """Bytes as the metadata have them."""
    return base64.b64encode(zlib.compress(data, 9))


def check_unpacked(size: int, packed: int, path: object) -> None:
    """DamagedError if an archive of `packed` bytes holds `size` bytes, more than it may."""
    most = min(MOST_UNPACKED_BYTES, max(FEW_UNPACKED_BYTES, packed * MOST_UNPACKED_TIMES))
    if size > most:
        raise DamagedError(f"{path} has {packed} bytes, but holds more than {most}")


def header_of(file: FileIO, path: Any) -> bytes:
    """The header of the file that was archived. UnprovenError, DamagedError, OSError."""
    return _Parquet(file, path).header


def restore(file: FileIO, path: Any, out: FileIO) -> None:
    """Write what was archived in a Parquet file to an empty file.

    UnprovenError for a Parquet file that has no metadata of these; DamagedError unless each byte is
    what it was; OSError.
    """
    parquet = _Parquet(file, path)
    with damage(f"{path}: the Parquet file is damaged"):
        parquet.write(out)


class _Parquet:
    """An open Parquet file that is an archive."""

    def __init__(self, file: FileIO, path: Any) -> None:
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        self._path = path
        with damage(f"{path}: not a whole Parquet file"):
            size = os.fstat(file.fileno()).st_size
            self._file = parquet.ParquetFile(pyarrow.PythonFile(file, "r"))
            found = self._file.schema_arrow.metadata or {}
        if CAPTURE not in found:
            raise UnprovenError(
                f"{path} is Parquet without what makes it a capture again: nothing proves what is "
                "in it",
                "archives of earlier versions and exports are so",
            )
        self._size, self._packed = size, found
        self.header = self._unpack(HEADER, MOST_HEADER_BYTES)

    def _unpack(self, name: bytes, most: int) -> bytes:
        """One of the metadata, of at most so many bytes."""
        unpacking = zlib.decompressobj()
        try:
            packed = base64.b64decode(self._packed[name], validate=True)
            data = unpacking.decompress(packed, most)
            if unpacking.eof:
                return data
        except (ValueError, KeyError, zlib.error) as error:
            raise DamagedError(f"{self._path}: {_METADATA}") from error
        raise DamagedError(f"{self._path}: {_METADATA}")

    def _read(self) -> Original:
        try:
            text = self._packed[CAPTURE]
            if len(text) <= MOST_HEADER_BYTES:
                return _read(json.loads(text))
        except (ValueError, TypeError, LookupError, RecursionError, AttributeError) as error:
            raise DamagedError(f"{self._path}: {_METADATA}") from error
        raise DamagedError(f"{self._path}: {_METADATA}")

    def _check(self, one: Original, control: bytes) -> None:
        told = self._file.metadata
        controls, rest = divmod(len(control), one.entry_size)
        entries = told.num_rows + controls
        if rest or one.entries != entries:
            what = f"{told.num_rows} rows and {controls} entries, not {one.entries}"
            raise DamagedError(f"{self._path}: the archive has {what}")
        if one.bytes != len(self.header) + one.entries * one.entry_size:
            raise DamagedError(f"{self._path}: {one.entries} entries do not take {one.bytes} bytes")
        check_unpacked(one.bytes, self._size, self._path)
        groups = [told.row_group(at).num_rows for at in range(told.num_row_groups)]
        if max(groups, default=0) > MOST_GROUP_ROWS:
            raise DamagedError(f"{self._path}: a row group has more than {MOST_GROUP_ROWS} rows")

    def write(self, out: FileIO) -> None:
        """See restore()."""
        one, found = self._read(), self._unpack(CONTROL, MOST_CONTROLS_BYTES)
        self._check(one, found)
        self.original, size = one, one.entry_size
        # With all its room: a memory map of a file without it ends the process on a full disk.
        os.posix_fallocate(out.fileno(), 0, max(one.bytes, 1))
        os.pwrite(out.fileno(), self.header, 0)
        control = np.frombuffer(found, np.uint8).reshape(-1, size)
        name, offset, length = one.number
        mine = np.ascontiguousarray(control[:, offset : offset + length])
        numbers = [self._places(mine.view(f"{one.order}u{length}")[:, 0])]
        numbers += [self._places(batch.column(0)) for batch in self._batches([name])]
        every = np.sort(np.concatenate(numbers))
        if not (np.diff(every) > 0).all():
            raise DamagedError(f"{self._path}: two entries of the archive have one number")
        if one.entries:
            rows = np.memmap(out, np.uint8, "r+", len(self.header), (one.entries, size))
            rows[np.searchsorted(every, numbers[0])] = control
            for batch in self._batches([column.name for column in one.columns]):
                self._put(batch, rows, every)
            rows.flush()
        digest = hashlib.sha256()
        for at in range(0, one.bytes, 1 << 20):
            digest.update(os.pread(out.fileno(), 1 << 20, at))
        if digest.hexdigest() != one.sha256:
            raise DamagedError(f"{self._path}: what was archived does not come out again")

    def _batches(self, names: list[str]) -> Iterator[Any]:
        return self._file.iter_batches(_ROWS, columns=names, use_threads=False)  # type: ignore[no-any-return]

    def _places(self, numbers: Any) -> NDArray[np.int64]:
        """How far each number is from the first; a column or an array."""
        values = numbers if isinstance(numbers, np.ndarray) else numbers.to_numpy(False)
        width = self.original.number[2]
        ahead = values.astype(np.uint64) - np.uint64(self.original.first)
        found: NDArray[np.int64] = (ahead & np.uint64((1 << 8 * width) - 1)).view(np.int64)
        return found

    def _put(self, batch: Any, rows: NDArray[np.uint8], every: NDArray[np.int64]) -> None:
        block = np.zeros((len(batch), rows.shape[1]), np.uint8)
        for column in self.original.columns:
            values = _bytes_of(column, batch.column(column.name))
            block[:, column.offset : column.offset + column.length] = values
        rows[np.searchsorted(every, self._places(batch.column(self.original.number[0])))] = block


def _bytes_of(column: Packed, values: Any) -> NDArray[np.uint8]:
    """(n, length) the bytes of a column's values."""
    count, length = len(values), column.length
    if values.null_count and column.none is None:
        raise ValueError(f"{column.name} has nulls")
    if column.form == NUMBER:
        if values.null_count:
            values = values.fill_null(column.none)
        found = values.to_numpy(False).astype(f"{column.order}u{length}")
    elif column.form == TIME:
        us = values.cast("int64").to_numpy(False)
        halves = np.stack((us // 1_000_000, us % 1_000_000), axis=1)
        found = np.ascontiguousarray(halves.astype(f"{column.order}u{length // 2}"))
    else:
        encoded = values if hasattr(values, "dictionary") else values.dictionary_encode()
        known = b"".join(_from_text(column, text) for text in encoded.dictionary.to_pylist())
        # The last row is what null stands for.
        table = np.frombuffer(known + bytes(length), np.uint8).reshape(-1, length)
        chosen: NDArray[np.uint8] = table[encoded.indices.fill_null(len(table) - 1).to_numpy(False)]
        return chosen
    octets: NDArray[np.uint8] = found.view(np.uint8).reshape(count, length)
    return octets


def _from_text(column: Packed, text: str) -> bytes:
    value = column.values.get(text)
    if isinstance(value, int):
        return value.to_bytes(column.length, "little" if column.order == "<" else "big")
    data = guess(column.form, text, column.length) if value is None else bytes.fromhex(value)
    if type(value) not in (int, str, type(None)) or len(data) != column.length:
        raise ValueError(f"{column.name} {text!r:.40} has not {column.length} bytes")
    return data


def guess(form: str, text: str, length: int) -> bytes:
    """The bytes of which a column of this form has this text, in most cases. ValueError."""
    if form == ADDRESS:
        address = ipaddress.ip_address(text)
        is_v4 = isinstance(address, ipaddress.IPv4Address)
        return bytes(10) + b"\xff\xff" + address.packed if is_v4 else address.packed
    return bytes.fromhex(text) if form == BYTES else text.encode().ljust(length, b"\0")


def _read(found: Any) -> Original:
    """The metadata, each value of a kind and size that can be. ValueError, TypeError, KeyError."""
    columns = found.pop("columns")
    if not isinstance(columns, list) or len(columns) > MOST_COLUMNS:
        raise ValueError
    one = Original(columns=[Packed(**column) for column in columns], **found)
    for part in (vars(one), *map(vars, one.columns)):
        for key, value in part.items():
            kind = str if key in _WORDS else int
            if key == "none" and value is None:
                continue
            if key not in ("number", "columns", "values") and type(value) is not kind:
                raise ValueError
            if type(value) is int and value < 0:
                raise ValueError
    name, offset, length = one.number
    is_inside = 0 < one.entry_size <= _MOST_ENTRY_BYTES and one.order in ("<", ">")
    is_inside &= type(name) is str and type(offset) is int and length in (4, 8) and offset >= 0
    is_inside &= offset + length <= one.entry_size and one.first < 1 << 63
    for column in one.columns:
        is_inside &= column.offset + column.length <= one.entry_size and column.length > 0
        is_inside &= column.length in _WIDTHS.get(column.form, (column.length,))
        is_inside &= column.order in ("<", ">") and isinstance(column.values, dict)
    if not is_inside or one.bytes >= 1 << 62:
        raise ValueError
    return one
