# SPDX-License-Identifier: Apache-2.0
"""Gathers a capture's checkpoints, makes a Ledger of each, and checks the form of its rows."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.limits import MOST_GROUP
from tcpkmon.formats.verify.ledger import (
    COLLECTED,
    COUNTERS,
    CPU_COUNTERS,
    KERNEL,
    POINTS,
    PROGRAM_COUNTERS,
    TEXTS,
    Ledger,
    Table,
)
from tcpkmon.formats.verify.psc.entries import ControlRows
from tcpkmon.formats.verify.report import LISTED_AT_ONCE, U64, Problems

_LEDGER, _LOSSES, _CPU, _PROGRAM, _COLLECTOR = GROUP_KINDS = tuple(
    kind.location
    for kind in (
        control.Ledger,
        control.Losses,
        control.Cpu,
        control.Program,
        control.Collector,
    )
)
_COUNTERS: dict[int, tuple[str, ...]] = {
    _LEDGER: ("attempts", "filtered", "unchanged", "written", "shed"),
    _LOSSES: KERNEL,
    _CPU: CPU_COUNTERS,
    _PROGRAM: (*PROGRAM_COUNTERS, "runs", "run_ns", "unused"),
    _COLLECTOR: (*COLLECTED, "in_file"),
}
"""What the five u64 of each kind of row count."""
Name = Callable[[int], str]
_KIND_OF = {name: kind for kind in (_LEDGER, _LOSSES, _COLLECTOR) for name in _COUNTERS[kind]}


class Checkpoint(Ledger):
    """One whole checkpoint; `tables` are its rows by their location."""

    texts = MappingProxyType(
        TEXTS
        | {
            "in file": "{where}: {found} entries in the file before checkpoint {number}, "
            "which counts {told}",
            "attempts": "{where}: {told} attempts, "
            "but {found} filtered, unchanged, shed, written and lost",
            "serials": "CPU {cpu}: {told} serials reserved, but its locations add up to {found}",
            "came out": "{where}: {told} written by the kernel, "
            "but {found} in the file or lost in the collector",
            "damaged": "CPU {cpu}: {told} damaged (written, not lost and not in the file), "
            "but its locations add up to {found}",
            "read": "CPU {cpu}: {told} records read (written, not damaged), "
            "but its locations add up to {found}",
            "late": "CPU {cpu}: {told} late, but its locations add up to {found}",
            "fell": "{what} counts {now}, less than the {then} before",
        }
    )

    def __init__(
        self, index: int, head: control.Checkpoint, rows: dict[int, Table], online: U64, name: Name
    ) -> None:
        keys = np.unique(np.concatenate([rows[k].keys for k in (_LEDGER, _LOSSES, _COLLECTOR)]))
        points = Table(COUNTERS, keys, np.zeros((len(keys), len(COUNTERS)), np.uint64))
        for kind in (_LEDGER, _LOSSES, _COLLECTOR):
            table = rows[kind].at(keys)
            for counter in set(table.names) & set(COUNTERS):
                points[counter][:] = table[counter]
        stop, final = index + 1 + head.group, head.final == 1
        super().__init__(index, stop, head.number, final, points, rows[_CPU], rows[_PROGRAM])
        self.tables = rows
        self._online = online
        self._name = name

    def where(self, key: int, has_cpu: bool = True) -> str:
        return f"CPU {key >> 16}, location {key & 0xFFFF}" if has_cpu else f"location {key}"

    def entry(self, counter: str, key: int) -> int:
        return self.tables[_KIND_OF[counter]].entry(key, self.index)

    def program(self, key: int) -> tuple[int, str]:
        return key, self._name(key)

    def check_rows(self, problems: Problems, cpu_limit: int) -> None:
        """No row is of a CPU or location that there cannot be, and none lacks its LEDGER row."""
        for kind, table in self.tables.items():
            name = facts.NAMES[kind]
            if kind == _PROGRAM:
                for at in np.flatnonzero(table.keys >= POINTS)[:LISTED_AT_ONCE]:
                    problems.add(table.index[at], f"no location {table.keys[at]} has a program")
                continue
            cpu = table.keys if kind == _CPU else table.keys >> 16
            for at in np.flatnonzero(cpu >= cpu_limit)[:LISTED_AT_ONCE]:
                problems.add(table.index[at], f"{name} row of CPU {cpu[at]}, not possible here")
        for kind in (_LOSSES, _COLLECTOR):
            table, name = self.tables[kind], facts.NAMES[kind]
            alone = ~np.isin(table.keys, self.tables[_LEDGER].keys)
            for at in np.flatnonzero(alone)[:LISTED_AT_ONCE]:
                where = self.where(int(table.keys[at]))
                problems.add(table.index[at], f"{name} row of {where} without a LEDGER row")
        strange, rows = np.flatnonzero(self._online > 1), self.tables[_CPU].index
        problems.add_each(strange, rows, lambda _: "CPU row is not on or off")


class CheckpointReader:
    """Gathers each checkpoint's group of entries, across segments; name: of a location."""

    def __init__(self, problems: Problems, name: Name) -> None:
        self._problems = problems
        self._name = name
        self._open: tuple[int, control.Checkpoint] | None = None
        self._rows: list[ControlRows] = []
        self._gathered = 0
        self._hidden = False
        self.broken = 0
        """Checkpoints whose group is not whole because a LOSS took part of it."""

    def open(self, index: int, checkpoint: control.Checkpoint) -> None:
        """A CHECKPOINT is this entry."""
        self._rows, self._gathered, self._hidden = [], 0, False
        if checkpoint.group > MOST_GROUP:
            self._problems.add(index, f"checkpoint announces {checkpoint.group} entries")
            self._open = None
        else:
            self._open = index, checkpoint

    @property
    def until(self) -> int | None:
        """Entry number after the open checkpoint's group; None if none is open."""
        return None if self._open is None else self._open[0] + 1 + self._open[1].group

    def gather(self, rows: ControlRows, hidden: bool) -> None:
        """Rows of the open group; `hidden`: an unsure LOSS is among them."""
        self._rows.append(rows)
        self._gathered += len(rows)
        self._hidden |= hidden

    def close(self, at_end: bool = False) -> Checkpoint | None:
        """The open checkpoint with its group, or None if the group is not whole."""
        if self._open is None:
            return None
        index, head = self._open
        self._open = None
        if self._gathered == head.group:
            return Checkpoint(index, head, *self._tables(), self._name)
        if self._hidden:
            self.broken += 1
        elif not at_end:
            self._problems.add(
                index,
                f"checkpoint {head.number} announces {head.group} entries, "
                f"{self._gathered} follow it",
            )
        return None

    def _tables(self) -> tuple[dict[int, Table], U64]:
        """The rows by kind, and what CPU rows say of being online."""
        tables = {kind: Table(_COUNTERS[kind]) for kind in GROUP_KINDS}
        online = np.zeros(0, np.uint64)
        if not self._gathered:
            return tables, online
        location = np.concatenate([rows.location for rows in self._rows])
        keys = np.concatenate([rows.callvalue for rows in self._rows])
        values = np.concatenate([rows.pairs for rows in self._rows])
        index = np.concatenate([rows.index for rows in self._rows])
        for kind in GROUP_KINDS:
            mine = np.flatnonzero(location == kind)
            if not len(mine):
                continue
            mine = mine[np.argsort(keys[mine], kind="stable")]
            table = tables[kind] = Table(_COUNTERS[kind], keys[mine], values[mine], index[mine])
            if kind == _CPU:  # the last pair is (online, ring_lost)
                online = table["ring_lost"] & np.uint64(0xFFFFFFFF)
                table["ring_lost"][:] >>= np.uint64(32)
            twice = np.flatnonzero(np.diff(table.keys) == 0) + 1
            for at in twice[:LISTED_AT_ONCE]:
                self._problems.add(table.index[at], f"{facts.NAMES[kind]} row is there twice")
        return tables, online
