# SPDX-License-Identifier: Apache-2.0
"""The cells of a line, and the rows that are written as lines."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.byteorder import Endian

SIDES_MAX = 16
KEYS_MAX = 4
NULL_MAX = 8


class Kind(enum.IntEnum):
    """How a value is written: a decimal number, ns as seconds, ns as date and time in UTC, raw
    bytes as hex digits, or the text that Cell.text() returns for the bytes."""

    NUMBER = 0
    SECONDS = 1
    UTC = 2
    HEX = 3
    TEXT = 4


class Source(enum.IntEnum):
    """Where a number or a time comes from: an integer of the row, a struct timeval of the row
    (converted to ns), or a column of Rows.sides."""

    INTEGER = 0
    TIMEVAL = 1
    SIDE = 2


@dataclass(frozen=True)
class Cell:
    """One value of a line.

    before: the text in front of it. offset, length: its bytes in the row; of a SIDE, `offset` is
    the index in Rows.sides. signed: counts for integers of 1, 2, 4 or 8 bytes. factor: multiplies a
    NUMBER, modulo 2^64. zero: subtracted from a time, ns. digits: decimals of a time, 6 or 9.
    between: the character between date and time of UTC. none: the NUMBER in a row, before it is
    multiplied, that is written as `null`, at most 8 bytes of ASCII.
    """

    before: str
    kind: Kind
    offset: int
    length: int = 8
    order: Endian = Endian.LITTLE
    source: Source = Source.INTEGER
    signed: bool = False
    factor: int = 1
    zero: int = 0
    digits: int = 6
    between: str = "T"
    text: Callable[[bytes], str] | None = None
    none: int | None = None
    null: str = ""

    @property
    def is_signed(self) -> bool:
        """Whether the number is signed; numbers of 3, 5, 6 or 7 bytes never are."""
        return self.signed and self.length in (1, 2, 4, 8)

    def check(self, size: int) -> None:
        """Raise ValueError if the cell is invalid or not inside of rows of `size` bytes."""
        is_raw = self.kind in (Kind.HEX, Kind.TEXT)
        fits = self.offset >= 0 and 1 <= self.length <= size - self.offset
        if self.source == Source.SIDE:
            fits = not is_raw and 0 <= self.offset < SIDES_MAX and self.length == 8
        elif self.source == Source.TIMEVAL:
            fits = fits and not is_raw and self.length in (8, 16)
        elif not is_raw:
            fits = fits and self.length <= 8
        if self.none is not None:
            fits = fits and self.kind == Kind.NUMBER and self.source == Source.INTEGER
        fits = fits and self.null.isascii() and len(self.null) <= NULL_MAX
        if not fits or self.digits not in (6, 9) or (self.kind == Kind.TEXT) != bool(self.text):
            raise ValueError(f"no such cell in rows of {size} bytes: {self}")


@dataclass(frozen=True)
class Plan:
    """How to write a row of `size` bytes as a line: the cells, and the text `after` the last one.

    keys: at most four (offset, length) of 1 to 8 bytes, which similar rows share, such as the ports
    of a connection. Of such a row only the cells that differ from the previous one are formatted.
    """

    cells: Sequence[Cell]
    after: str
    size: int
    keys: Sequence[tuple[int, int]] = field(default=())

    def __post_init__(self) -> None:
        for cell in self.cells:
            cell.check(self.size)
        fit = all(at >= 0 and 1 <= length <= min(8, self.size - at) for at, length in self.keys)
        if not fit or len(self.keys) > KEYS_MAX or (self.keys and self.size < 8):
            raise ValueError(f"no such keys in rows of {self.size} bytes: {self.keys}")


@dataclass(frozen=True)
class Rows:
    """Rows to write as lines, in this order.

    data: (n,) uint8, contiguous. offsets: (count,) int64, where each row begins in data; None: the
    rows are contiguous. plans: (count,) uint16, the index of each row's plan, only with offsets;
    None: all rows are of plan 0. sides: columns of (count,) int64 or uint64.
    """

    data: npt.NDArray[np.uint8]
    count: int
    offsets: npt.NDArray[np.int64] | None = None
    plans: npt.NDArray[np.uint16] | None = None
    sides: Sequence[npt.NDArray[Any]] = ()

    def __post_init__(self) -> None:
        arrays = [("int64", self.offsets), ("uint16", self.plans)]
        arrays += [("int64", side.view(np.int64)) for side in self.sides]
        given = [(np.dtype(kind), array) for kind, array in arrays if array is not None]
        good = all(a.dtype == kind and a.shape == (self.count,) for kind, a in given)
        flat = all(a.flags.c_contiguous for _, a in [*given, (None, self.data)])
        good = good and (self.plans is None or self.offsets is not None)
        if not good or not flat or self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise ValueError("rows of the wrong kind")
