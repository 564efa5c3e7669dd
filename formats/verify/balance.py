# SPDX-License-Identifier: Apache-2.0
"""The checks of a ledger, the same for every record format; docs/verify.md lists all of verify's.

    check_sums     attempts   = filtered + unchanged + limited + shed + written + losses in the
                                kernel
                   serials    = written + ring full + no ring + other, over a CPU's points
                   came out   : in file + losses in the collector are at most what was written
                   damaged    = written - in file - losses in the collector, over a CPU's points
                   read       = written - damaged, over a CPU's points
                   late       : the same by CPU and by point
    check_counts   in file    = the records that the file holds before the ledger
    check_rise     no counter is smaller than in the ledger before
    check_before   serials before a segment = records in earlier files + losses, as its header and
                   its first ledger tell them
    compare_rings  ring full  = what a CPU's ring itself counted; where not, a note; where the ring
                   counts more, it is not proven that the ledger has all losses

Exactly so in the final ledger. Of an earlier one Ledger.slack says how far off each may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import numpy as np

from tcpkmon.formats.verify.ledger import (
    ASIDE,
    COLLECTED,
    KERNEL,
    LATE_STAGE,
    NUMBERED,
    Ledger,
    by_cpu,
    counted,
    counted_keys,
)
from tcpkmon.formats.verify.report import (
    COLLECTOR_CAUSES,
    COUNTS,
    DAMAGED,
    I64,
    KERNEL_CAUSES,
    LISTED_AT_ONCE,
    U64,
    Mask,
    Problems,
    Row,
)


def check_sums(problems: Problems, ledger: Ledger) -> None:
    """What the kernel and the collector counted adds up."""
    points = ledger.points
    written, out = points["written"], points.sum(*COLLECTED, "in_file")
    parts = points.sum(*ASIDE, "written", *KERNEL)
    _check_points(problems, ledger, "attempts", "attempts", points["attempts"], parts)
    _check_cpus(problems, ledger, "serials", written + points.sum(*NUMBERED))
    _check_points(problems, ledger, "came out", COLLECTED[0], written, out, at_least=True)
    nowhere = np.maximum((written - out).view(np.int64), 0).astype(np.uint64)
    _check_cpus(problems, ledger, "damaged", nowhere)
    _check_cpus(problems, ledger, "read", written)
    _check_cpus(problems, ledger, "late", points["late"])


def _check_points(
    problems: Problems,
    ledger: Ledger,
    check: str,
    counter: str,
    told: U64,
    found: U64,
    at_least: bool = False,
) -> None:
    """Each point's `told` is `found` (or at_least that), both (points,)."""
    keys, wrong = ledger.points.keys, _wrong(ledger.room(check), told, found, at_least)
    for at in np.flatnonzero(wrong)[:LISTED_AT_ONCE].tolist():
        key = int(keys[at])
        text = ledger.texts[check].format(where=ledger.where(key), told=told[at], found=found[at])
        problems.add(ledger.entry(counter, key), text)


def _check_cpus(problems: Problems, ledger: Ledger, counter: str, of_points: U64) -> None:
    """A counter of each CPU is what its points add up to; of_points: (points,).

    What was read is what was written and not damaged; before the end some may not be read yet.
    """
    if ledger.cpus is None:
        return
    cpus, sums = by_cpu(ledger.points.keys, of_points)
    if counter == "read":
        sums = sums - ledger.cpus.at(cpus)["damaged"]
    every = np.unique(np.concatenate((ledger.cpus.keys, cpus)))
    found = np.zeros(len(every), np.uint64)
    found[np.searchsorted(every, cpus)] = sums
    cpu_rows = ledger.cpus.at(every)
    told, damaged = cpu_rows[counter], cpu_rows["damaged"]
    at_least = counter == "read" and not ledger.final
    wrong = _wrong(ledger.room(counter), found, told, at_least)
    written = found + damaged
    for at in np.flatnonzero(wrong)[:LISTED_AT_ONCE].tolist():
        text = ledger.texts[counter].format(
            cpu=every[at],
            told=told[at],
            found=found[at],
            damaged=damaged[at],
            written=written[at],
        )
        problems.add(ledger.cpu_entry(int(every[at])), text)


