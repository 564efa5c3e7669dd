# SPDX-License-Identifier: Apache-2.0
"""The ledger events of one log: each group of them against itself, the one before, and the file.

A group is what stands in one dump: a LEDGER for each event, a CPU_LEDGER, PROGRAM_LEDGERs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.klogger import NUMBERS, LogBatch
from formats.verify.report import (
    COLLECTOR_CAUSES,
    DAMAGED,
    KERNEL_CAUSES,
    Missed,
    Problems,
    Row,
)

I64 = NDArray[np.int64]

IN_FLIGHT = 64
"""How many events may be half counted in a ledger that is read while the kernel goes on logging."""
_WANTED = ("attempts", "filtered", "unchanged", "limited", "written")
_KERNEL = ("ring_full", "no_ring", "other", "table_full", "no_slot")
_COLLECTOR = ("late", "queue_full", "disk_full", "write_error")
COUNTERS = (*_WANTED, *_KERNEL, *_COLLECTOR, "in_file")
CPU_COUNTERS = ("serials", "read", "damaged", "late", "ring_lost")
_WRITTEN = COUNTERS.index("written")
_NUMBERED = slice(_WRITTEN + 1, _WRITTEN + 4)
"""Losses in the kernel that had taken a serial."""
_COLLECTED = slice(_WRITTEN + 6, _WRITTEN + 10)
_IN_FILE = COUNTERS.index("in_file")


def integers(batch: LogBatch, name: str, fields: tuple[str, ...]) -> I64:
    """(n, fields) the numbers of an event's records; 0 for what the log's event lacks."""
    event = batch.format.event(name)
    at = batch.where(event)
    rows = batch.rows(event, at)
    found = np.zeros((len(at), len(fields)), np.int64)
    for column, wanted in enumerate(fields):
        told = event.find_field(wanted)
        if told is not None and told.kind in ("int", "enum"):
            found[:, column] = rows[wanted].astype(np.int64)
    return found


@dataclass
class Group:
    """The ledger as one dump tells it, and what stood in the file before that dump.

    points: (k,) event numbers, or locations of SNAPSHOT; table: (k, len(COUNTERS)). counts:
    (NUMBERS,) records by point; records: all of the kernel's; highest: the last one's serial, as
    the kernel gave it out.
    """

    entry: int
    counts: I64
    records: int
    highest: int
    points: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    table: I64 = field(default_factory=lambda: np.zeros((0, len(COUNTERS)), np.int64))
    cpu: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CPU_COUNTERS, 0))
    cpu_rows: int = 0
    programs: dict[str, tuple[int, int]] = field(default_factory=dict)
    finals: set[int] = field(default_factory=set)

    @property
    def final(self) -> bool:
        """Whether it says that it is the last of its log."""
        return self.finals == {1}

    def take(self, batch: LogBatch, name: str) -> None:
        """Take in the records of one of the ledger's events."""
        if name == "LEDGER":
            rows = integers(batch, name, ("number", "final", *COUNTERS))
            self.points = np.concatenate((self.points, rows[:, 0]))
            self.table = np.concatenate((self.table, rows[:, 2:]))
            self.finals.update(rows[:, 1].tolist())
        elif name == "CPU_LEDGER":
            rows = integers(batch, name, ("final", *CPU_COUNTERS))
            self.cpu = dict(zip(CPU_COUNTERS, rows[-1, 1:].tolist(), strict=True))
            self.cpu_rows += len(rows)
            self.finals.update(rows[:, 0].tolist())
        else:
            rows = integers(batch, name, ("final", "missed", "kprobe_missed"))
            names = _texts(batch, name, "program", len(rows))
            for text, (final, missed, by_kprobe) in zip(names, rows.tolist(), strict=True):
                self.programs[text] = (missed, by_kprobe)
                self.finals.add(final)

    def sort(self) -> None:
        """Put the events in order of their numbers."""
        order = np.argsort(self.points, kind="stable")
        self.points, self.table = self.points[order], self.table[order]

    def of(self, points: I64) -> I64:
        """(n, len(COUNTERS)) the counters of these points; zeros for those that are not told."""
        found = np.zeros((len(points), len(COUNTERS)), np.int64)
        at = np.searchsorted(self.points, points)
        there = at < len(self.points)
        there[there] = self.points[at[there]] == points[there]
        found[there] = self.table[at[there]]
        return found

    @property
    def lost_numbered(self) -> int:
        """Losses that had taken a serial, of all causes."""
        kernel = int(self.table[:, _NUMBERED].sum())
        return kernel + int(self.table[:, _COLLECTED].sum()) + self.cpu["damaged"]


