# SPDX-License-Identifier: Apache-2.0
"""Decodes columns of raw PSC entries, of any width and byte order, to native numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.byteorder import Endian, Rows, integers, strided
from tcpkmon.formats.base.control import WORDS_COUNT, WORDS_OFFSET
from tcpkmon.formats.psc.columns import Column

ORDERS = {Endian.LITTLE: "<", Endian.BIG: ">", Endian.PDP: "pdp"}
"""The argument `order` of entry_dtype() for each byte order of a file."""


def native_dtype(column: Column, signed: bool = False) -> np.dtype[Any]:
    """The dtype of decode() for a column: int64 ns for the time, the next wider integer, S or V."""
    if column.is_time:
        return np.dtype(np.int64)
    if column.is_integer:
        width = next(width for width in (1, 2, 4, 8) if width >= column.length)
        return np.dtype(f"{'i' if signed else 'u'}{width}")
    return np.dtype(f"{'S' if column.is_raw else 'V'}{column.length}")


def decode(rows: Rows, column: Column, endian: Endian, signed: bool = False) -> npt.NDArray[Any]:
    """The values of a present column as native_dtype(); the time in ns since the epoch.

    rows: contiguous, of any dtype with the entry's size. signed: for integers of 1, 2, 4 or 8
    bytes.
    """
    dtype = native_dtype(column, signed)
    if column.is_time:
        half = column.length // 2
        time_ns = integers(rows, column.offset, half, endian).astype(dtype)
        time_ns *= 1_000_000
        time_ns += integers(rows, column.offset + half, half, endian).astype(dtype)
        time_ns *= 1000
        return time_ns
    if column.is_integer:
        order = Endian.BIG if column.is_network else endian
        return integers(rows, column.offset, column.length, order).astype(dtype)
    raw: npt.NDArray[Any] = strided(rows, column.offset, dtype).copy()
    return raw


class ColumnReader:
    """Decodes columns of the array `rows`, each time after the caller has filled it with entries.

    It does once what decode() does in each call. `dtypes` are those of the decoded columns.
    """

    def __init__(
        self, columns: Sequence[Column], signed: Sequence[bool], endian: Endian, rows: Rows
    ) -> None:
        self.rows = rows
        self._endian = endian
        self._columns = list(zip(columns, signed, strict=True))
        self.dtypes = [native_dtype(column, is_signed) for column, is_signed in self._columns]
        self._views = [_views(column, endian, rows) for column in columns]

    def read(self, count: int, out: Sequence[npt.NDArray[Any]], low: int = 0) -> None:
        """Write the values of the first `count` rows into out[column][low : low + count]."""
        for views, values, column in zip(self._views, out, self._columns, strict=True):
            some = values[low : low + count]
            if not views:
                some[:] = decode(self.rows[:count], column[0], self._endian, column[1])
                continue
            some[:] = views[0][:count]
            if len(views) == 2:
                some *= 1_000_000
                some += views[1][:count].astype(np.int64)
                some *= 1000


def _views(column: Column, endian: Endian, rows: Rows) -> list[npt.NDArray[Any]]:
    """Views to copy the values from: two for a time, none where copying is not enough."""
    offset, length = column.offset, column.length
    order = Endian.BIG if column.is_integer and column.is_network else endian
    if column.is_time and endian != Endian.PDP:
        half = np.dtype(f"{ORDERS[order]}u{length // 2}")
        return [strided(rows, offset, half), strided(rows, offset + length // 2, half)]
    if column.is_integer and length in (1, 2, 4, 8) and order != Endian.PDP:
        return [strided(rows, offset, np.dtype(f"{ORDERS[order]}u{length}"))]
    if not column.is_integer and not column.is_time:
        return [strided(rows, offset, native_dtype(column))]
    return []


def words(rows: Rows, endian: Endian) -> npt.NDArray[Any]:
    """The words w0..w9 of control entries, u32 of shape (len(rows), 10); see base/control.py."""
    found = np.empty((len(rows), WORDS_COUNT), np.uint32)
    for place in range(WORDS_COUNT):
        found[:, place] = integers(rows, WORDS_OFFSET + 4 * place, 4, endian)
    return found
