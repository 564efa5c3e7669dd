# SPDX-License-Identifier: Apache-2.0
"""Verify's fourth check: the checkpoints' ledgers against one another and against the entries."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from formats.base import control
from formats.verify.entries import I64, U64, ControlRows
from formats.verify.report import Problems

IN_FLIGHT = 64
"""Events that may be half counted when a checkpoint before the last reads the kernel's counters."""
MOST_CPUS = 4096
"""Where the file does not tell how many there can be."""
MOST_GROUP = 1 << 22
LOCATIONS = 256
GROUP_KINDS = tuple(
    kind.location
    for kind in (
        control.Ledger,
        control.Losses,
        control.Cpu,
        control.Program,
        control.Collector,
    )
)
_NAMES = {kind: control.NAMES[kind] for kind in GROUP_KINDS}


@dataclass
class Table:
    """Rows of one kind in one checkpoint: sorted keys (the callvalues) and five counters each."""

    keys: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    values: U64 = field(default_factory=lambda: np.zeros((0, 5), np.uint64))
    index: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    online: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Of CPU rows, which share the fifth counter's first half."""

    def at(self, keys: I64) -> U64:
        """The counters of these keys, (len(keys), 5); zeros for a key that has no row."""
        found = np.zeros((len(keys), 5), np.uint64)
        if len(self.keys):
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            same = self.keys[place] == keys
            found[same] = self.values[place[same]]
        return found

    def entry(self, key: int, otherwise: int) -> int:
        """The entry number of a key's row, or `otherwise`."""
        place = int(np.searchsorted(self.keys, key))
        here = place < len(self.keys) and int(self.keys[place]) == key
        return int(self.index[place]) if here else otherwise


@dataclass
class Snapshot:
    """One whole checkpoint, and the snapshots found in the file before it.

    `counts` is indexed by cpu * 256 + location (cpu 0 throughout if the file has no such column).
    """

    index: int
    checkpoint: control.Checkpoint
    counts: I64
    tables: dict[int, Table]

    @property
    def final(self) -> bool:
        """Whether this is the checkpoint that the collector wrote last of all."""
        return self.checkpoint.final == 1

    def keys(self) -> I64:
        """Every (cpu << 16 | location) that any table counts, sorted."""
        kinds = (control.Ledger, control.Losses, control.Collector)
        keys: I64 = np.unique(np.concatenate([self.tables[it.location].keys for it in kinds]))
        return keys

    def counters(self, kind: type[control.Control], keys: I64) -> U64:
        """The counters of one kind for these keys, (len(keys), 5)."""
        return self.tables[kind.location].at(keys)


class CheckpointReader:
    """Gathers each checkpoint's group of entries, across segments; yields whole ones in turn."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._open: tuple[int, control.Checkpoint, I64] | None = None
        self._rows: list[ControlRows] = []
        self._gathered = 0
        self._hidden = False
        self.broken = 0
        """Checkpoints whose group is not whole because a LOSS took part of it."""

    def open(self, index: int, checkpoint: control.Checkpoint, counts: I64) -> None:
        """A CHECKPOINT stands at this entry; `counts` are the snapshots before it."""
        self._rows, self._gathered, self._hidden = [], 0, False
        if checkpoint.group > MOST_GROUP:
            self._problems.add(index, f"checkpoint announces {checkpoint.group} entries")
            self._open = None
        else:
            self._open = index, checkpoint, counts

    @property
    def until(self) -> int | None:
        """Entry number after the open checkpoint's group; None if none is open."""
        return None if self._open is None else self._open[0] + 1 + self._open[1].group

    def gather(self, rows: ControlRows, hidden: bool) -> None:
        """Rows of the open group; `hidden`: an unsure LOSS stands among them."""
        self._rows.append(rows)
        self._gathered += len(rows)
        self._hidden |= hidden

    def close(self, at_end: bool = False) -> Snapshot | None:
        """The open checkpoint with its group, or None if the group is not whole."""
        if self._open is None:
            return None
        index, checkpoint, counts = self._open
        self._open = None
        if self._gathered != checkpoint.group:
            if self._hidden:
                self.broken += 1
            elif not at_end:
                self._problems.add(
                    index,
                    f"checkpoint {checkpoint.number} announces {checkpoint.group} entries, "
                    f"{self._gathered} follow it",
                )
            return None
        return Snapshot(index, checkpoint, counts, self._tables())

    def _tables(self) -> dict[int, Table]:
        tables = {kind: Table() for kind in GROUP_KINDS}
        if not self._gathered:
            return tables
        location = np.concatenate([rows.location for rows in self._rows])
        keys = np.concatenate([rows.callvalue for rows in self._rows])
        values = np.concatenate([rows.pairs for rows in self._rows])
        index = np.concatenate([rows.index for rows in self._rows])
        for kind in GROUP_KINDS:
            mine = np.flatnonzero(location == kind)
            if not len(mine):
                continue
            mine = mine[np.argsort(keys[mine], kind="stable")]
            table = Table(keys[mine], values[mine], index[mine])
            if kind == control.Cpu.location:  # the last pair is (online, perf lost)
                table.online = table.values[:, 4] & np.uint64(0xFFFFFFFF)
                table.values[:, 4] >>= np.uint64(32)
            for at in np.flatnonzero(np.diff(table.keys) == 0)[:8]:
                self._problems.add(table.index[at + 1], f"{_NAMES[kind]} row is there twice")
            tables[kind] = table
        return tables