def _texts(batch: LogBatch, name: str, column: str, count: int) -> list[str]:
    event = batch.format.event(name)
    told = event.find_field(column)
    if told is None or told.kind != "string":
        return [str(number) for number in range(count)]
    rows = batch.rows(event)[column].tolist()
    return [bytes(text).split(b"\0", 1)[0].decode("utf-8", "backslashreplace") for text in rows]


def check_group(
    problems: Problems,
    group: Group,
    before: Group | None,
    name: Callable[[int], str | None],
    exact: bool,
) -> None:
    """A group adds up, is what stands in the file, and no counter fell since the one before.

    name: of a point, None where there is none. exact: nothing of the file is unreadable so far.
    """

    def say(what: str) -> None:
        problems.add(group.entry, what)

    if len(group.finals) > 1:
        say("some ledgers of this dump are final, some are not")
    if group.cpu_rows > 1:
        say(f"{group.cpu_rows} CPU_LEDGERs in one dump")
    for point in np.unique(group.points[1:][group.points[1:] == group.points[:-1]])[:8]:
        say(f"two ledgers of event {point} in one dump")
    for point in group.points[:NUMBERS].tolist():
        if name(point) is None:
            say(f"a ledger of event {point}, which the log does not know")
    if (group.table < 0).any() or min(group.cpu.values()) < 0:
        say("a counter of the ledger is beyond all measure")
        return
    room = 0 if group.final else IN_FLIGHT
    _check_sums(say, group, name, room)
    _check_cpu(say, group, room)
    if exact:
        _check_file(say, group, name, room)
    if before is not None:
        _check_rise(say, group, before, name)


Say = Callable[[str], None]
Name = Callable[[int], "str | None"]


def _check_sums(say: Say, group: Group, name: Name, room: int) -> None:
    table = group.table
    attempts, kernel = table[:, 0], table[:, 1 : _WRITTEN + 6].sum(axis=1)
    for at in np.flatnonzero(np.abs(attempts - kernel) > room)[:8]:
        say(
            f"{name(int(group.points[at]))}: {attempts[at]} attempts, but what became of them "
            f"adds up to {kernel[at]}"
        )
    out = table[:, _COLLECTED].sum(axis=1) + table[:, _IN_FILE]
    over = out - table[:, _WRITTEN]
    for at in np.flatnonzero(over > room)[:8]:
        say(
            f"{name(int(group.points[at]))}: {table[at, _WRITTEN]} written into the ring, but "
            f"{out[at]} came out"
        )
    damaged = group.cpu["damaged"]
    if group.final and int(-over.sum()) != damaged:
        say(f"{int(-over.sum())} records left the ring and are nowhere, {damaged} were damaged")


def _check_cpu(say: Say, group: Group, room: int) -> None:
    table, cpu = group.table, group.cpu
    if not group.cpu_rows and (group.records or table[:, _WRITTEN].any()):
        say("ledgers without a CPU_LEDGER")
        return
    written = int(table[:, _WRITTEN].sum())
    taken = written + int(table[:, _NUMBERED].sum())
    if abs(cpu["serials"] - taken) > room:
        say(f"the kernel gave out {cpu['serials']} serials, its ledger accounts for {taken}")
    read, damaged = cpu["read"], cpu["damaged"]
    if read + damaged > written + room or (group.final and read + damaged != written):
        say(f"{read} records read and {damaged} damaged of {written} written into the ring")
    late = int(table[:, COUNTERS.index("late")].sum())
    if cpu["late"] != late:
        say(f"{cpu['late']} records late on the CPU, {late} by event")


