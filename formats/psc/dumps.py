# SPDX-License-Identifier: Apache-2.0
"""Dumps of a flight recorder, read as one capture: records that two of them hold are read once.

    dump 1   START states | 4 5 6 7 8 9 | END
    dump 2          START states | 7 8 9 10 11 12 | END
    read     START states | 4 5 6 7 8 9 | END 10 11 12 | END

Each dump numbers its entries from what came before its window, so the numbers of a later dump go on
behind the one before it: what was evicted between two dumps is not lost. So do those of a segment
behind the states that it repeats of the segment before it, which are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base import control as controls
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.psc.columns import Column
from tcpkmon.formats.psc.header import Header
from tcpkmon.formats.psc.pieces import Piece, capture_of
from tcpkmon.formats.psc.states import find_states
from tcpkmon.formats.psc.values import decode

_AT_ONCE = 1 << 14
_NEAR_NS = 1_000_000_000
_NUMBERS = ("seq", "seq_no")
Serials = dict[int, tuple[int, int]]
"""By CPU, the first and the last serial of a dump."""


@dataclass(frozen=True)
class Shared:
    """rows: how many first rows a dump shares with the one before; again: rows after them that it
    has too."""

    rows: int
    again: int


def from_ns(header: Header) -> int | None:
    """When the window of a dump begins, CLOCK_MONOTONIC; None of a file that is no dump."""
    try:
        return int(setting(header.settings, "recorder", "from_ns"))
    except (ValueError, TypeError, OverflowError):
        return None


def join(pieces: Sequence[Piece], warnings: list[str]) -> list[Piece]:
    """These pieces without what later dumps share with earlier ones, and without the states that a
    segment repeats of the one before it, numbered in one sequence.

    UsageError for dumps that may share records and cannot tell which.
    """
    joined = [pieces[0]]
    for before, piece in pairwise(pieces):
        begin_ns = from_ns(piece.header)
        if begin_ns is None or from_ns(before.header) is None:
            joined += _leave_out_states(joined[-1], piece)
            continue
        cut = 0
        end_ns = _last(before, "time_ns")
        if end_ns is None or end_ns + _NEAR_NS >= begin_ns:
            if not {"cpu", "serial", "location"} <= _integers(piece).keys():
                raise UsageError(
                    f"{before.path.name} and {piece.path.name} may hold the same records, and have "
                    "no columns cpu and serial that would tell",
                    "name one of them",
                )
            shared = find_shared(piece, serials_of(before))
            cut = shared.rows
            if shared.again:
                warnings.append(f"{piece.path.name}: {shared.again} records are there twice")
        if not cut:
            name = piece.path.name
            warnings.append(f"what came between {before.path.name} and {name} is evicted")
        if cut < piece.rows:
            joined.append(_renumber(joined[-1], piece, cut))
    return joined


def _leave_out_states(before: Piece, piece: Piece) -> list[Piece]:
    """A segment without the states that it repeats, if it directly follows the one before."""
    shifts = before.shifts
    whole = replace(piece, shifts=shifts)
    (capture, number), (other, last) = capture_of(piece.header), capture_of(before.header)
    if capture != other or number != last + 1 or "location" not in _integers(piece):
        return [whole]
    row, count = find_states(
        piece.header, piece.rows, lambda start, stop: _column(piece, "location", start, stop)
    )
    if not count:
        return [whole]
    after = row + count
    names = _NUMBERS if piece.header.endian != Endian.PDP else ()
    columns = _integers(piece)
    less = {name: shifts.get(name, 0) - count for name in names if _is_number(columns.get(name))}
    offset = piece.data_offset + after * piece.header.entry_size
    rest = replace(piece, data_offset=offset, rows=piece.rows - after, shifts=less)
    return [replace(whole, rows=row), *([rest] if rest.rows else ())]


def _is_number(column: Column | None) -> bool:
    return column is not None and column.length in (4, 8)


def find_shared(piece: Piece, before: Serials) -> Shared:
    """What a dump shares with the one before it, by that one's serials."""
    last_shared, first_new, again = -1, piece.rows, 0
    known = np.array(sorted(before), np.uint64)
    bounds = np.array([before[cpu] for cpu in sorted(before)], np.uint64).reshape(-1, 2)
    for start, (at, cpus, serials) in _plain(piece):
        place = np.minimum(np.searchsorted(known, cpus), len(known) - 1)
        shared = np.zeros(len(at), bool)
        if len(known):
            first, last = bounds[place].T
            shared = (known[place] == cpus) & (serials >= first) & (serials <= last)
        rows = at + start
        if not shared.all():
            first_new = min(first_new, int(rows[~shared][0]))
        again += int(np.count_nonzero(shared & (rows > first_new)))
        early = rows[shared & (rows < first_new)]
        last_shared = max(last_shared, *early[-1:].tolist(), -1)
    return Shared(last_shared + 1, again)


def serials_of(piece: Piece) -> Serials:
    """The first and the last serial of each CPU in a dump."""
    found: Serials = {}
    for _, (_, cpus, serials) in _plain(piece):
        order = np.lexsort((serials, cpus))
        cpu, serial = cpus[order], serials[order]
        starts = np.flatnonzero(np.diff(cpu, prepend=~cpu[:1]))
        ends = np.r_[starts[1:], len(cpu)][: len(starts)] - 1
        columns = (cpu[starts].tolist(), serial[starts].tolist(), serial[ends].tolist())
        for one, first, last in zip(*columns, strict=True):
            old = found.get(one, (first, last))
            found[one] = min(old[0], first), max(old[1], last)
    return found


def _plain(piece: Piece) -> Iterator[tuple[int, Any]]:
    """First row of a part of a dump; rows, CPUs and serials of its records, without states."""
    for start in range(0, piece.rows, _AT_ONCE):
        stop = min(start + _AT_ONCE, piece.rows)
        location, cpu, serial = (
            _column(piece, name, start, stop) for name in ("location", "cpu", "serial")
        )
        at = np.flatnonzero(location < controls.Start.location)
        yield start, (at, cpu[at], serial[at])


def _integers(piece: Piece) -> dict[str, Column]:
    return {one.name: one for one in piece.header.columns if one.is_integer and one.length}


def _column(piece: Piece, name: str, start: int, stop: int) -> NDArray[np.uint64]:
    """A column of these rows."""
    size, endian = piece.header.entry_size, piece.header.endian
    rows = np.empty(stop - start, f"V{size}")
    piece.read(memoryview(rows.view(np.uint8).data), start)
    return decode(rows, _integers(piece)[name], endian).astype(np.uint64)


def _last(piece: Piece, name: str) -> int | None:
    """A column of a file's last entry; None where there is none."""
    if not piece.rows or name not in _integers(piece):
        return None
    return int(_column(piece, name, piece.rows - 1, piece.rows)[0])


def _renumber(before: Piece, piece: Piece, cut: int) -> Piece:
    """A piece from row `cut` on, whose numbers follow those of the piece before it."""
    shifts = {}
    for name, column in _integers(piece).items():
        if name in _NUMBERS and _is_number(column) and piece.header.endian != Endian.PDP:
            last = (_last(before, name) or 0) + before.shifts.get(name, 0)
            first = int(_column(piece, name, max(cut - 1, 0), max(cut, 1))[0])
            shifts[name] = last + (not cut) - first
    offset = piece.data_offset + cut * piece.header.entry_size
    return replace(piece, data_offset=offset, rows=piece.rows - cut, shifts=shifts)
