# SPDX-License-Identifier: Apache-2.0
"""The segments of a capture follow from one another: no record is between two of them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path

from formats.base.errors import FileError
from formats.base.limits import MOST_PROBLEMS
from formats.base.reconciled import WORDS as RECONCILED
from formats.base.segments import INDEX, Segment, find_segments, read_index
from formats.verify.report import DOES_NOT_ADD_UP, Problems, Report, Row
from formats.verify.segment import UNKNOWN, Part

Verify = Callable[[Path], list[Report]]


@dataclass
class _Capture:
    """One capture's segments that are in the folder, and what the index says of the others."""

    parts: dict[int, tuple[Segment, Report, Part]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    sealed: dict[int, str] = field(default_factory=dict)
    deleted: dict[int, str] = field(default_factory=dict)
    tables: dict[int, str] = field(default_factory=dict)
    """Those that are Parquet now."""
    first_told: int = 0
    """Of an index that is too long: its end tells of the segments from this number on."""

    def lost(self, here: Set[str]) -> list[str]:
        """The names that were sealed and not deleted, of which no file is here."""
        gone = self.sealed.keys() - self.deleted.keys() - self.tables.keys()
        return [self.sealed[number] for number in sorted(gone) if self.sealed[number] not in here]


def verify_chain(folder: str | os.PathLike[str], verify: Verify) -> list[Report]:
    """Check each segment in a folder, then for each capture that they are one chain.

    verify: checks one segment. FileError if the folder cannot be read.
    """
    try:
        segments, others = find_segments(folder), _others(folder)
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error.strerror}") from error
    reports: list[Report] = []
    captures: defaultdict[str, _Capture] = defaultdict(_Capture)
    tables = {one.name for one in segments if one.archived == ".parquet"}
    for segment in segments:
        if segment.name in tables:
            continue
        *logs, report = _verify(segment, Path(folder), verify)
        reports += [*(log for log in logs if log.exit_code == DOES_NOT_ADD_UP), report]
        if report.part is not None and report.part.is_dump:
            continue
        report.brief = True
        if report.part is None:
            others.append(segment.name)
            continue
        capture = captures[report.part.capture]
        if report.part.number in capture.parts:
            capture.twice.append(segment.name)
        else:
            capture.parts[report.part.number] = segment, report, report.part
    lines, has_all = read_index(folder)
    for line in lines:
        name, number, what = line.get("name"), line.get("number"), line.get("what")
        if not isinstance(name, str) or not isinstance(number, int):
            continue
        known = captures[str(line.get("capture"))]
        if not has_all:
            known.first_told = min(known.first_told or number, number)
        if what == "archived" and name in tables:
            known.tables[number] = name
        if what in ("sealed", "deleted"):
            (known.sealed if what == "sealed" else known.deleted)[number] = name
    here = {segment.original for segment in segments}
    for capture in captures.values():
        if capture.parts or capture.tables or capture.lost(here):
            reports.append(_Chain(str(folder), capture, others).check(here))
            others = []
    told = {name for capture in captures.values() for name in capture.tables.values()}
    if unknown := sorted(tables - told):
        what = f"cannot be checked, as Parquet that {INDEX} does not know: {_listed(unknown)}"
        reports.append(Report(str(folder), error=what, error_exit=FileError.exit_code))
    return reports


def _others(folder: str | os.PathLike[str]) -> list[str]:
    known = {segment.path("").name for segment in find_segments(folder)}
    return sorted(name for name in os.listdir(folder) if name not in known and name != INDEX)


def _verify(segment: Segment, folder: Path, verify: Verify) -> list[Report]:
    path = segment.path(folder)
    try:
        return verify(path)
    except FileError as error:
        return [Report(str(path), error=error.message, error_exit=error.exit_code)]


