# SPDX-License-Identifier: Apache-2.0
"""Verify's fifth check: what stands in the file against what the last checkpoint says stands there.

A LOSS entry that names no CPU ("unsure": causes 2 to 4, and what `tcpkmon repair` writes) may have
taken any entries, LOSS and ledger entries too; what it counts bounds what may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from formats.base import control
from formats.verify.entries import I64, U64, ControlRows
from formats.verify.ledger import IN_FLIGHT, LOCATIONS, Snapshot, by_cpu
from formats.verify.report import COLLECTOR_CAUSES, DAMAGED, KERNEL_CAUSES, Missed, Problems, Row
from formats.verify.sequence import is_unsure
from formats.verify.serials import SerialCheck


@dataclass
class LossSums:
    """Sequence numbers that LOSS entries count: by CPU where they know it."""

    by_cpu: dict[int, int] = field(default_factory=dict)
    """The causes that know the CPU together: what comes late was first missed in the kernel."""
    collector: int = 0
    """Causes 2 to 4, of any CPU."""
    repaired: int = 0
    """What `tcpkmon repair` left out or found missing."""

    def feed(self, rows: ControlRows) -> None:
        """Control rows of a segment."""
        losses = rows.take(rows.location == control.Loss.location)
        if not len(losses):
            return
        count, cause = losses.pairs[:, 1], losses.words[:, 4]
        unsure = is_unsure(losses)
        own = unsure & (cause == control.LossCause.DAMAGED)
        self.repaired += int(count[own].sum())
        self.collector += int(count[unsure & ~own].sum())
        for cpu in np.unique(losses.callvalue[~unsure]):
            here = int(count[~unsure & (losses.callvalue == cpu)].sum())
            self.by_cpu[int(cpu)] = self.by_cpu.get(int(cpu), 0) + here

    @property
    def unsure(self) -> int:
        """All that no CPU is known of."""
        return self.collector + self.repaired


def counted_keys(counts: I64) -> I64:
    """The (cpu << 16 | location) of which `counts` has any, sorted."""
    found = np.flatnonzero(counts)
    keys: I64 = ((found // LOCATIONS) << 16) | (found % LOCATIONS)
    return keys


def counted(counts: I64, keys: I64) -> I64:
    """How many snapshots of each key were found in the file."""
    place = (keys >> 16) * LOCATIONS + (keys & 0xFFFF)
    inside = (place < len(counts)) & ((keys & 0xFFFF) < LOCATIONS)
    found: I64 = np.where(inside, counts[np.minimum(place, len(counts) - 1)], 0)
    return found


def check_counts(problems: Problems, shot: Snapshot, has_cpu: bool, repaired: int) -> None:
    """The snapshots before a checkpoint are as many as its COLLECTOR rows say, per row."""
    table = shot.tables[control.Collector.location]
    told = table.values[:, 4].view(np.int64)
    keys = table.keys
    if not has_cpu:
        keys, told = _sum_by(keys & 0xFFFF, told)
    every = np.unique(np.concatenate((keys, counted_keys(shot.counts))))
    if not len(every):
        return
    expected = np.zeros(len(every), np.int64)
    expected[np.searchsorted(every, keys)] = told
    here = counted(shot.counts, every)
    short = expected - here
    if np.all(short >= 0) and int(short.sum()) <= repaired:
        return
    for at in np.flatnonzero(short)[:8]:
        key = int(every[at])
        where = f"CPU {key >> 16}, location {key & 0xFFFF}" if has_cpu else f"location {key}"
        problems.add(
            table.entry(key, shot.index),
            f"{where}: {here[at]} entries in the file before checkpoint "
            f"{shot.checkpoint.number}, which counts {expected[at]}",
        )


def _sum_by(keys: I64, values: I64) -> tuple[I64, I64]:
    different, place = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(different), np.int64)
    np.add.at(sums, place, values)
    return different, sums


def check_losses(problems: Problems, shot: Snapshot, sums: LossSums) -> None:
    """The final checkpoint's losses are those that the LOSS entries count."""
    keys = shot.keys()
    kernel = shot.counters(control.Losses, keys)[:, :3].sum(axis=1)
    collected = shot.counters(control.Collector, keys)
    table = shot.tables[control.Cpu.location]
    cpus, lost = by_cpu(keys, kernel + collected[:, 0])
    told = {int(cpu): int(n) for cpu, n in zip(table.keys, table.values[:, 2], strict=True)}
    for cpu, count in zip(cpus, lost, strict=True):
        told[int(cpu)] = told.get(int(cpu), 0) + int(count)
    for cpu in sorted(told.keys() | sums.by_cpu.keys()):
        ledger, entries = told.get(cpu, 0), sums.by_cpu.get(cpu, 0)
        if entries > ledger or (entries < ledger and not sums.unsure):
            problems.add(
                table.entry(cpu, shot.index),
                f"CPU {cpu}: the final ledger counts {ledger} records lost, late or damaged, "
                f"the LOSS entries {entries}",
            )
    late_stage = int(collected[:, 1:4].sum())
    if late_stage > sums.unsure:
        problems.add(
            shot.index,
            f"the final ledger counts {late_stage} lost by queue, disk or write error, "
            f"the LOSS entries {sums.unsure}",
        )
    everything = sum(told.values()) + late_stage
    if everything > sum(sums.by_cpu.values()) + sums.unsure:
        problems.add(
            shot.index,
            f"the final ledger counts {everything} lost, more than the sequence numbers missing",
        )


