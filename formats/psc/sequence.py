# SPDX-License-Identifier: Apache-2.0
"""The sequence numbers of a capture, extended to 64 bits, and the gaps in them: the losses.

A file may store fewer than 64 bits, and a number may come late, so that it is below the highest
number before it. A gap is where a number exceeds that highest number by more than one:

    stored (8 bits)   254   255     0     2     1     5
    extended          254   255   256   258   257   261
    highest so far    254   255   256   258   258   261
    gap before                           257         259, 260

The late number 257 does not close its gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.sequence import unwrap

CHUNK_ROWS = 1 << 18

Signed = npt.NDArray[np.int64]


class Gap(NamedTuple):
    """Missing sequence numbers. `row` is the row of the entry after the gap."""

    seq_before: int
    seq_after: int
    missing: int
    row: int


class Numbers:
    """The sequence numbers of `rows` entries; read(start, stop) returns them as stored.

    Numbers of bits < 64 are extended from the first entry on. Each step is taken as the shorter way
    round, so a gap of half the range or more is not seen. The last number of each chunk is kept.
    """

    def __init__(self, read: Callable[[int, int], npt.NDArray[Any]], rows: int, bits: int) -> None:
        self._read = read
        self._rows = rows
        self._bits = bits
        self._lasts: list[int] = []  # the number of each chunk's last row

    def numbers(self, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """The 64-bit sequence numbers of rows start to stop, uint64."""
        if self._bits == 64 or start >= stop:
            return self._read(start, stop).astype(np.uint64)
        first, last = start // CHUNK_ROWS, (stop - 1) // CHUNK_ROWS
        for chunk in range(len(self._lasts), first):
            self._chunk(chunk)
        parts = [self._chunk(chunk) for chunk in range(first, last + 1)]
        return np.concatenate(parts)[start - first * CHUNK_ROWS : stop - first * CHUNK_ROWS]

    def _chunk(self, chunk: int) -> npt.NDArray[np.uint64]:
        """The numbers of one chunk. All chunks before it were read already."""
        low = chunk * CHUNK_ROWS
        raw = self._read(low, min(low + CHUNK_ROWS, self._rows))
        numbers = _extend(raw, self._lasts[chunk - 1] if chunk else None, self._bits)
        if len(self._lasts) == chunk:
            self._lasts.append(int(numbers[-1]))
        return numbers

    def gaps(self) -> Iterator[Gap]:
        """All gaps, in file order."""
        highest = np.empty(0, np.int64)
        for low in range(0, self._rows, CHUNK_ROWS):
            numbers = self.numbers(low, min(low + CHUNK_ROWS, self._rows)).view(np.int64)
            first = low - len(highest)  # the row of the first number in the next line
            at, before, after, highest = _find_gaps(np.concatenate((highest, numbers)))
            columns = (before, after, after - before - 1)
            lists = (column.view(np.uint64).tolist() for column in columns)
            yield from map(Gap, *lists, (at + first).tolist())


class Losses:
    """Counts the missing sequence numbers of a file, whose numbers are added in file order.

    The numbers have `bits` bits and are extended as in Numbers. `lost` is the count in the first
    `rows` entries.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._last: int | None = None
        self._highest: Signed = np.empty(0, np.int64)
        self.lost = 0
        self.rows = 0

    def add(self, raw: npt.NDArray[Any]) -> None:
        """Add the next numbers, as stored."""
        if not len(raw):
            return
        self.rows += len(raw)
        numbers = _extend(raw, self._last, self._bits)
        self._last = int(numbers[-1])
        signed = np.concatenate((self._highest, numbers.view(np.int64)))
        if signed[0] <= signed[-1] and (np.diff(signed) == 1).all():
            self._highest = signed[-1:]
            return
        _, before, after, self._highest = _find_gaps(signed)
        # The sum is below 2**64: gaps do not overlap.
        self.lost += int((after - before - 1).view(np.uint64).sum())


def _extend(raw: npt.NDArray[Any], last: int | None, bits: int) -> npt.NDArray[np.uint64]:
    """Numbers of `bits` bits as 64 bits; `last` is the number before them, None at the start."""
    if bits == 64:
        return raw.astype(np.uint64)
    before = None if last is None else np.array([last], np.uint64).view(np.int64)
    numbers: npt.NDArray[np.uint64] = unwrap(raw, before, bits=bits).view(np.uint64)
    return numbers


def _find_gaps(numbers: Signed) -> tuple[npt.NDArray[np.intp], Signed, Signed, Signed]:
    """The gaps between these numbers: of each the index, the number before it and after it.

    The index is that of the number after the gap. The last result is the highest number, (1,).
    """
    highest = np.maximum.accumulate(numbers)
    before, after = highest[:-1], numbers[1:]
    # Not after - before > 1: that difference can exceed 2**63 in a hostile file.
    at = np.flatnonzero((after > before) & (after - 1 > before))
    return at + 1, before[at], after[at], highest[-1:]