def check_monotone(problems: Problems, before: Snapshot, after: Snapshot) -> None:
    """No counter of any row falls from one checkpoint to the next."""
    for kind in GROUP_KINDS:
        old, new = before.tables[kind], after.tables[kind]
        fell = np.any(new.at(old.keys) < old.values, axis=1)
        for at in np.flatnonzero(fell)[:8]:
            key = int(old.keys[at])
            problems.add(
                new.entry(key, after.index),
                f"{_NAMES[kind]} row {describe_key(kind, key)} counts less than before",
            )


def describe_key(kind: int, key: int) -> str:
    """What a row's callvalue stands for."""
    if kind == control.Cpu.location:
        return f"of CPU {key}"
    if kind == control.Program.location:
        return f"of location {key}"
    return f"of CPU {key >> 16}, location {key & 0xFFFF}"


def check_identities(problems: Problems, shot: Snapshot) -> None:
    """What the kernel and the collector counted adds up, exactly in the final checkpoint."""
    keys = shot.keys()
    slack = 0 if shot.final else IN_FLIGHT
    ledger = shot.counters(control.Ledger, keys)
    losses = shot.counters(control.Losses, keys)
    for kind in (control.Losses.location, control.Collector.location):
        table = shot.tables[kind]
        alone = ~np.isin(table.keys, shot.tables[control.Ledger.location].keys)
        for at in np.flatnonzero(alone)[:8]:
            where = describe_key(kind, int(table.keys[at]))
            problems.add(table.index[at], f"{_NAMES[kind]} row {where} without a LEDGER row")
    for at in np.flatnonzero(shot.tables[control.Cpu.location].online > 1)[:8]:
        problems.add(shot.tables[control.Cpu.location].index[at], "CPU row is not on or off")
    parts = ledger[:, 1:4].sum(axis=1) + losses.sum(axis=1)
    off = (ledger[:, 0] - parts).view(np.int64)
    for at in np.flatnonzero((off > slack) | (off < -slack))[:8]:
        key = int(keys[at])
        problems.add(
            shot.tables[control.Ledger.location].entry(key, shot.index),
            f"CPU {key >> 16}, location {key & 0xFFFF}: {ledger[at, 0]} attempts, "
            f"but {parts[at]} filtered, unchanged, written and lost",
        )
    _check_serials(problems, shot, keys, ledger[:, 3] + losses[:, :3].sum(axis=1), slack)
    collected = shot.counters(control.Collector, keys)
    left = (ledger[:, 3] - collected.sum(axis=1)).view(np.int64)
    for at in np.flatnonzero(left < -slack)[:8]:
        key = int(keys[at])
        problems.add(
            shot.tables[control.Collector.location].entry(key, shot.index),
            f"CPU {key >> 16}, location {key & 0xFFFF}: {ledger[at, 3]} written by the kernel, "
            f"but {collected[at].sum()} in the file or lost in the collector",
        )
    if shot.final:
        _check_damaged(problems, shot, keys, left)
        _check_read(problems, shot, keys, ledger[:, 3])
    _check_late(problems, shot, keys, collected[:, 0], slack)


def check_cpus(problems: Problems, shot: Snapshot, limit: int) -> None:
    """No row is of a CPU, or a location, that there cannot be."""
    for kind, table in shot.tables.items():
        if kind == control.Program.location:
            for at in np.flatnonzero(table.keys >= LOCATIONS)[:8]:
                problems.add(table.index[at], f"no location {table.keys[at]} has a program")
            continue
        cpu = table.keys if kind == control.Cpu.location else table.keys >> 16
        for at in np.flatnonzero(cpu >= limit)[:8]:
            problems.add(table.index[at], f"{_NAMES[kind]} row of CPU {cpu[at]}, not possible here")


def by_cpu(keys: I64, values: U64) -> tuple[I64, U64]:
    """Values of sorted keys summed per CPU: the CPUs and their sums."""
    if not len(keys):
        return keys, values
    cpus, starts = np.unique(keys >> 16, return_index=True)
    return cpus, np.add.reduceat(values, starts)


def _compare_cpus(
    problems: Problems, shot: Snapshot, column: int, cpus: I64, sums: U64, what: str, slack: int
) -> None:
    table = shot.tables[control.Cpu.location]
    every = np.unique(np.concatenate((table.keys, cpus)))
    told = table.at(every)[:, column]
    found = Table(cpus, np.repeat(sums[:, None], 5, axis=1)).at(every)[:, 0]
    off = (told - found).view(np.int64)
    for at in np.flatnonzero((off > slack) | (off < -slack))[:8]:
        problems.add(
            table.entry(int(every[at]), shot.index),
            f"CPU {every[at]}: {told[at]} {what}, but its locations add up to {found[at]}",
        )


def _check_serials(
    problems: Problems, shot: Snapshot, keys: I64, took_serial: U64, slack: int
) -> None:
    cpus, sums = by_cpu(keys, took_serial)
    _compare_cpus(problems, shot, 0, cpus, sums, "serials taken", slack)


def _check_read(problems: Problems, shot: Snapshot, keys: I64, written: U64) -> None:
    cpus, sums = by_cpu(keys, written)
    damaged = shot.tables[control.Cpu.location].at(cpus)[:, 2]
    what = "records read (written, not damaged)"
    _compare_cpus(problems, shot, 1, cpus, sums - damaged, what, 0)


def _check_late(problems: Problems, shot: Snapshot, keys: I64, late: U64, slack: int) -> None:
    cpus, sums = by_cpu(keys, late)
    _compare_cpus(problems, shot, 3, cpus, sums, "late", slack)


def _check_damaged(problems: Problems, shot: Snapshot, keys: I64, left: I64) -> None:
    cpus, sums = by_cpu(keys, np.maximum(left, 0).astype(np.uint64))
    _compare_cpus(
        problems, shot, 2, cpus, sums, "damaged (written, not lost and not in the file)", 0
    )
