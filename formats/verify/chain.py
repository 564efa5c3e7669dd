# SPDX-License-Identifier: Apache-2.0
"""The segments of a capture follow from one another: no record is between two of them."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import FileError, TcpkmonError
from tcpkmon.formats.base.files import open_plain
from tcpkmon.formats.base.limits import MOST_INDEX_CAPTURES, MOST_PROBLEMS
from tcpkmon.formats.base.reconciled import WORDS as RECONCILED
from tcpkmon.formats.base.segments import (
    INDEX,
    NEW_INDEX,
    Deleted,
    Segment,
    as_runs,
    find_segments,
    gaps,
    numbers_of,
    parse_name,
    read_index,
)
from tcpkmon.formats.base.text import some_of
from tcpkmon.formats.verify.report import DOES_NOT_ADD_UP, LOSSES, UNKNOWN, Part, Problems, Report

# What a folder's index tells of its files by their names: how large each is, and digests.

class Listed:
    """Told of each line of the index; the last one of a name counts."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        """The SHA-256 of what was compressed."""
        self._sizes: dict[str, int] = {}
        """Bytes of a file, or of all files in a log's folder."""

    def told(self, line: Mapping[str, Any]) -> None:
        """A line of the index."""
        name = line.get("name")
        if not isinstance(name, str):
            return
        if isinstance(digest := line.get("sha256"), str):
            self._digests[name] = digest
        if type(size := line.get("bytes")) is int:
            self._sizes[name] = size

    def differences(self, segment: Segment, folder: str, is_whole: bool) -> Iterator[str]:
        """What is not as the index tells it. is_whole: nothing else is wrong with the segment."""
        path, digest = segment.path(folder), self._digests.get(segment.name)
        is_packed = digest is not None and segment.archived == ".zst"
        if is_packed and _digest(path) not in (None, digest):
            yield f"{INDEX} has another SHA-256 of what was compressed"
        size = self._sizes.get(segment.name) if segment.sealed and is_whole else None
        if size is not None and (there := _size(path)) not in (None, size):
            yield f"{INDEX} counts {size} bytes in it, but {there} are there"