def _wrong(room: int | None, more: U64, less: U64, at_least: bool) -> Mask:
    """Where two counters differ by more than `room`; with at_least only where `more` is less."""
    off = (more - less).view(np.int64)
    if room is None:
        return np.zeros(len(off), np.bool_)
    wrong: Mask = off < -room
    return wrong if at_least else wrong | (off > room)


def check_counts(
    problems: Problems, ledger: Ledger, has_cpu: bool = True, repaired: int = 0
) -> None:
    """The file holds what the ledger counts, of each point; less by what a repair left out."""
    keys, told = ledger.points.keys, ledger.points["in_file"].view(np.int64)
    if not has_cpu:
        keys, told = sum_by_point(keys, told)
    every = np.unique(np.concatenate((keys, counted_keys(ledger.counts))))
    if not len(every):
        return
    expected = np.zeros(len(every), np.int64)
    expected[np.searchsorted(every, keys)] = told
    found = counted(ledger.counts, every)
    short = expected - found
    if np.all(short >= 0) and int(short.sum()) <= repaired:
        return
    for at in np.flatnonzero(short)[:LISTED_AT_ONCE].tolist():
        key = int(every[at])
        text = ledger.texts["in file"].format(
            where=ledger.where(key, has_cpu),
            number=ledger.number,
            told=expected[at],
            found=found[at],
        )
        problems.add(ledger.entry("in_file", key), text)


def sum_by_point(keys: I64, values: I64) -> tuple[I64, I64]:
    """Counts of all CPUs together: for a file that does not tell of which CPU a record is."""
    different, place = np.unique(keys & 0xFFFF, return_inverse=True)
    sums = np.zeros(len(different), np.int64)
    np.add.at(sums, place, values)
    return different, sums


def check_rise(problems: Problems, before: Ledger, after: Ledger) -> None:
    """No counter falls from one ledger to the next."""
    for part in before.parts:
        for entry, what in islice(_fallen(part, before, after), LISTED_AT_ONCE):
            problems.add(entry, what)


def _fallen(part: str, before: Ledger, after: Ledger) -> Iterator[tuple[int, str]]:
    """Entry and words of each counter that fell; no words twice for one row."""
    old, new = before.parts[part], after.parts[part]
    now = new.at(old.keys).values
    fell = now < old.values
    if part in after.lasting:
        fell &= np.isin(old.keys, new.keys)[:, None]
    last = None
    for at, column in np.argwhere(fell).tolist():
        told = int(old.values[at, column]), int(now[at, column])
        found = after.fell(part, int(old.keys[at]), old.names[column], *told)
        if found != last:
            yield found
        last = found


def check_before(
    problems: Problems, base: Ledger, serials: Mapping[int, int], lost: Mapping[int, int]
) -> None:
    """What the header says of earlier files is what the first ledger says.

    serials: by CPU, the last one before the file; lost: how many of them were lost before the
    writer had them.
    """
    points = base.points
    cpus, held = by_cpu(points.keys, points.sum("in_file", *LATE_STAGE))
    records = dict(zip(cpus.tolist(), held.tolist(), strict=True))
    for cpu in sorted(records.keys() | serials.keys()):
        found = serials.get(cpu, 0), records.get(cpu, 0), lost.get(cpu, 0)
        if found[0] != found[1] + found[2]:
            what = "{} serials before this file, but {} records of earlier files and {} lost"
            problems.add(base.cpu_entry(cpu), f"CPU {cpu}: " + what.format(*found))


