# SPDX-License-Identifier: Apache-2.0
"""Byte orders, including the PDP-11's, and integers of any width from rows of bytes."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]


class Endian(enum.IntEnum):
    """Byte order of the entries of a PSC file; the values are those of its KIND_ENDIAN."""

    LITTLE = 0
    BIG = 1
    PDP = 2


def integers(rows: Rows, offset: int, length: int, endian: Endian) -> npt.NDArray[Any]:
    """The unsigned integers of 1 to 8 bytes at an offset in the rows; a view if possible."""
    if length in (1, 2, 4, 8) and (endian != Endian.PDP or length <= 2):
        return strided(rows, offset, np.dtype(f"{'>' if endian == Endian.BIG else '<'}u{length}"))
    value = np.zeros(len(rows), np.uint64)
    for index in significance(length, endian):
        value <<= np.uint64(8)
        value |= strided(rows, offset + index, np.dtype(np.uint8))
    return value


def strided(rows: Rows, offset: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A view of the values at an offset in contiguous rows."""
    size = rows.dtype.itemsize
    form = np.dtype({"names": ["it"], "formats": [dtype], "offsets": [offset], "itemsize": size})
    view: npt.NDArray[Any] = rows.view(form)["it"]
    return view


def significance(length: int, endian: Endian) -> list[int]:
    """The indices of an integer's bytes, most significant first.

    A PDP-11 stores the more significant 16-bit word first, and each word little-endian. With an odd
    number of bytes, the last one is the least significant.

        value 0x0A0B0C0D    little 0D 0C 0B 0A    big 0A 0B 0C 0D    PDP 0B 0A 0D 0C
    """
    if endian == Endian.BIG:
        return list(range(length))
    if endian == Endian.LITTLE:
        return list(reversed(range(length)))
    return [min(index ^ 1, length - 1) for index in range(length)]