def _check_file(say: Say, group: Group, name: Name, room: int) -> None:
    points = np.union1d(group.points, np.flatnonzero(group.counts))
    points = points[(points >= 0) & (points < NUMBERS)]
    told, here = group.of(points)[:, _IN_FILE], group.counts[points]
    for at in np.flatnonzero(told != here)[:8]:
        label = name(int(points[at])) or f"event {points[at]}"
        say(f"{label}: {here[at]} records in the file before a ledger that counts {told[at]}")
    serials = group.cpu["serials"]
    if group.highest > serials:
        say(f"serial {group.highest} of the kernel in the file, but only {serials} given out")
    missing = serials - group.records
    if group.final and missing != group.lost_numbered:
        say(f"{missing} serials are missing, the ledger counts {group.lost_numbered} of them lost")
    elif missing < group.lost_numbered - room:
        say(f"{missing} serials are missing so far, fewer than the {group.lost_numbered} lost")


def _check_rise(say: Say, group: Group, before: Group, name: Name) -> None:
    if before.final:
        say("a ledger follows the final one")
    now, then = group.of(before.points), before.table
    for at, column in np.argwhere(now < then)[:8].tolist():
        say(
            f"{name(int(before.points[at]))}: {COUNTERS[column]} fell from {then[at, column]} "
            f"to {now[at, column]}"
        )
    fallen: list[tuple[str, int, int]] = [
        (key, before.cpu[key], group.cpu[key])
        for key in CPU_COUNTERS
        if group.cpu_rows and group.cpu[key] < before.cpu[key]
    ]
    for program, old in before.programs.items():
        new = group.programs.get(program, old)
        fallen += [(program, a, b) for a, b in zip(old, new, strict=True) if b < a]
    for key, a, b in fallen[:8]:
        say(f"{key} fell from {a} to {b}")


def build_rows(cpu: int, group: Group, name: Name) -> list[Row]:
    """The table's rows: one for each point of which there is anything to tell."""
    points = np.union1d(group.points, np.flatnonzero(group.counts))
    points = points[(points >= 0) & (points < NUMBERS)]
    rows = []
    damaged = 0 if group.final else group.cpu["damaged"]
    for point, values in zip(points.tolist(), group.of(points).tolist(), strict=True):
        row = Row(cpu, point, name(point) or str(point))
        told: Mapping[str, int] = dict(zip(COUNTERS, values, strict=True))
        for key in _WANTED:
            setattr(row, key, told[key])
        row.in_file = int(group.counts[point])
        keys, causes = (*_KERNEL, *_COLLECTOR), (*KERNEL_CAUSES, *COLLECTOR_CAUSES)
        row.lost = {c: told[k] for k, c in zip(keys, causes, strict=True) if told[k]}
        left = row.written - row.in_file - sum(told[key] for key in _COLLECTOR)
        # Which events were damaged is known in the end, by what is missing.
        lost = max(left, 0) if group.final else min(max(left, 0), damaged)
        damaged -= 0 if group.final else lost
        if lost:
            row.lost[DAMAGED] = lost
        row.pending = left - lost
        rows.append(row)
    return rows


def missed(group: Group) -> list[Missed]:
    """What the programs never saw, of those that missed any; their places are not numbered."""
    return [
        Missed(0, program, again, by_kprobe)
        for program, (again, by_kprobe) in group.programs.items()
        if again or by_kprobe
    ]


def quiet(group: Group | None) -> bool:
    """Whether nothing was ever attempted on this CPU."""
    told: list[Any] = [] if group is None else [group.table.any(), *group.cpu.values()]
    return group is None or not (any(told) or group.records)
