# SPDX-License-Identifier: Apache-2.0
"""Lines of text out of raw entries, for pmgraph -T and export: a page of rows at a time.

entry    | seq_no    | location lport rport state | time_ns   | conn_id laddr raddr comm |
group    | in two    | few distinct values        | in two    | few distinct values      |
texts    | 51   0017 | 4,80,1042,1,               | 1834 4711 | ,9,10.0.0.1,10.0.0.2,ssh |
line     510017,4,80,1042,1,18344711,9,10.0.0.1,10.0.0.2,ssh
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np

from formats.psc.columns import Endian
from formats.psc.linegroups import ROWS_EXPECTED, SAMPLE_ROWS, Cell, Group, Piece, group_cells
from formats.psc.values import Rows

_PLAN_EVERY = 32
_PLAN_AGAIN = 4
_THREADS = min(os.cpu_count() or 1, 4)
_LINES = 4096
_PAGE_BYTES = 24 << 20
_CELL_BYTES = 7


class Lines:
    """Writes rows of `size` bytes as lines of these cells, each line ended by `after`."""

    def __init__(self, cells: Sequence[Cell], after: str, endian: Endian, size: int) -> None:
        self._cells = list(cells)
        self._after = after
        self._endian = endian
        wide = max(size, sum(len(cell.before) + _CELL_BYTES for cell in cells))
        self.rows = max(1, min(ROWS_EXPECTED, _PAGE_BYTES // wide))
        """How many rows a page should have."""
        self._groups: list[Group] = []
        self._pages = 0

    def page(self) -> Page:
        """An empty page for self.rows rows at most; pages are filled one after the other."""
        return Page(self)

    def groups(self, sample: Rows) -> list[Group]:
        """How the cells of a page are grouped: decided now and then by what its first rows hold."""
        is_surprising = any(group.is_surprising for group in self._groups)
        if not self._pages % (_PLAN_AGAIN if is_surprising else _PLAN_EVERY):
            self._groups = group_cells(self._cells, sample[:SAMPLE_ROWS], self._endian)
        self._pages += 1
        return self._groups

    def join(self, groups: Sequence[Group], keys: Sequence[Rows]) -> Iterator[memoryview]:
        """The lines of rows, some at a time, given by the bytes of each group.

        All texts stand one after the other, and are then taken line by line. A group that is
        written directly gets the text before it from the group before.
        """
        import pyarrow
        from pyarrow import compute

        pieces: list[Piece] = []
        for place, group in enumerate(groups):
            following = groups[place + 1] if place + 1 < len(groups) else None
            behind = self._after if following is None else ""
            if following is not None and following.is_direct:
                behind = following.cells[0].before
            if group.is_direct and not place and group.cells[0].before:
                pieces.append((pyarrow.array([group.cells[0].before]), None))
            inside = "" if group.is_direct else behind
            pieces += group.texts(keys[place], inside, self._endian)
            if group.is_direct and behind:
                pieces.append((pyarrow.array([behind]), None))
        several = {id(texts): texts for texts, _ in pieces}  # the digits stand there once
        whole = pyarrow.concat_arrays(list(several.values()))
        starts = np.cumsum([0, *map(len, several.values())], dtype=np.int64)
        first = dict(zip(several, starts.tolist(), strict=False))
        bases = [first[id(texts)] for texts, _ in pieces]
        for low in range(0, len(keys[0]), _LINES):
            rows = min(_LINES, len(keys[0]) - low)
            index = np.empty((rows, len(pieces)), np.int32)
            for place, (_, which) in enumerate(pieces):
                base = np.int32(bases[place])
                index[:, place] = base if which is None else base + which[low : low + rows]
            taken = compute.take(whole, pyarrow.array(index.reshape(-1)), boundscheck=False)
            yield _data(taken)


class Page:
    """Rows to be written as lines: what their groups need of them, copied."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._rows = 0
        self._groups: list[Group] = []
        self._keys: list[Rows] = []

    def add(self, rows: Rows) -> None:
        """Add rows; they are not needed afterwards."""
        if not len(rows):
            return
        if not self._keys:
            self._groups = self._lines.groups(rows)
            self._keys = [group.key.room(self._lines.rows) for group in self._groups]
        for group, keys in zip(self._groups, self._keys, strict=True):
            group.key.copy(rows, keys[self._rows : self._rows + len(rows)])
        self._rows += len(rows)

    def text(self) -> list[memoryview]:
        """The lines of all rows; may be called in any thread, once."""
        if not self._groups:
            return []
        lines = self._lines.join(self._groups, [keys[: self._rows] for keys in self._keys])
        return list(lines)


def write_pages(pages: Iterable[Page], out: BinaryIO) -> None:
    """Write the lines of pages in their order, made by several threads."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: collections.deque[Future[list[memoryview]]] = collections.deque()
        try:
            for page in pages:
                waiting.append(pool.submit(page.text))
                if len(waiting) > _THREADS:
                    out.writelines(waiting.popleft().result())
            while waiting:
                out.writelines(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()


def _data(strings: Any) -> memoryview:
    """The bytes of an Arrow array of strings, one after the other."""
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]
