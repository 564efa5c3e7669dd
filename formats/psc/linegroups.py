# SPDX-License-Identifier: Apache-2.0
"""Which columns of a line are written together: between formats.psc.lines and pyarrow.

Columns that change together are written once for each distinct value of them all. What goes
together is found out from the first rows, as no two captures are alike.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from formats.psc.columns import FLAG_INT_NET, Column, Endian
from formats.psc.values import Rows, decode, integers

Array = npt.NDArray[Any]

SAMPLE_ROWS = 2048
ROWS_EXPECTED = 1 << 15
_SPLIT = 10_000
"""Numbers that differ from row to row are written in two parts, the last four digits apart."""

_FEW = 64
"""Values of both that may be: neighbours are joined without asking what it saves."""

# What it costs to write a line, ns: measured, and only what they are to each other matters.
_PIECE = 8.0
_ENCODE = 17.0
_ENCODE_NEW = 45.0
_BYTE = 0.15
_DIVIDE = 5.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """One value of a line: `before` it stands that text; `write` makes Arrow strings of values as
    decode() gives them, for about `cost` ns each."""

    column: Column
    signed: bool
    before: str
    write: Callable[[Array], Any]
    cost: float = 20.0

    def may_split(self, endian: Endian) -> bool:
        """Whether this is a plain number that may be written in two parts."""
        is_plain = self.write is write_integers and not self.signed
        return is_plain and self.column.length in (4, 8) and endian != Endian.PDP

    def texts(self, rows: Rows, endian: Endian) -> Any:
        """The values in these rows as an Arrow array of strings."""
        return self.write(decode(rows, self.column, endian, self.signed))


def write_integers(values: Array) -> Any:
    """Integers in decimal, as an Arrow array of strings."""
    import pyarrow

    return pyarrow.array(values).cast(pyarrow.string())


def write_fixed(values: Array) -> Any:
    """Texts of one width ('S', of ASCII), as an Arrow array of strings; not copied."""
    import pyarrow

    width = values.dtype.itemsize
    data = np.ascontiguousarray(values)
    if len(data) and np.any(data.view(np.uint8).reshape(len(data), width)[:, -1] == 0):
        # Of different widths.
        return pyarrow.array([text.decode("ascii") for text in values.tolist()], pyarrow.string())
    offsets = np.arange(0, (len(data) + 1) * width, width, dtype=np.int32)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(data), buffers)


Piece = tuple[Any, "Array | None"]
"""Texts, and which of them each row has (None: there is but one)."""


class Group:
    """Cells side by side: written for each distinct value of all, or (one cell) for each row.

    Of a cell that is split only what stands before the last four digits counts as its value.
    """

    def __init__(self, draft: _Draft, size: int) -> None:
        self.cells = draft.cells
        self.is_direct = draft.is_direct
        self.key = _Key(draft.cells, size)
        self._split = draft.split
        self._expected = self._seen = draft.share

    @property
    def is_surprising(self) -> bool:
        """Whether the values repeat much less than was expected."""
        return bool(self._seen > 2 * self._expected + 0.05)

    def texts(self, keys: Rows, after: str, endian: Endian) -> list[Piece]:
        """The cells with the texts before them, and `after`; spoils the keys."""
        if self.is_direct:
            return [(self.key.cells[0].texts(keys, endian), _count(len(keys)))]
        from pyarrow import array, compute, scalar

        low = [
            _take_low(keys, cell, endian)
            for cell, is_split in zip(self.key.cells, self._split, strict=True)
            if is_split
        ]
        encoded = _binary(keys).dictionary_encode()
        _, data = encoded.dictionary.buffers()
        which = encoded.indices.to_numpy()
        self._seen = len(encoded.dictionary) / len(keys)
        some = np.frombuffer(data, keys.dtype, len(encoded.dictionary))
        pieces: list[Piece] = []
        texts: list[Any] = []
        for cell, is_split in zip(self.key.cells, self._split, strict=True):
            if cell.before:
                texts.append(scalar(cell.before))
            texts.append(_high_texts(some, cell, endian) if is_split else cell.texts(some, endian))
            if is_split:
                pieces.append((compute.binary_join_element_wise(*texts, ""), which))
                pieces.append((_digits(), low.pop(0)))
                texts = []
        if texts:
            texts += [scalar(after)] if after else []
            pieces.append((compute.binary_join_element_wise(*texts, ""), which))
        elif after:
            pieces.append((array([after]), None))
        return pieces


def _take_low(keys: Rows, cell: Cell, endian: Endian) -> Array:
    """Which of _digits() the last four of a number are; leaves the rest of it in the keys."""
    column = cell.column
    order = Endian.BIG if column.flags & FLAG_INT_NET else endian
    values = integers(keys, column.offset, column.length, order)
    high = values // values.dtype.type(_SPLIT)
    low: Array = (values - high * values.dtype.type(_SPLIT)).astype(np.int32)
    low[high != 0] += _SPLIT
    values[:] = high
    return low


def _high_texts(keys: Rows, cell: Cell, endian: Endian) -> Any:
    """What stands before the last four digits: nothing where that is 0."""
    from pyarrow import compute

    high = decode(keys, cell.column, endian)
    return compute.if_else(high != 0, write_integers(high), "")


@functools.cache
def _digits() -> Any:
    """The numbers below 10,000, then these again as four digits."""
    import pyarrow

    return pyarrow.array([*map(str, range(_SPLIT)), *(f"{n:04d}" for n in range(_SPLIT))])


@functools.lru_cache(maxsize=4)
def _count(rows: int) -> Array:
    return np.arange(rows, dtype=np.int32)


class _Key:
    """The bytes of some cells alone, as rows of their own, and the cells as they stand there."""

    def __init__(self, cells: Sequence[Cell], size: int) -> None:
        runs: list[tuple[int, int, int]] = []  # offset in rows, offset in the key, bytes
        self.cells: list[Cell] = []
        width = 0
        for cell in cells:
            column = dataclasses.replace(cell.column, offset=width)
            self.cells.append(dataclasses.replace(cell, column=column))
            offset, length = cell.column.offset, cell.column.length
            if runs and runs[-1][0] + runs[-1][2] == offset:
                runs[-1] = (*runs[-1][:2], runs[-1][2] + length)
            else:
                runs.append((offset, width, length))
            width += length
        self._names = [str(place) for place in range(len(runs))]
        kinds = [f"V{run[2]}" for run in runs]
        self._from = _record(self._names, kinds, [run[0] for run in runs], size)
        self._to = _record(self._names, kinds, [run[1] for run in runs], width)
        self._dtype = np.dtype(f"V{width}")

    def room(self, rows: int) -> Rows:
        """An array for the keys of so many rows."""
        return np.empty(rows, self._dtype)

    def copy(self, rows: Rows, keys: Rows) -> None:
        """Copy these bytes of the rows into `keys`, which is as long."""
        view, to = rows.view(self._from), keys.view(self._to)
        for name in self._names:
            to[name] = view[name]


def _record(names: list[str], formats: list[str], offsets: list[int], size: int) -> np.dtype[Any]:
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def _binary(rows: Rows) -> Any:
    """Rows as an Arrow array of bytes; not copied."""
    import pyarrow

    data = pyarrow.py_buffer(rows.view(np.uint8))
    kind = pyarrow.binary(rows.dtype.itemsize)
    return pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, data])


class _Draft:
    """A group that may come to be: its cells, and how its values repeat in the sample."""

    def __init__(self, cells: tuple[Cell, ...], split: tuple[bool, ...], codes: Array) -> None:
        import pyarrow

        known = _binary(codes) if codes.dtype.kind == "V" else pyarrow.array(codes)
        encoded = known.dictionary_encode()
        self.cells = cells
        self.split = split
        self.codes: Array = encoded.indices.to_numpy().astype(np.int64)
        self.count = len(encoded.dictionary)
        # Numbered as they first occur: how many there were after half of the rows tells how many
        # there will be after many more.
        half = int(self.codes[: (len(codes) + 1) // 2].max()) + 1
        growth = math.log2(self.count / half)
        expected = self.count * (ROWS_EXPECTED / len(codes)) ** growth
        self.share = min(expected / ROWS_EXPECTED, 1.0)
        width = sum(cell.column.length for cell in cells)
        pieces = 1 + 2 * sum(split) - (split[-1] if split else 0)
        self.cost = _ENCODE + _BYTE * width + pieces * _PIECE + sum(split) * _DIVIDE
        self.cost += self.share * (_ENCODE_NEW + sum(cell.cost + 2 * _PIECE for cell in cells))
        direct = cells[0].cost + 1.5 * _PIECE
        self.is_direct = len(cells) == 1 and direct <= self.cost
        self.cost = min(self.cost, direct) if len(cells) == 1 else self.cost

    def with_next(self, other: _Draft) -> _Draft:
        codes = self.codes * other.count + other.codes
        return _Draft(self.cells + other.cells, self.split + other.split, codes)


def _draft(cell: Cell, sample: Rows, endian: Endian) -> _Draft:
    """The cell alone; split where it hardly repeats but what stands before four digits does."""
    key = _Key([cell], sample.dtype.itemsize)
    codes = key.room(len(sample))
    key.copy(sample, codes)
    whole = _Draft((cell,), (False,), codes)
    if whole.is_direct and cell.may_split(endian):
        _take_low(codes, key.cells[0], endian)
        split = _Draft((cell,), (True,), codes)
        # In a group with its neighbours it costs less than here.
        if split.share < 0.2:
            split.is_direct = False
            return split
    return whole


def group_cells(cells: Sequence[Cell], sample: Rows, endian: Endian) -> list[Group]:
    """Joins neighbours as long as that makes lines cheaper, the best pair first."""
    drafts: list[_Draft] = []
    for cell in cells:
        draft = _draft(cell, sample, endian)
        if drafts and draft.count * drafts[-1].count <= _FEW:
            drafts[-1] = drafts[-1].with_next(draft)
        else:
            drafts.append(draft)
    pairs = [_pair(one, two) for one, two in itertools.pairwise(drafts)]
    while pairs:
        gains = [
            drafts[place].cost + drafts[place + 1].cost - pair.cost if pair else 0.0
            for place, pair in enumerate(pairs)
        ]
        best = max(range(len(gains)), key=gains.__getitem__)
        chosen = pairs[best]
        if chosen is None or gains[best] <= 0:
            break
        drafts[best : best + 2] = [chosen]
        del pairs[best]
        for place in (best - 1, best):
            if 0 <= place < len(pairs):
                pairs[place] = _pair(drafts[place], drafts[place + 1])
    size = sample.dtype.itemsize
    return [Group(draft, size) for draft in drafts]


def _pair(one: _Draft, two: _Draft) -> _Draft | None:
    """Both as one group; None where that is not worth a look."""
    return None if max(one.share, two.share) > 0.9 else one.with_next(two)
