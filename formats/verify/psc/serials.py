# SPDX-License-Identifier: Apache-2.0
"""Each CPU's serials are continuous but for counted losses, and times in the order of serials.

The serial is taken in the kernel before the output, so a record that is missing leaves a hole.
Programs nest, so records of one CPU may be in its ring a little out of the order of their
serials; the sequencer sorts them, so in the file serials rise. LOSS entries come later, so a CPU's
serials are kept as a set of intervals, whatever the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.limits import MOST_INTERVALS
from tcpkmon.formats.verify.clock import runs_back
from tcpkmon.formats.verify.psc.entries import ControlRows
from tcpkmon.formats.verify.report import I64, U64, Problems

FIRST_SERIAL = 1
LAST_SERIAL = 2**63


@dataclass
class CpuSerials:
    """The serials of one CPU that the file accounts for, as disjoint intervals [start, end)."""

    before: int = 0
    """The last serial of the capture's earlier files."""
    starts: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    ends: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    forgotten: int = 0
    """Serials in holes that were merged away to bound memory."""
    marked: int = 0
    """End of the highest interval when the last checkpoint was met."""
    in_file: int = 0
    """The serial of the last record so far, in the order of the file."""
    last_serial: int = 0
    last_time_ns: int = 0

    @property
    def missing(self) -> int:
        """Serials below the highest one that the file does not account for."""
        if not len(self.starts):
            return 0
        front = int(self.starts[0]) - self.first
        return self.forgotten + front + int((self.starts[1:] - self.ends[:-1]).sum())

    @property
    def missing_marked(self) -> int:
        """Those of `missing` whose hole begins before the last checkpoint."""
        if not len(self.starts):
            return 0
        before = np.concatenate((np.array([self.first], np.uint64), self.ends[:-1]))
        holes = self.starts - before
        return self.forgotten + int(holes[before < np.uint64(self.marked)].sum())

    @property
    def first(self) -> int:
        """The first serial that is due."""
        return self.before + 1

    @property
    def highest(self) -> int:
        """The highest serial that the file mentions, or that of the files before it."""
        return int(self.ends[-1]) - 1 if len(self.ends) else self.before

    def add(self, starts: U64, ends: U64) -> U64:
        """Add intervals in any order; returns the first serial of each that overlaps another."""
        starts = np.concatenate((self.starts, starts))
        ends = np.concatenate((self.ends, ends))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        reach = np.maximum.accumulate(ends)
        twice: U64 = starts[1:][starts[1:] < reach[:-1]]
        first = np.concatenate((np.ones(1, np.bool_), starts[1:] > reach[:-1]))
        begins = np.flatnonzero(first)
        self.starts = starts[begins]
        self.ends = reach[np.concatenate((begins[1:] - 1, np.array([len(starts) - 1])))]
        if len(self.starts) > MOST_INTERVALS:
            self._forget(len(self.starts) // 2)
        return twice

    def _forget(self, number: int) -> None:
        holes = self.starts[1:number] - self.ends[: number - 1]
        self.forgotten += int(holes.sum())
        self.starts = np.concatenate((self.starts[:1], self.starts[number:]))
        self.ends = self.ends[number - 1 :]


def runs(serials: U64) -> tuple[U64, U64]:
    """Sorted serials, not empty, as intervals [start, end) of consecutive ones."""
    breaks = np.flatnonzero(serials[1:] != serials[:-1] + np.uint64(1)) + 1
    zero = np.zeros(1, np.int64)
    starts = serials[np.concatenate((zero, breaks))]
    ends = serials[np.concatenate((breaks - 1, zero - 1))] + np.uint64(1)
    return starts, ends


class SerialCheck:
    """All CPUs' serials; `cpus` by number. Fed with segments of the file in order.

    before: by CPU, the last serial of the capture's earlier files.
    """

    def __init__(self, problems: Problems, before: Mapping[int, int] | None = None) -> None:
        self._problems = problems
        self.cpus = {cpu: CpuSerials(serial) for cpu, serial in (before or {}).items()}

    def mark(self) -> None:
        """A checkpoint is here."""
        for one in self.cpus.values():
            one.marked = one.highest + 1

    def feed(
        self,
        index: I64,
        cpu: I64,
        serial: U64,
        time_ns: I64 | None,
        rows: ControlRows,
    ) -> None:
        """Snapshots of a segment: entry numbers, CPUs, serials, monotonic times; control rows."""
        wrong = (serial < FIRST_SERIAL) | (serial > LAST_SERIAL)
        if np.any(wrong):
            here, number = cpu, serial
            self._problems.add_each(
                np.flatnonzero(wrong),
                index,
                lambda at: f"CPU {here[at]} gave no serial {number[at]}",
            )
            index, cpu, serial = index[~wrong], cpu[~wrong], serial[~wrong]
            time_ns = None if time_ns is None else time_ns[~wrong]
        order = np.argsort(cpu, kind="stable")
        edges = np.flatnonzero(np.diff(cpu[order])) + 1
        for part in np.split(order, edges):
            if len(part):
                time = None if time_ns is None else time_ns[part]
                self._feed_cpu(int(cpu[part[0]]), index[part], serial[part], time)
        self._feed_losses(rows)

    def _cpu(self, cpu: int) -> CpuSerials:
        return self.cpus.setdefault(cpu, CpuSerials())

    def _feed_cpu(self, cpu: int, index: I64, serial: U64, time_ns: I64 | None) -> None:
        state = self._cpu(cpu)
        self._in_order(state, cpu, index, serial)
        if np.any(serial[1:] < serial[:-1]):
            order = np.argsort(serial, kind="stable")
            index, serial = index[order], serial[order]
            time_ns = None if time_ns is None else time_ns[order]
        early = serial <= np.uint64(state.before)
        if early.any():
            what = f"serials of CPU {cpu} up to {state.before} are in an earlier file"
            self._problems.add(int(index[np.argmax(early)]), what)
            return
        twice = state.add(*runs(serial))
        if len(twice):
            self._twice(cpu, twice, int(index[np.searchsorted(serial, twice[0]) % len(index)]))
        if time_ns is not None:
            self._order(state, cpu, index, serial, time_ns)

    def _in_order(self, state: CpuSerials, cpu: int, index: I64, serial: U64) -> None:
        """The sequencer sorts a CPU's records by serial, so the file has them in that order."""
        before = np.append(np.uint64(state.in_file), serial[:-1])
        state.in_file = int(serial[-1])
        what = f"serial {{}} of CPU {cpu} follows serial {{}}: the records are not in order"
        self._problems.add_each(
            np.flatnonzero(serial < before),
            index,
            lambda at: what.format(serial[at], before[at]),
            rest=True,
        )

    def _twice(self, cpu: int, serials: U64, entry: int) -> None:
        self._problems.add(entry, f"serial {serials[0]} of CPU {cpu} is there twice")
        self._problems.count(len(serials) - 1)

    def _order(self, state: CpuSerials, cpu: int, index: I64, serial: U64, time_ns: I64) -> None:
        newer = serial > np.uint64(state.last_serial)
        if not np.any(newer):
            return
        time, entry = time_ns[newer], index[newer]
        places, by_ns = runs_back(time, state.last_time_ns if state.last_serial else None)
        self._problems.add_each(
            np.arange(len(places)),
            entry[places],
            lambda at: f"time of CPU {cpu} runs back by {by_ns[at]} ns",
            rest=True,
        )
        state.last_serial = int(serial[-1])
        state.last_time_ns = int(time[-1])

    def _feed_losses(self, rows: ControlRows) -> None:
        """LOSS entries that name a CPU and a first serial fill the hole that they count."""
        known = (rows.location == control.Loss.location) & (rows.callvalue != control.ANY_CPU)
        losses = rows.take(known & (rows.pairs[:, 0] > 0) & (rows.pairs[:, 1] > 0))
        starts = losses.pairs[:, 0]
        ends = starts + losses.pairs[:, 1]
        whole = (ends > starts) & (ends <= LAST_SERIAL)
        beyond = np.flatnonzero(~whole)
        what = "LOSS entry counts beyond the last serial"
        self._problems.add_each(beyond, losses.index, lambda _: what)
        for cpu in np.unique(losses.callvalue[whole]):
            mine = np.flatnonzero(whole & (losses.callvalue == cpu))
            before = self._cpu(int(cpu)).before
            if int(starts[mine].min()) <= before:
                what = f"serials of CPU {cpu} up to {before} are in an earlier file"
                self._problems.add(int(losses.index[mine[0]]), what)
                continue
            twice = self._cpu(int(cpu)).add(starts[mine], ends[mine])
            if len(twice):
                at = int(mine[np.searchsorted(starts[mine], twice[0]) % len(mine)])
                self._twice(int(cpu), twice, int(losses.index[at]))
