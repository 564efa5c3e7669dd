# SPDX-License-Identifier: Apache-2.0
"""One pass over whole connections: the records of a capture, those of a connection together.

    files     a b a c b a | c b a           segments of one capture
    sorted    a a a a b b b c c             in memory, or in parts, by a hash of the connection
    blocks    [a a a a] [b b b c c]         whole connections each

What fits into the memory is sorted there. What does not is first spread over temporary files, each
of which has all records of its connections; one that is still too large is spread again. A single
connection is never cut: the memory must hold it, however long it is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, Mask, shifted
from tcpkmon.formats.base.errors import FileError

LEAST_MEMORY = 512 << 20
"""So much may be held of a capture, or a fourth of what is free, unless somebody says [bytes]."""
HEAD = (("conn_id", "u8"), ("time_ns", "i8"), ("lost", "i8"), ("seq", "i8"), ("at", "i8"))
"""Of a record that is sorted. lost: how many are missing before it. at: its place in the file."""
_BLOCK_ROWS = 1 << 16
_SHARE = 4
"""Of the memory a fourth is records; the rest is for the columns of a block, and what is made."""
_MOST_PARTS, _MOST_LEVELS = 255, 3
"""Of a level, one file more; a process may have 1,024 open."""
_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Losses:
    """Where records of a capture are missing: k gaps, in time order.

    begin_ns, end_ns: (k,) int64, CLOCK_MONOTONIC, of the records before and behind it. missing:
    (k,) int64.
    """

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    missing: NDArray[np.int64]

    @staticmethod
    def join(parts: Sequence[tuple[Array, Array, Array]]) -> Losses:
        """Of begins, ends and numbers, part after part."""
        none = np.zeros(0, np.int64)
        begin, end, missing = (
            np.concatenate(some) for some in zip((none, none, none), *parts, strict=True)
        )
        order = np.argsort(end, kind="stable")  # of logs, each CPU's come by themselves
        return Losses(begin[order], end[order], missing[order])

    def since(self, lost: Array, before_ns: Array, now_ns: Array) -> Array:
        """(k,) when what is missing between two records begins: at the first gap behind the first
        of them. lost: (k,) of that one, see Block."""
        if not len(self.missing):
            return before_ns
        place = np.searchsorted(np.cumsum(self.missing) - self.missing, lost)
        found = self.begin_ns[np.minimum(place, len(self.missing) - 1)]
        return np.clip(found, before_ns, np.maximum(now_ns, before_ns))


class Block:
    """n records of m connections: all that the capture has of these.

    rows: by name of the column, (n,); those of a connection together, in time order. times_ns: (n,)
    int64, CLOCK_MONOTONIC. groups: (m,) the first row of each connection. lost: (n,) int64, how
    many records of the capture are missing before each row, since its start: a connection misses
    none between two of its rows that have the same. losses: all gaps of the capture. at: (n,) the
    place of each row among those of the file; seq: (n,) its sequence number; None in Klogger logs.
    """

    def __init__(
        self, rows: Mapping[str, Array], ids: Array, times_ns: Array, lost: Array,
        seq: Array | None, at: Array, losses: Losses,
    ) -> None:  # fmt: skip
        self.rows, self.times_ns, self.lost, self.seq = rows, times_ns, lost, seq
        self.at, self.losses = at, losses
        self.is_first = np.ones(len(ids), np.bool_)
        np.not_equal(ids[1:], ids[:-1], out=self.is_first[1:])
        self.groups = np.flatnonzero(self.is_first)
        self.lasts = np.append(self.groups[1:], len(ids))[: len(self.groups)] - 1
        """(m,) the last row of each connection."""
        self.of_row = np.repeat(np.arange(len(self.groups)), self.lasts - self.groups + 1)
        """(n,) the number of each row's connection in the block."""

    def __len__(self) -> int:
        return len(self.times_ns)

    def __getitem__(self, name: str) -> Array:
        return self.rows[name]

    def with_rows(self, rows: Mapping[str, Array], times_ns: Array | None = None) -> Block:
        """The same with other columns, and other times."""
        found = copy(self)
        found.rows = rows
        found.times_ns = self.times_ns if times_ns is None else times_ns
        return found

    def take(self, at: Array) -> Block:
        """These rows, which ascend, of the connections that have some."""
        seq = None if self.seq is None else self.seq[at]
        rows = {name: values[at] for name, values in self.rows.items()}
        return Block(rows, self.of_row[at], self.times_ns[at], self.lost[at], seq, self.at[at],
                     self.losses)  # fmt: skip

    def spread(self, values: Array) -> Array:
        """(n,) of values of connections, (m,), that of each row's."""
        return np.repeat(values, self.lasts - self.groups + 1)

    def before(self, values: Array, start: Any = None) -> Array:
        """(n,) the value of the connection's row before each one; of its first one `start`, by
        default its own."""
        return shifted(values, self.groups, values[self.groups] if start is None else start)

    def after(self, values: Array) -> Array:
        """(n,) the value of the connection's row after each one; of its last one its own."""
        found = np.empty_like(values)
        found[:-1] = values[1:]
        found[self.lasts] = values[self.lasts]
        return found

    def last(self, mask: Mask) -> Array:
        """(n,) the connection's last row up to each one where it holds; -1: none."""
        found = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
        return np.where(found >= self.spread(self.groups), found, -1)

    def held(self, mask: Mask, values: Array, start: Any = 0) -> Array:
        """(n,) the value of the row of last(); before that `start`."""
        last = self.last(mask)
        return np.where(last >= 0, values[last], np.asarray(start, values.dtype))