def check_serials(
    problems: Problems, shot: Snapshot | None, serials: SerialCheck, sums: LossSums, last: int
) -> None:
    """Every serial up to the last one taken is in the file or counted as lost."""
    table = shot.tables[control.Cpu.location] if shot else None
    where = shot.index if shot else last
    excess = 0
    for cpu, one in sorted(serials.cpus.items()):
        if shot is None or table is None or not shot.final:
            hole = one.missing_marked
            if hole > IN_FLIGHT + sums.unsure:
                problems.add(where, f"CPU {cpu}: {hole} serial(s) missing without a LOSS entry")
            continue
        taken = int(table.at(np.array([cpu]))[0, 0])
        if one.highest > taken:
            problems.add(
                table.entry(cpu, where),
                f"CPU {cpu}: serial {one.highest} in the file, but only {taken} were taken",
            )
            continue
        missing = taken - one.highest + one.missing
        if missing and not sums.unsure:
            problems.add(
                table.entry(cpu, where), f"CPU {cpu}: {missing} serial(s) missing, not counted"
            )
        excess += missing
    if shot is not None and excess > sums.unsure > 0:
        problems.add(
            where, f"{excess} serials missing, more than the {sums.unsure} lost with CPU unknown"
        )
    if shot is None or not shot.final or table is None:
        return
    for cpu, taken in zip(table.keys, table.values[:, 0], strict=True):
        if taken and int(cpu) not in serials.cpus and not sums.unsure:
            problems.add(where, f"CPU {cpu}: {taken} serials taken, none in the file")


def build_rows(shot: Snapshot, has_cpu: bool, name: Callable[[int], str]) -> list[Row]:
    """The table's rows: per CPU and location, or per location where the CPU is not recorded."""
    keys = np.unique(np.concatenate((shot.keys(), counted_keys(shot.counts) if has_cpu else [])))
    keys = keys.astype(np.int64)
    ledger = shot.counters(control.Ledger, keys)
    losses = shot.counters(control.Losses, keys)
    collected = shot.counters(control.Collector, keys)
    here = counted(shot.counts, keys) if has_cpu else collected[:, 4].astype(np.int64)
    rows: list[Row] = []
    for at, key in enumerate(keys.tolist()):
        row = _row(key, ledger[at], losses[at], collected[at], int(here[at]), shot.final)
        row.name = name(row.location)
        rows.append(row)
    if not shot.final:
        _attribute(rows, shot)
    return rows if has_cpu else _merge(rows)


def _row(key: int, ledger: U64, losses: U64, collected: U64, here: int, final: bool) -> Row:
    row = Row(key >> 16, key & 0xFFFF, "")
    row.attempts, row.filtered, row.unchanged, row.written = (int(it) for it in ledger[:4])
    row.in_file = here
    lost = (*losses, *collected[:4])
    for cause, number in zip((*KERNEL_CAUSES, *COLLECTOR_CAUSES), lost, strict=True):
        if number:
            row.lost[cause] = int(number)
    left = row.written - here - int(collected[:4].sum())
    if final and left > 0:  # what a repaired file lacks is damaged too
        row.lost[DAMAGED] = left
    else:
        row.pending = left
    return row


def _attribute(rows: list[Row], shot: Snapshot) -> None:
    """Of what is written and not in the file yet, take what the CPU's row knows to be damaged."""
    table = shot.tables[control.Cpu.location]
    left = {int(cpu): int(n) for cpu, n in zip(table.keys, table.values[:, 2], strict=True)}
    for row in rows:
        number = min(max(row.pending, 0), left.get(row.cpu or 0, 0))
        if number:
            left[row.cpu or 0] -= number
            row.pending -= number
            row.lost[DAMAGED] = number


def _merge(rows: list[Row]) -> list[Row]:
    merged: dict[int, Row] = {}
    for row in rows:
        into = merged.setdefault(row.location, Row(None, row.location, row.name))
        into.add(row)
    return sorted(merged.values(), key=lambda row: row.location)


def missed(shot: Snapshot, name: Callable[[int], str]) -> list[Missed]:
    """What the programs never saw, per location with any."""
    table = shot.tables[control.Program.location]
    return [
        Missed(int(key), name(int(key)), int(values[0]), int(values[1]))
        for key, values in zip(table.keys, table.values, strict=True)
        if values[0] or values[1]
    ]
