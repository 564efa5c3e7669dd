# SPDX-License-Identifier: Apache-2.0
"""What lies between two marks of a capture that runs on: cut out, with a proof of its own.

A checkpoint lies before the first mark and another one after the second. Where no counter of losses
differs between their ledgers, nothing was lost in between, whatever happened at other times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.psc.reader import Capture

_BLOCK_ROWS = 1 << 14
_EARLIER_NS = 60_000_000_000
"""How long before the first mark the checkpoint before it can be."""
_COUNTERS = {
    control.Losses: tuple(KERNEL_CAUSES),
    control.Collector: tuple(COLLECTOR_CAUSES),
    control.Cpu: ("damaged", "late", "ring_lost"),
    control.Program: ("missed", "kprobe_missed"),
}


@dataclass(frozen=True)
class Proof:
    """Whether nothing is missing, why not, and how many records are known to be missing."""

    proven: bool
    verdict: str
    lost: int


@dataclass(frozen=True)
class Span:
    """Rows of a capture: from the first mark up to, and with, the second."""

    start: int
    stop: int
    proof: Proof


def find_span(capture: Capture, begin: int, end: int, since_ns: int) -> Span | None:
    """The span of the marks with these numbers; None: the checkpoint after them is not there yet.

    since_ns: before the first mark, CLOCK_MONOTONIC. UsageError where the capture has the second
    mark and not the first. It is read from its end, no further than needed.
    """
    last = first = -1
    after: tuple[int, control.Checkpoint] | None = None
    changed = False
    for row, entry in _backwards(capture, since_ns):
        if isinstance(entry, control.Checkpoint):
            if first >= 0 and after is not None:
                return Span(first, last + 1, _prove(capture, (row, entry), after, changed))
            if last < 0 and row + entry.group < len(capture):
                after = row, entry
        elif isinstance(entry, control.Mark):
            if entry.number == end and last < 0:
                last = row
                if after is None:
                    return None
            elif entry.number == begin and last >= 0:
                first = row
        elif isinstance(entry, control.Change) and last >= 0:
            changed = True
    if last < 0:
        return None
    raise UsageError(f"{capture.path} lacks the mark {begin}, or a checkpoint before it")


def _backwards(capture: Capture, since_ns: int) -> Iterator[tuple[int, control.Control]]:
    """The control entries, the last one first."""
    for stop in range(len(capture), 0, -_BLOCK_ROWS):
        start = max(stop - _BLOCK_ROWS, 0)
        yield from reversed([*capture.controls(start, stop)])
        times = capture.mono_ns(start, start + 1)
        if times is None or 0 < times[0] < since_ns - _EARLIER_NS:
            return


def _prove(
    capture: Capture,
    before: tuple[int, control.Checkpoint],
    after: tuple[int, control.Checkpoint],
    changed: bool,
) -> Proof:
    start, stop = before[0], after[0] + after[1].group + 1
    numbers = capture.seq(start, stop)
    missing = max(int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers), 0)
    old, new = _losses(capture, *before), _losses(capture, *after)
    more = {key: max(count - old.get(key, 0), 0) for key, count in new.items()}
    told = sum(count for (kind, _, _), count in more.items() if kind != control.Cpu.location)
    lost = max(told, missing, *more.values(), 0)  # a CPU's counts are those of its locations again
    why = [f"{lost} lost"] * (lost > 0) + ["what is recorded was changed"] * changed
    why += ["losses of some locations are not counted"] * bool(capture.settings.get("unproven"))
    return Proof(not why, "; ".join(why) or "nothing lost", lost)


def _losses(
    capture: Capture, row: int, head: control.Checkpoint
) -> dict[tuple[int, tuple[int, int], str], int]:
    """The counters of losses of a ledger."""
    found = {}
    for _, entry in capture.controls(row + 1, row + 1 + head.group):
        for name in _COUNTERS.get(type(entry), ()):
            place = getattr(entry, "cpu", -1), getattr(entry, "point", -1)
            found[entry.location, place, name] = int(getattr(entry, name))
    return found


def write_span(capture: Capture, span: Span, path: Path) -> None:
    """Write a PSC file with these entries: its tables are right, it has no START and no END.

    OSError.
    """
    with open(path, "wb") as file:
        file.write(encode_header(capture.header))
        for start in range(span.start, span.stop, _BLOCK_ROWS):
            rows = capture.rows(start, min(start + _BLOCK_ROWS, span.stop))
            file.write(rows.view(np.uint8).data)
