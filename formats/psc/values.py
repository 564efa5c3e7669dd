# SPDX-License-Identifier: Apache-2.0
"""Values out of the raw entries of a PSC file: any width and byte order to native numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from formats.control import WORDS_BYTES, WORDS_COUNT, WORDS_OFFSET
from formats.psc.columns import FLAG_INT_NET, FLAG_STRING, Column, Endian

ORDERS = {Endian.LITTLE: "<", Endian.BIG: ">", Endian.PDP: "pdp"}
"""The order that entry_dtype() takes, by the byte order of the file."""

Rows = npt.NDArray[Any]


def native_dtype(column: Column, signed: bool = False) -> np.dtype[Any]:
    """What decode() gives for a column: int64 ns for the time, the next wider integer, S or V."""
    if column.is_time:
        return np.dtype(np.int64)
    if column.is_integer:
        width = next(width for width in (1, 2, 4, 8) if width >= column.length)
        return np.dtype(f"{'i' if signed else 'u'}{width}")
    return np.dtype(f"{'S' if column.flags & FLAG_STRING else 'V'}{column.length}")


def decode(rows: Rows, column: Column, endian: Endian, signed: bool = False) -> npt.NDArray[Any]:
    """A present column of contiguous rows (any dtype of the entry's size) as native_dtype().

    The time becomes ns since the epoch. `signed` is for integers of 1, 2, 4 or 8 bytes.
    """
    data = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    data = data[:, column.offset : column.offset + column.length]
    dtype = native_dtype(column, signed)
    if column.is_time:
        half = column.length // 2
        seconds = _integers(data[:, :half], endian).astype(dtype)
        micros = _integers(data[:, half:], endian).astype(dtype)
        time_ns: npt.NDArray[Any] = seconds * 1_000_000_000 + micros * 1000
        return time_ns
    if column.is_integer:
        order = Endian.BIG if column.flags & FLAG_INT_NET else endian
        return _integers(data, order).astype(dtype)
    raw: npt.NDArray[Any] = np.ascontiguousarray(data).view(dtype).reshape(len(rows))
    return raw


def words(rows: Rows, endian: Endian) -> npt.NDArray[Any]:
    """The words w0..w9 of control entries, u32 of shape (len(rows), 10); see formats.control."""
    data = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    data = data[:, WORDS_OFFSET : WORDS_OFFSET + WORDS_BYTES].reshape(-1, 4)
    found: npt.NDArray[Any] = _integers(data, endian).reshape(len(rows), WORDS_COUNT)
    return found


def _integers(data: npt.NDArray[np.uint8], endian: Endian) -> npt.NDArray[Any]:
    """Unsigned integers from bytes of shape (rows, 1 to 8)."""
    count, length = data.shape
    if length in (1, 2, 4, 8) and (endian != Endian.PDP or length <= 2):
        order = ">" if endian == Endian.BIG else "<"
        plain: npt.NDArray[Any] = np.ascontiguousarray(data).view(f"{order}u{length}")[:, 0]
        return plain
    value = np.zeros(count, np.uint64)
    for index in significance(length, endian):
        value = (value << np.uint64(8)) | data[:, index]
    return value


def significance(length: int, endian: Endian) -> list[int]:
    """The indices of an integer's bytes, most significant first.

    A PDP-11 stores the more significant 16-bit word first and each word little-endian; of an odd
    number of bytes the last stands alone and is the least significant.

        value 0x0A0B0C0D    little 0D 0C 0B 0A    big 0A 0B 0C 0D    PDP 0B 0A 0D 0C
    """
    if endian == Endian.BIG:
        return list(range(length))
    if endian == Endian.LITTLE:
        return list(reversed(range(length)))
    return [min(index ^ 1, length - 1) for index in range(length)]