Decode = Callable[[Array, Array], Mapping[str, Array]]
"""The columns of records, by the records and the places of those that are wanted."""


def record_type(row: np.dtype[Any]) -> np.dtype[Any]:
    """Of records that are sorted: HEAD, and a row as the file has it."""
    return np.dtype([*HEAD, ("row", row)])


def blocks(
    records: Iterable[Array], kind: np.dtype[Any], memory: int | None = None, size: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Records that come in the order of the file, connection by connection: some of them, sorted,
    and the places of the next block in it.

    kind: of record_type(). size: about how many bytes there are, 0: unknown. FileError where there
    is no room for temporary files.
    """
    memory = max(LEAST_MEMORY, _free_bytes() // 4) if memory is None else memory
    yield from _Sorter(kind, max(memory // _SHARE // kind.itemsize, 1)).sort(records, size)


def _free_bytes() -> int:
    """The memory that is free, as the kernel estimates it; 0: it does not say."""
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


class _Sorter:
    """most: how many records the memory holds."""

    def __init__(self, kind: np.dtype[Any], most: int) -> None:
        self._kind, self._most = kind, most

    def sort(
        self, records: Iterable[Array], size: int, level: int = 0
    ) -> Iterator[tuple[Array, Array]]:
        plain = np.dtype(f"V{self._kind.itemsize}")
        store, count = np.empty(self._most, plain), 0
        pieces = iter(records)
        for piece in pieces:
            if count + len(piece) > self._most:
                with ExitStack() as stack:
                    begun = [store[:count].view(self._kind), piece]
                    del store
                    for part in self._spread(stack, begun, pieces, size, level):
                        yield from self._sort_part(part, level)
                return
            store[count : count + len(piece)] = piece.view(plain)
            count += len(piece)
        yield from _in_blocks(store[:count].view(self._kind))

    def _spread(
        self, stack: ExitStack, begun: list[Array], rest: Iterator[Array], size: int, level: int
    ) -> list[_Part]:
        """Files of all records. begun: some, which it takes; the rest follow."""
        wanted = 2 * size // (self._most * self._kind.itemsize) or 32
        bits = min(max(wanted, 8), _MOST_PARTS).bit_length()
        parts = [_Part(stack, self._kind) for _ in range(1 << bits)]
        mix = np.uint64((_MIX << level) % (1 << 64) | 1)
        while (piece := begun.pop(0) if begun else next(rest, None)) is not None:
            for low in range(0, len(piece), _BLOCK_ROWS):
                some = piece[low : low + _BLOCK_ROWS]
                # The upper bits of a product depend on all of a number's.
                number = ((some["conn_id"] * mix) >> np.uint64(64 - bits)).astype(np.uint16)
                order = np.argsort(number, kind="stable")
                chosen = some.view(f"V{self._kind.itemsize}")[order].view(self._kind)
                bounds = np.searchsorted(number[order], np.arange(len(parts) + 1)).tolist()
                for part, begin, end in zip(parts, bounds, bounds[1:], strict=False):
                    if end > begin:
                        part.add(chosen[begin:end])
        return parts

    def _sort_part(self, part: _Part, level: int) -> Iterator[tuple[Array, Array]]:
        if part.count <= self._most or part.is_one or level >= _MOST_LEVELS:
            yield from _in_blocks(part.read_all())
        else:
            size = part.count * self._kind.itemsize
            yield from self.sort(part.read(self._most // 4 + 1), size, level + 1)
        part.close()


class _Part:
    """A temporary file without a name, of some connections' records: nothing is left of it."""

    def __init__(self, stack: ExitStack, kind: np.dtype[Any]) -> None:
        self._kind = kind
        self.count, self.is_one = 0, True
        self._id: int | None = None
        try:
            file: Any = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - of the stack
            self._file: FileIO = stack.enter_context(file)
        except OSError as error:
            raise _no_room(error) from error

    def add(self, records: Array) -> None:
        ids = records["conn_id"]
        self._id = int(ids[0]) if self._id is None else self._id
        self.is_one = self.is_one and bool((ids == self._id).all())
        view = records.view(np.uint8).data.cast("B")
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:
            raise _no_room(error) from error
        self.count += len(records)

    def read(self, rows: int) -> Iterator[Array]:
        """The records, so many at a time."""
        for low in range(0, self.count, rows):
            yield self._read(low, min(rows, self.count - low))

    def read_all(self) -> Array:
        return self._read(0, self.count)

    def _read(self, low: int, rows: int) -> Array:
        found = np.empty(rows, self._kind)
        view, at = found.view(np.uint8).data.cast("B"), low * self._kind.itemsize
        while view:
            count = os.preadv(self._file.fileno(), [view], at)
            if not count:
                raise FileError("a temporary file became shorter while it was read")
            view, at = view[count:], at + count
        return found

    def close(self) -> None:
        self._file.close()


def _no_room(error: OSError) -> FileError:
    return FileError(
        f"the capture does not fit into the memory, and cannot be spread over files in "
        f"{tempfile.tempdir or 'a temporary folder'}: {error.strerror}",
        "set TMPDIR to a folder with as much room as the capture has, unpacked",
    )


def _in_blocks(store: Array) -> Iterator[tuple[Array, Array]]:
    """The records, and the places of the next whole connections in them, some ten thousand or one
    connection."""
    if not len(store):
        return
    order = _order(np.ascontiguousarray(store["conn_id"]))
    ids = store["conn_id"][order]
    begins = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    ends = np.append(begins[1:], len(ids))
    low = 0
    while low < len(ids):
        at, next_ = np.searchsorted(ends, [low + _BLOCK_ROWS, low], "right").tolist()
        high = int(ends[max(at - 1, next_)])  # a connection that is longer than a block is one
        yield store, order[low:high]
        low = high


def _order(ids: Array) -> NDArray[np.int64]:
    """A stable order by ids. numpy sorts numbers of 16 bits by radix, and others slowly."""
    ids = ids - ids.min()
    most = int(ids.max())
    if most >= 1 << 48:
        return np.argsort(ids, kind="stable")
    order = np.argsort(ids.astype(np.uint16), kind="stable")
    for shift in range(16, most.bit_length(), 16):
        digits = (ids >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order