def _digest(path: Path) -> str | None:
    with suppress(OSError, TcpkmonError), open_plain(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()
    return None


def _size(path: Path) -> int | None:
    with suppress(OSError):
        files = list(path.iterdir()) if path.is_dir() else [path]
        return sum(os.stat(file).st_size for file in files)
    return None


Verify = Callable[[Path], list[Report]]
_LISTED = 5


@dataclass(slots=True)
class _Capture:
    """One capture's segments that are in the folder, and what the index says of the others."""

    parts: dict[int, tuple[Segment, Report, Part]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    sealed: dict[int, str] = field(default_factory=dict)
    deleted: Deleted = field(default_factory=Deleted)
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Records in a segment, and how many were lost, as they were when it was sealed."""
    listed: Listed = field(default_factory=Listed)
    strangers: dict[str, str] = field(default_factory=dict)
    """By name, those of which the index says that they are of another capture, and which."""
    first_told: int = 0
    """Of an index that is too long: its end tells of the segments from this number on."""
    first_sealed: int | None = None
    """The lowest number that a line of the index seals; of an index that is too long, lines before
    it were not read."""
    has_index: bool = False
    """Whether the folder has an index, of any capture."""

    def told(self, line: Mapping[str, Any], name: str, first: int, number: int) -> None:
        """A line of the index, about the segments from first to number."""
        what, original = line.get("what"), parse_name(name)
        if what in ("deleted", "sealed", "repaired", "archived", "gone"):
            self.deleted.add(line, first, number)
        if what in ("sealed", "repaired", "archived", "gone"):
            self.sealed[number] = original.original if original is not None else name
        if what == "gone":
            self.sealed[number] += " was removed, moved or replaced while it was written: it"
        if what == "sealed" and (self.first_sealed is None or number < self.first_sealed):
            self.first_sealed = number
        if what == "repaired":
            self.counts.pop(number, None)
        elif what == "sealed" and type(records := line.get("records")) is int:
            lost = line.get("lost")
            self.counts[number] = records, lost if type(lost) is int else 0

    def knows(self, number: int) -> bool:
        """Whether the lines that were read would seal the segment, had it been sealed here."""
        if not self.first_told:
            return True
        return self.first_sealed is not None and number >= self.first_sealed

    def lost(self, here: Set[str]) -> list[str]:
        """The names that were sealed and not deleted, of which no file is here."""
        there = sorted(self.deleted.there)
        return [self.sealed[number] for number in there if self.sealed[number] not in here]


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
    for segment in segments:
        *logs, report = _verify(segment, Path(folder), verify)
        reports += [*(log for log in logs if log.exit_code == DOES_NOT_ADD_UP), report]
        report.brief = report.part is None or not report.part.is_dump
        if report.part is None:
            others.append(segment.name)
            continue
        capture = captures[report.part.capture]
        if report.part.number in capture.parts:
            capture.twice.append(segment.name)
        else:
            capture.parts[report.part.number] = segment, report, report.part
    lines, has_all = read_index(folder)
    left_out = False
    of_names: dict[str, str] = {}
    listed = Listed()
    has_index = False
    for line in lines:
        has_index = True
        name, numbers = line.get("name"), numbers_of(line)
        listed.told(line)
        if not isinstance(name, str) or numbers is None:
            continue
        capture_id = str(line.get("capture"))
        if capture_id not in captures and len(captures) >= MOST_INDEX_CAPTURES:
            left_out = True
            continue
        if line.get("what") in ("sealed", "repaired"):
            of_names[name] = capture_id
        known = captures[capture_id]
        if not has_all:
            known.first_told = min(known.first_told or numbers[0], numbers[0])
        known.told(line, name, *numbers)
    here = {segment.original for segment in segments}
    gone: list[str] = []
    for capture_id, capture in captures.items():
        capture.listed, capture.has_index = listed, has_index
        capture.strangers = {
            segment.name: told
            for segment, _, _ in capture.parts.values()
            if (told := of_names.get(segment.original, capture_id)) != capture_id
        }
        if capture.parts:
            reports.append(_Chain(str(folder), capture, others).check())
            others = []
        else:
            gone += capture.lost(here)
    if gone:
        reports.append(_without_parts(str(folder), gone, others))
    if left_out:
        what = f"{INDEX} tells of more than {MOST_INDEX_CAPTURES} captures"
        reports.append(Report(str(folder), error=what))
    return reports


def _without_parts(folder: str, gone: list[str], others: list[str]) -> Report:
    """Of captures without any segment here."""
    report, problems = Report(folder, ledger=True, proven_end=True), Problems(0, 0)
    if others:
        report.notes.append(f"not of these captures: {some_of(others, _LISTED)}")
    for name in gone[:MOST_PROBLEMS]:
        problems.add_header(f"{name} is missing")
    problems.count(len(gone[MOST_PROBLEMS:]))
    report.problems, report.problems_total = problems.listed[::-1], problems.total
    return report


def _others(folder: str | os.PathLike[str]) -> list[str]:
    known = {segment.path("").name for segment in find_segments(folder)}
    return sorted(name for name in os.listdir(folder) if name not in known | {INDEX, NEW_INDEX})


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
            self._report.notes.append(f"not of this capture: {some_of(others, _LISTED)}")

    def check(self) -> Report:
        report, capture, problems = self._report, self._capture, self._problems
        numbers = sorted(capture.parts)
        for name in capture.twice:
            problems.add_header(f"{name}: another segment has its number")
        for name, other in capture.strangers.items():
            problems.add_header(f"{name}: {INDEX} says that it is of the capture {other:.40}")
        are_dumps = all(part.is_dump for _, _, part in capture.parts.values())
        for number in numbers:
            segment, found, part = capture.parts[number]
            if are_dumps:  # records are in several
                report.entries += found.entries
                report.size_bytes += found.size_bytes
            else:
                self._add(found)
            self._compare(segment, found, number)
            if segment.number != number:
                problems.add_header(f"{segment.name}: it is number {number} of its capture")
            elif capture.sealed.get(number, segment.original) != segment.original:
                problems.add_header(f"{segment.name}: {INDEX} calls it {capture.sealed[number]}")
            if number - 1 in capture.parts and not are_dumps:
                self._follows(segment, part, *capture.parts[number - 1])
        deleted = capture.deleted.runs()
        unlisted = [
            segment.name
            for number, (segment, _, _) in sorted(capture.parts.items())
            if capture.has_index and segment.sealed and capture.knows(number)
            and number not in capture.sealed and not _covers(deleted, number)
        ]
        self._missing(numbers, deleted)
        last, found, part = capture.parts[numbers[-1]]
        if are_dumps:
            ends = all(each.proven_end for _, each, _ in capture.parts.values())
            report.proven_end, report.end_reason = ends, "each dump's own"
        else:
            report.end_reason = found.end_reason
            report.proven_end = found.proven_end and not part.goes_on
        if part.goes_on and not are_dumps:
            report.notes.append(f"{last.name} says that another file follows it; it is not here")
        if not last.sealed:
            report.notes.append(f"{last.name} is not sealed: it is being written, or was killed")
        if self._compared:
            more = f"; {len(self._compared) - 1} comparison(s) before" if self._compared[1:] else ""
            report.notes.append(self._compared[-1] + more)
        told = (note for _, one, _ in capture.parts.values() for note in one.notes)
        report.notes += report.about_unseen(told)
        count = len(numbers)
        what = "dump(s)" if are_dumps else "segment(s)"
        shared = "; a record can be in several" if are_dumps and count > 1 else ""
        report.notes.insert(0, f"{count} {what}, number {numbers[0]} to {numbers[-1]}{shared}")
        bad = sum(1 for _, one, _ in capture.parts.values() if one.problems_total)
        if bad:
            problems.add_header(f"{bad} segment(s) do not add up")
        report.problems, report.problems_total = problems.listed[::-1], problems.total
        if unlisted and report.exit_code == 0:
            what = f"{INDEX} does not say that {some_of(unlisted, _LISTED)} got this name"
            report.error, report.error_exit = f"not proven: {what}", LOSSES
        lossy = sum(1 for _, one, _ in capture.parts.values() if one.exit_code == LOSSES)
        if are_dumps and lossy and not problems.total:
            report.error, report.error_exit = f"adds up: losses in {lossy} dump(s)", LOSSES
        return report

    def _compare(self, segment: Segment, found: Report, number: int) -> None:
        """The segment has what the index counted when it was sealed, and digested when packed."""
        is_whole = not found.problems_total and found.proven_end
        for what in self._capture.listed.differences(segment, self._report.path, is_whole):
            self._problems.add_header(f"{segment.name}: {what}")
        counts = self._capture.counts.get(number)
        if counts is None or not is_whole:
            return
        records, lost = counts
        there = found.totals.in_file
        if records != there:
            what = f"{INDEX} counts {records} records in it, but {there} are there"
            self._problems.add_header(f"{segment.name}: {what}")
        if lost and not found.lost_total:
            what = f"{INDEX} counts {lost} lost, but it says that none is"
            self._problems.add_header(f"{segment.name}: {what}")

    def _add(self, found: Report) -> None:
        """Add a segment's numbers to those of the capture."""
        report = self._report
        report.add(found)
        report.clock_steps += found.clock_steps
        report.format, report.words = found.format, found.words
        report.ring_lost = found.ring_lost
        self._compared += [note for note in found.notes if note.startswith(RECONCILED)]
        report.unchecked += [what for what in found.unchecked if what not in report.unchecked]

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

    def _missing(self, numbers: list[int], deleted: list[tuple[int, int]]) -> None:
        """Numbers without a file: the index says that they were deleted, or it is a problem."""
        capture = self._capture
        highest = max([numbers[-1], *capture.sealed])
        if highest > numbers[-1] + (1 << 20):  # of a forged index
            highest = numbers[-1]
        here = as_runs(numbers)
        gone = gaps(sorted([*here, *deleted]), max(capture.first_told, 1), highest)
        taken = gaps(sorted([*here, *gone]), 1, highest)
        if taken:
            count = sum(last - first + 1 for first, last in taken)
            what = f"{count} segment(s) were deleted, as {INDEX} says: {_ranges(taken)}"
            self._report.notes.append(what)
        every = chain.from_iterable(range(first, last + 1) for first, last in gone)
        for number in islice(every, MOST_PROBLEMS):
            name = capture.sealed.get(number, f"number {number}")
            self._problems.add_header(f"{name} is missing")
        self._problems.count(max(0, sum(b - a + 1 for a, b in gone) - MOST_PROBLEMS))


def _covers(runs: list[tuple[int, int]], number: int) -> bool:
    """Whether one of the sorted runs has the number."""
    at = bisect_right(runs, number, key=lambda run: run[0])
    return at > 0 and runs[at - 1][1] >= number


def _ranges(runs: list[tuple[int, int]]) -> str:
    """1-3, 7."""
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:8]]
    return ", ".join(shown) + (" ..." if len(runs) > 8 else "")
