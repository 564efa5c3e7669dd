# SPDX-License-Identifier: Apache-2.0
"""The sequence numbers of a capture, unwrapped to 64 bits, and the gaps in them: the losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

CHUNK_ROWS = 1 << 18

ReadColumn = Callable[[int, int], npt.NDArray[Any]]


class Gap(NamedTuple):
    """Sequence numbers that are missing; `row` is that of the entry after the gap."""

    seq_before: int
    seq_after: int
    missing: int
    row: int


class Numbers:
    """Sequence numbers of `rows` entries, read in `bits` bits through `read(start, stop)`.

    Numbers of fewer than 64 bits are unwrapped from the first entry on, each step taken as the
    shorter way round (so a gap of half the range or more cannot be told). What was once passed is
    remembered, one number per chunk.
    """

    def __init__(self, read: ReadColumn, rows: int, bits: int) -> None:
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
        """The numbers of one chunk; all before it have been passed. Remembers its last."""
        low = chunk * CHUNK_ROWS
        raw = self._read(low, min(low + CHUNK_ROWS, self._rows))
        numbers = _unwrap(raw, self._lasts[chunk - 1] if chunk else None, self._bits)
        if len(self._lasts) == chunk:
            self._lasts.append(int(numbers[-1]))
        return numbers

    def gaps(self) -> Iterator[Gap]:
        """Every gap, in file order, counted from the highest number so far."""
        for index, before, after in self._jumps():
            missing = (after - before - 1).view(np.uint64)
            columns = (before.view(np.uint64), after.view(np.uint64), missing, index)
            for values in zip(*(column.tolist() for column in columns), strict=True):
                yield Gap(*values)

    def _jumps(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        for start, numbers, before in self._chunks():
            at = _find_jumps(numbers, before)
            if len(at):
                yield at + start, before[at], numbers[at]

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Per chunk: row after the first, the numbers there, and the highest number before each."""
        highest: npt.NDArray[np.int64] | None = None
        for low in range(0, self._rows, CHUNK_ROWS):
            numbers = self.numbers(low, min(low + CHUNK_ROWS, self._rows)).view(np.int64)
            if highest is not None:
                numbers = np.concatenate((highest, numbers))
            reached = np.maximum.accumulate(numbers)
            yield (low if highest is not None else low + 1), numbers[1:], reached[:-1]
            highest = reached[-1:]


class Losses:
    """Counts what is missing in the sequence numbers of a file, given from the first on.

    They have `bits` bits and are unwrapped as in Numbers; `lost` is the count so far, of `rows`.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._last: int | None = None
        self._highest: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.lost = 0
        self.rows = 0

    def add(self, raw: npt.NDArray[Any]) -> None:
        """Go on with these numbers as they stand in the file."""
        if not len(raw):
            return
        self.rows += len(raw)
        numbers = _unwrap(raw, self._last, self._bits)
        self._last = int(numbers[-1])
        signed = np.concatenate((self._highest, numbers.view(np.int64)))
        if signed[0] <= signed[-1] and (np.diff(signed) == 1).all():
            self._highest = signed[-1:]
            return
        reached = np.maximum.accumulate(signed)
        self._highest = reached[-1:]
        after, before = signed[1:], reached[:-1]
        at = _find_jumps(after, before)
        # Cannot pass 2**64: the gaps lie apart on the number line.
        self.lost += int((after[at] - before[at] - 1).view(np.uint64).sum())


def _unwrap(raw: npt.NDArray[Any], last: int | None, bits: int) -> npt.NDArray[np.uint64]:
    """Numbers of so many bits as 64 bits, those after `last`; None: they are the first."""
    raw = raw.astype(np.uint64)
    if bits == 64:
        return raw
    before = np.array(raw[:1] if last is None else [last], np.uint64)
    spare = np.uint64(64 - bits)
    steps = (np.diff(raw, prepend=before) << spare).view(np.int64) >> spare.astype(np.int64)
    numbers: npt.NDArray[np.uint64] = np.cumsum(steps).view(np.uint64) + before
    return numbers


def _find_jumps(
    numbers: npt.NDArray[np.int64], before: npt.NDArray[np.int64]
) -> npt.NDArray[np.intp]:
    """Where a number is more than one above the highest of all before it."""
    # Not numbers - before > 1: that difference can pass 2**63 in a hostile file.
    return np.flatnonzero((numbers > before) & (numbers - 1 > before))