def compare_rings(ledger: Ledger) -> tuple[list[str], int]:
    """A note for each CPU whose ring itself counted other losses than the programs did; and how
    many more the rings counted."""
    found = Problems(0, 0)
    _check_cpus(found, ledger, "ring_lost", ledger.points["ring_full"])
    if not found.total:
        return [], 0
    cpus, told = by_cpu(ledger.points.keys, ledger.points["ring_full"])
    rings = ledger.cpu_rows
    more = dict(zip(rings.keys.tolist(), rings["ring_lost"].tolist(), strict=True))
    for cpu, count in zip(cpus.tolist(), told.tolist(), strict=True):
        more[cpu] = more.get(cpu, 0) - count
    return [problem.what for problem in found.listed], sum(max(0, n) for n in more.values())


def build_rows(
    ledger: Ledger, has_cpu: bool, name: Callable[[int], str], damaged: str = DAMAGED
) -> list[Row]:
    """The table's rows: per CPU and point, or per point where the CPU is not recorded.

    damaged: the cause of what a CPU's row counts as damaged.
    """
    file_keys = counted_keys(ledger.counts) if has_cpu else np.zeros(0, np.int64)
    keys = np.unique(np.concatenate((ledger.points.keys, file_keys)))
    points = ledger.points.at(keys)
    found = counted(ledger.counts, keys) if has_cpu else points["in_file"]
    rows = []
    for key, values, here in zip(
        keys.tolist(), points.values.tolist(), found.tolist(), strict=True
    ):
        told = dict(zip(points.names, values, strict=True))
        row = Row(key >> 16, key & 0xFFFF, name(key & 0xFFFF), in_file=here)
        for counter in ("attempts", *ASIDE, "written"):
            setattr(row, counter, told[counter])
        causes = zip((*KERNEL_CAUSES, *COLLECTOR_CAUSES), (*KERNEL, *COLLECTED), strict=True)
        row.lost = {cause: told[counter] for cause, counter in causes if told[counter]}
        row.pending = row.written - here - sum(told[counter] for counter in COLLECTED)
        rows.append(row)
    _attribute_damaged(rows, ledger, damaged)
    return rows if has_cpu else _merge(rows)


def subtract(rows: list[Row], before: list[Row]) -> None:
    """Take from the rows what a segment's first ledger had counted: what is left is its own.

    `pending` is then what was under way at its end, less what was at its beginning.
    """
    places = {(row.cpu, row.location): row for row in before}
    for row in rows:
        if (old := places.get((row.cpu, row.location))) is None:
            continue
        for name in COUNTS:
            setattr(row, name, getattr(row, name) - getattr(old, name))
        lost = {cause: n - old.lost.get(cause, 0) for cause, n in row.lost.items()}
        row.lost = {cause: n for cause, n in lost.items() if n}
    rows[:] = [row for row in rows if row.attempts or row.in_file or row.pending or row.lost]


def _attribute_damaged(rows: list[Row], ledger: Ledger, damaged: str) -> None:
    """Take from `pending` what is lost for good: all of it in the end, as a file that was repaired
    lacks what is damaged too; before, as much as the row's CPU knows to be damaged."""
    cpus = ledger.cpu_rows
    left = dict(zip(cpus.keys.tolist(), cpus["damaged"].tolist(), strict=True))
    for row in rows:
        told = min(max(row.pending, 0), left.get(row.cpu or 0, 0))
        left[row.cpu or 0] = left.get(row.cpu or 0, 0) - told
        lost = max(row.pending, 0) if ledger.final else told
        for cause, count in ((damaged, told), (DAMAGED, lost - told)):
            if count:
                row.lost[cause] = row.lost.get(cause, 0) + count
        row.pending -= lost


def _merge(rows: list[Row]) -> list[Row]:
    merged: dict[int, Row] = {}
    for row in rows:
        into = merged.setdefault(row.location, Row(None, row.location, row.name))
        into.add(row)
    return sorted(merged.values(), key=lambda row: row.location)
