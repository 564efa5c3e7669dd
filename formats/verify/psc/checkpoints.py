# SPDX-License-Identifier: Apache-2.0
"""Gathers a capture's checkpoints, makes a Ledger of each, and checks the form of its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from formats.base import control
from formats.base.limits import MOST_GROUP
from formats.verify.ledger import (
    COLLECTED,
    COUNTERS,
    CPU_COUNTERS,
    IN_FLIGHT,
    KERNEL,
    POINTS,
    Ledger,
    Table,
)
from formats.verify.psc.entries import ControlRows
from formats.verify.report import I64, LISTED_AT_ONCE, U64, Missed, Problems

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
    _PROGRAM: ("missed", "kprobe_missed", "runs", "run_ns", "unused"),
    _COLLECTOR: (*COLLECTED, "in_file"),
}
"""What the five u64 of each kind of row count."""
_KIND_OF = {name: kind for kind in (_LEDGER, _LOSSES, _COLLECTOR) for name in _COUNTERS[kind]}


class Checkpoint(Ledger):
    """One whole checkpoint; `tables` are its rows by their location."""

    texts = MappingProxyType(
        {
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
            "ring_lost": "CPU {cpu}: its ring itself counts {told} that found no room, "
            "the ledger {found}",
            "late": "CPU {cpu}: {told} late, but its locations add up to {found}",
        }
    )
    slack = MappingProxyType(dict.fromkeys(("attempts", "serials", "came out", "late"), IN_FLIGHT))

    def __init__(
        self, index: int, head: control.Checkpoint, counts: I64, rows: dict[int, Table], online: U64
    ) -> None:
        keys = np.unique(np.concatenate([rows[k].keys for k in (_LEDGER, _LOSSES, _COLLECTOR)]))
        points = Table(COUNTERS, keys, np.zeros((len(keys), len(COUNTERS)), np.uint64))
        for kind in (_LEDGER, _LOSSES, _COLLECTOR):
            table = rows[kind].at(keys)
            for name in set(table.names) & set(COUNTERS):
                points[name][:] = table[name]
        parts = {control.NAMES[kind]: table for kind, table in rows.items()}
        super().__init__(index, head.number, head.final == 1, counts, points, rows[_CPU], parts)
        self.stop = index + 1 + head.group
        """The entry behind its group."""
        self.tables = rows
        self.cpu_rows = rows[_CPU]
        self._online = online

    def where(self, key: int, has_cpu: bool = True) -> str:
        return f"CPU {key >> 16}, location {key & 0xFFFF}" if has_cpu else f"location {key}"

    def entry(self, counter: str, key: int) -> int:
        return self.tables[_KIND_OF[counter]].entry(key, self.index)

    def cpu_entry(self, cpu: int) -> int:
        return self.tables[_CPU].entry(cpu, self.index)

    def fell(self, part: str, key: int, counter: str, then: int, now: int) -> tuple[int, str]:
        what = f"{part} row {self._row(part, key)} counts less than before"
        return self.parts[part].entry(key, self.index), what

    def _row(self, part: str, key: int) -> str:
        single = {control.NAMES[_CPU]: "CPU", control.NAMES[_PROGRAM]: "location"}
        return f"of {single[part]} {key}" if part in single else f"of {self.where(key)}"

    def check_rows(self, problems: Problems, cpu_limit: int) -> None:
        """No row is of a CPU or location that there cannot be, and none lacks its LEDGER row."""
        for kind, table in self.tables.items():
            name = control.NAMES[kind]
            if kind == _PROGRAM:
                for at in np.flatnonzero(table.keys >= POINTS)[:LISTED_AT_ONCE]:
                    problems.add(table.index[at], f"no location {table.keys[at]} has a program")
                continue
            cpu = table.keys if kind == _CPU else table.keys >> 16
            for at in np.flatnonzero(cpu >= cpu_limit)[:LISTED_AT_ONCE]:
                problems.add(table.index[at], f"{name} row of CPU {cpu[at]}, not possible here")
        for kind in (_LOSSES, _COLLECTOR):
            table, name = self.tables[kind], control.NAMES[kind]
            alone = ~np.isin(table.keys, self.tables[_LEDGER].keys)
            for at in np.flatnonzero(alone)[:LISTED_AT_ONCE]:
                where = self.where(int(table.keys[at]))
                problems.add(table.index[at], f"{name} row of {where} without a LEDGER row")
        strange, rows = np.flatnonzero(self._online > 1), self.tables[_CPU].index
        problems.add_each(strange, rows, lambda _: "CPU row is not on or off")

    @property
    def digest(self) -> str:
        """Of all its counters: two checkpoints with the same rows have the same."""
        found = hashlib.sha256()
        for kind in GROUP_KINDS:
            found.update(self.tables[kind].keys.tobytes() + self.tables[kind].values.tobytes())
        return found.hexdigest()

    def missed(
        self, name: Callable[[int], str], since: Checkpoint | None = None
    ) -> list[Missed]:
        """What the programs never saw, per location with any; since: after this checkpoint."""
        table = self.tables[_PROGRAM]
        values = table.values
        if since is not None:
            values = values - since.tables[_PROGRAM].at(table.keys).values
        return [
            Missed(key, name(key), *counts[:2])
            for key, counts in zip(table.keys.tolist(), values.tolist(), strict=True)
            if any(counts[:2])
        ]


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
        """A CHECKPOINT is this entry; `counts` are the snapshots before it."""
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
        """Rows of the open group; `hidden`: an unsure LOSS is among them."""
        self._rows.append(rows)
        self._gathered += len(rows)
        self._hidden |= hidden

    def close(self, at_end: bool = False) -> Checkpoint | None:
        """The open checkpoint with its group, or None if the group is not whole."""
        if self._open is None:
            return None
        index, head, counts = self._open
        self._open = None
        if self._gathered == head.group:
            return Checkpoint(index, head, counts, *self._tables())
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
                self._problems.add(table.index[at], f"{control.NAMES[kind]} row is there twice")
        return tables, online