class _Chain:
    """The check of one capture."""

    def __init__(self, folder: str, capture: _Capture, others: list[str]) -> None:
        self._capture = capture
        self._problems = Problems(0, 0)
        self._report = Report(folder, ledger=True)
        self._compared: list[str] = []
        """What was said of comparisons with the kernel."""
        if others:
            self._report.notes.append(f"not of this capture: {_listed(others)}")

    def check(self, here: Set[str]) -> Report:
        """here: the names of all segments in the folder, before they were archived."""
        report, capture, problems = self._report, self._capture, self._problems
        numbers = sorted(capture.parts)
        if not numbers:
            return self._without_parts(here)
        for name in capture.twice:
            problems.add_header(f"{name}: another segment has its number")
        for number in numbers:
            segment, found, part = capture.parts[number]
            self._add(found)
            if segment.number != number:
                problems.add_header(f"{segment.name}: it is number {number} of its capture")
            if number - 1 in capture.parts:
                self._follows(segment, part, *capture.parts[number - 1])
        self._missing(numbers)
        last, found, part = capture.parts[numbers[-1]]
        report.end_reason = found.end_reason
        report.proven_end = found.proven_end and not part.goes_on
        if part.goes_on:
            report.notes.append(f"{last.name} says that another file follows it; it is not here")
        if not last.sealed:
            report.notes.append(f"{last.name} is not sealed: it is being written, or was killed")
        if self._compared:
            more = f"; {len(self._compared) - 1} comparison(s) before" if self._compared[1:] else ""
            report.notes.append(self._compared[-1] + more)
        count = len(numbers)
        report.notes.insert(0, f"{count} segment(s), number {numbers[0]} to {numbers[-1]}")
        bad = sum(1 for _, one, _ in capture.parts.values() if one.problems_total)
        if bad:
            problems.add_header(f"{bad} segment(s) do not add up")
        report.problems, report.problems_total = problems.listed[::-1], problems.total
        return report

    def _without_parts(self, here: Set[str]) -> Report:
        report, problems = self._report, self._problems
        if self._capture.tables:
            report.notes.append(self._about_tables())
            report.unchecked.append("records (Parquet has no ledger)")
        report.proven_end = True
        for name in self._capture.lost(here)[:MOST_PROBLEMS]:
            problems.add_header(f"{name} is missing")
        report.problems, report.problems_total = problems.listed[::-1], problems.total
        return report

    def _about_tables(self) -> str:
        count, numbers = len(self._capture.tables), sorted(self._capture.tables)
        what = f"{count} segment(s) are Parquet, verified before: {_ranges(numbers)}"
        return f"{what}; not checked here"

    def _add(self, found: Report) -> None:
        """Add a segment's numbers to those of the capture."""
        report = self._report
        for name in ("entries", "size_bytes", "checkpoints", "seq_lost", "seq_gaps", "existing",
                     "clock_pairs", "clock_steps"):  # fmt: skip
            setattr(report, name, getattr(report, name) + getattr(found, name))
        rows = {(row.cpu, row.location): row for row in report.rows}
        for row in found.rows:
            key = row.cpu, row.location
            rows.setdefault(key, Row(row.cpu, row.location, row.name)).add(row)
        report.rows = [rows[key] for key in sorted(rows, key=lambda key: (key[0] or 0, key[1]))]
        report.format, report.words = found.format, found.words
        report.unproven |= found.unproven
        report.ring_lost = found.ring_lost
        report.missed += found.missed
        self._compared += [note for note in found.notes if note.startswith(RECONCILED)]
        for lines, more in (
            (report.off, found.off), (report.shed, found.shed),
            (report.unchecked, found.unchecked),
        ):  # fmt: skip
            lines += [line for line in more if line not in lines]

    def _follows(
        self, segment: Segment, part: Part, before: Segment, _: Report, earlier: Part
    ) -> None:
        """A segment begins where the one before it ended."""
        previous = part.previous
        name, add = segment.name, self._problems.add_header
        if previous is None:
            add(f"{name}: it names no file before it")
            return
        if before.original != previous.name:
            add(f"{name}: the file before it was {previous.name}, not {before.name}")
        if not earlier.goes_on:
            add(f"{before.name}: it says that no file follows it, but {name} does")
        told, found = previous.last_seq, earlier.last_seq
        if told != found != UNKNOWN:
            add(f"{name}: it follows number {told}, but {before.name} ends with {found}")
        elif previous.entries != earlier.entries:
            add(f"{name}: {previous.entries} entries before it, but {earlier.entries} are there")
        if not earlier.unsure:
            for cpu in sorted(previous.serials.keys() | earlier.serials.keys()):
                told, found = previous.serials.get(cpu, 0), earlier.serials.get(cpu, 0)
                if told != found:
                    what = f"serial {told} before it, but {before.name} has {found}"
                    add(f"{name}: CPU {cpu}: {what}")
        if part.first != earlier.last:
            add(f"{name}: its ledger does not begin with that of {before.name}")

    def _missing(self, numbers: list[int]) -> None:
        """Numbers without a file: the index says that they were deleted, or it is a problem."""
        capture = self._capture
        highest = max([numbers[-1], *capture.sealed])
        if highest > numbers[-1] + (1 << 20):  # of a forged index
            highest = numbers[-1]
        absent = [n for n in range(1, highest + 1) if n not in capture.parts]
        if capture.tables:
            self._report.notes.append(self._about_tables())
            absent = [n for n in absent if n not in capture.tables]
        taken = [n for n in absent if n in capture.deleted or n < capture.first_told]
        if taken:
            what = f"{len(taken)} segment(s) were deleted, as {INDEX} says: {_ranges(taken)}"
            self._report.notes.append(what)
        gone = sorted({*absent} - {*taken})
        for number in gone[:MOST_PROBLEMS]:
            name = capture.sealed.get(number, f"number {number}")
            self._problems.add_header(f"{name} is missing")


def _ranges(numbers: list[int]) -> str:
    """1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:8]]
    return ", ".join(shown) + (" ..." if len(runs) > 8 else "")


def _listed(names: list[str]) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")
