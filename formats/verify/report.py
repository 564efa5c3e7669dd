# SPDX-License-Identifier: Apache-2.0
"""What verify found in one capture: the last stage, from which the table and the JSON are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base import causes
from tcpkmon.formats.base.limits import MOST_CPUS, MOST_ENTRIES, MOST_PROBLEMS
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.unseen import describe

# What a segment's header says of its capture and of the segment before it.

_CAPTURE = re.compile(r"[0-9a-f]{32}")
_MOST = 1 << 62
UNKNOWN = -1


@dataclass(frozen=True)
class Previous:
    """Where the segment before ended: its name, and what the capture's files held until then."""

    name: str = ""
    last_seq: int = 0
    entries: int = 0
    checkpoints: int = 0
    skipped: int = 0
    """Sequence numbers that LOSS entries without a CPU count."""
    serials: Mapping[int, int] = field(default_factory=dict)
    """By CPU, the last one that is in a file or lost."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """By CPU, how many of them were lost."""
    evicted: bool = False
    """No file has them: the flight recorder wrote a dump, which begins here."""


@dataclass
class Part:
    """A segment of a capture; verify fills in where it ends.

    first, last: a digest of the ledger at its beginning and at its end; empty where it has none.
    """

    capture: str
    number: int
    previous: Previous | None
    last_seq: int = 0
    """UNKNOWN where a full disk or queue dropped the last records of a log."""
    entries: int = 0
    goes_on: bool = False
    """Another segment follows it."""
    unsure: bool = False
    """The file does not tell each CPU's last serial: records were lost of which no CPU is known, or
    it has no serials."""
    serials: dict[int, int] = field(default_factory=dict)
    first: str = ""
    last: str = ""

    @property
    def is_dump(self) -> bool:
        """It is a dump of the flight recorder: no other segment is before or after it."""
        return self.previous is not None and self.previous.evicted

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        previous = self.previous.name if self.previous else None
        return {"capture": self.capture, "number": self.number, "previous": previous}


def find_part(settings: object) -> Part | None:
    """The segment of a header's settings; None for a file that is none. ValueError if damaged."""
    found = setting(settings, "segment")
    if found is None:
        return None
    try:
        capture, number, previous = found["capture"], found["number"], found["previous"]
        if not (isinstance(capture, str) and _CAPTURE.fullmatch(capture) and _number(number)):
            raise ValueError
        return Part(capture, number, None if previous is None else _previous(previous))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("the header's description of this segment cannot be read") from None


def previous_of(settings: object) -> Previous:
    """Where the segment before ended, for who repairs: verify tells of damage."""
    try:
        part = find_part(settings)
    except ValueError:
        part = None
    return (part.previous if part is not None else None) or Previous()


def _previous(found: Mapping[str, Any]) -> Previous:
    counts = {name: found[name] for name in ("last_seq", "entries", "checkpoints", "skipped")}
    if not all(map(_number, counts.values())) or not isinstance(found["name"], str):
        raise ValueError
    return Previous(
        found["name"], **counts, serials=_by_cpu(found["serials"]), lost=_by_cpu(found["lost"]),
        evicted=found.get("evicted") is True,
    )  # fmt: skip


def _by_cpu(found: Mapping[str, Any]) -> dict[int, int]:
    numbers = {int(cpu): number for cpu, number in found.items()}
    inside = all(0 <= cpu <= MOST_CPUS and _number(n) for cpu, n in numbers.items())
    if not inside or len(numbers) != len(found):
        raise ValueError
    return numbers


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

KERNEL_CAUSES = tuple(causes.KERNEL_CAUSES.values())
COLLECTOR_CAUSES = tuple(causes.COLLECTOR_CAUSES.values())
DAMAGED = "damaged"
CAUSES = (*KERNEL_CAUSES, *COLLECTOR_CAUSES, causes.KILLED, DAMAGED)
COUNTS = ("attempts", "filtered", "unchanged", "limited", "shed", "written", "in_file", "pending")
NOT_CLOSED = "the end does not directly follow a ledger that was made for it"
"""A note: entries may have been cut out before the end."""
NOT_SEEN = "not seen: "
"""With these words the note of what the kernel showed no program begins."""
LISTED_AT_ONCE = 8
"""How many problems of one kind a piece of the file (a segment, a batch, a ledger) may list."""

PROVEN = 0
LOSSES = 3
DOES_NOT_ADD_UP = 5
HEADER = -1
"""Instead of an entry's number: what is wrong is in the header, or outside of the entries."""


@dataclass(frozen=True)
class Problem:
    """One thing that does not add up: `offset` in bytes into the file, `entry` from 0 or HEADER."""

    offset: int
    entry: int
    what: str


class Problems:
    """Collects problems; keeps the first MOST_PROBLEMS, counts all."""

    def __init__(self, data_offset: int, entry_size: int) -> None:
        self.data_offset = data_offset
        self.entry_size = entry_size
        self.listed: list[Problem] = []
        self.entries: set[int] = set()
        """Entries that some problem names, for a repair."""
        self.total = 0

    def add(self, entry: int, what: str) -> None:
        """Note a problem at the entry with this number."""
        self.total += 1
        if len(self.entries) < MOST_ENTRIES:
            self.entries.add(int(entry))
        if len(self.listed) < MOST_PROBLEMS:
            offset = self.data_offset + int(entry) * self.entry_size
            self.listed.append(Problem(offset, int(entry), what))

    def add_each(
        self, places: I64, entries: I64 | int, what: Callable[[int], str], rest: bool = False
    ) -> None:
        """Note the first LISTED_AT_ONCE of these places, and with `rest` count the others.

        entries: the entry number of each place, or that of place 0 where they run on.
        """
        for at in places[:LISTED_AT_ONCE].tolist():
            self.add(entries + at if isinstance(entries, int) else entries[at], what(at))
        if rest:
            self.total += max(0, len(places) - LISTED_AT_ONCE)

    def add_header(self, what: str) -> None:
        """Note a problem of the header; these come first."""
        self.total += 1
        self.listed.insert(0, Problem(0, HEADER, what))

    def count(self, number: int) -> None:
        """Count problems that are too many to list."""
        self.total += int(number)


@dataclass
class Row:
    """One location (or event) on one CPU (or on all: cpu None), in entries.

    attempts = filtered + unchanged + limited + shed + in_file + pending + the losses; written =
    in_file + pending + the collector's losses. `pending` is what was under way at a checkpoint, 0
    at the end.
    """

    cpu: int | None
    location: int
    name: str
    attempts: int = 0
    filtered: int = 0
    unchanged: int = 0
    limited: int = 0
    shed: int = 0
    written: int = 0
    in_file: int = 0
    pending: int = 0
    lost: dict[str, int] = field(default_factory=dict)

    @property
    def lost_total(self) -> int:
        """Losses of all causes."""
        return sum(self.lost.values())

    def add(self, other: Row) -> None:
        """Add the counts of another row to these."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for cause, number in other.lost.items():
            self.lost[cause] = self.lost.get(cause, 0) + number

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self), lost_total=self.lost_total)


@dataclass(frozen=True)
class Missed:
    """Events that one location's program never saw (not among the attempts)."""

    location: int
    name: str
    recursion: int
    kprobe: int


def find_unproven(settings: object) -> dict[str, str]:
    """The events of a header's settings whose losses the kernel did not count, and how they were
    attached."""
    found = setting(settings, "unproven")
    if not isinstance(found, dict):
        return {}
    return {str(name): str(way) for name, way in found.items()}


_UNSEEN_SHARE = 1000
"""Process 1 that had a CPU for less than this part of a capture is worth no line."""


def find_unseen(settings: object) -> list[str]:
    """What the kernel showed no program, in a header's settings: a text, or none."""
    found = setting(settings, "unseen")
    return [f"{NOT_SEEN}{found}"] if found and isinstance(found, str) else []


def find_anonymised(settings: object) -> list[str]:
    """What a header's settings say that was replaced afterwards: a text, or none."""
    kinds = setting(settings, "anonymised", "replaced")
    if not isinstance(kinds, list):
        return []
    return [f"anonymised; replaced are: {', '.join(str(one) for one in kinds[:50])}"]


@dataclass
class Report:
    """The result for one file. Counts are entries, sequence numbers or events; times are ns."""

    path: str
    entries: int = 0
    size_bytes: int = 0
    ledger: bool = False
    """The file has control entries; else only its sequence can be checked."""
    end_reason: str | None = None
    """None: no END entry."""
    proven_end: bool = False
    """END and the final checkpoint are there: nothing after them is unknown."""
    checkpoints: int = 0
    claimed: int = 0
    """Checkpoints that END counts."""
    seq_lost: int = 0
    seq_gaps: int = 0
    rows: list[Row] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    ring_lost: int = 0
    ring_unexplained: int = 0
    """Records that the rings themselves count as lost, and the final ledger does not."""
    existing: int = 0
    """Snapshots of connections that were open before the start."""
    clock_pairs: int = 0
    clock_steps: int = 0
    after_checkpoint: int = 0
    """Snapshots after the last whole checkpoint (0 when the end is proven)."""
    notes: list[str] = field(default_factory=list)
    window: list[str] = field(default_factory=list)
    """Of a dump of the flight recorder: what it holds completely, and why it was written."""
    evicted: int = 0
    """Records before a dump, which no file has: they are not lost."""
    off: list[str] = field(default_factory=list)
    """Spans in which events were switched off, and so not recorded."""
    unseen_cpu_ns: int | None = None
    """CPU time of process 1 in unseen_span_ns: no program ran meanwhile. None: it is not told."""
    unseen_span_ns: int = 0
    shed: list[str] = field(default_factory=list)
    """What a budget left out: a line for each span and step."""
    unproven: dict[str, str] = field(default_factory=dict)
    """Events that the kernel may have lost without counting them, and how they were attached."""
    unchecked: list[str] = field(default_factory=list)
    """What the file does not let verify check."""
    details: set[str] = field(default_factory=set)
    """Of the notes those that a person sees on request alone."""
    problems: list[Problem] = field(default_factory=list)
    problems_total: int = 0
    suspects: set[int] = field(default_factory=set)
    """Entries that a problem names."""
    error: str | None = None
    """The file could not be read as a capture at all."""
    error_exit: int = DOES_NOT_ADD_UP
    brief: bool = False
    """One of many: a person sees no more than the verdict where nothing is wrong."""
    part: Part | None = None
    """Of a segment: its place in its capture."""
    format: str = "psc"
    words: Mapping[str, str] = field(default_factory=dict)
    """What a person knows as something else in this format: entry, location, checkpoint ..."""

    def add(self, other: Report, per_cpu: bool = True) -> None:
        """Add what another file of the same capture has. per_cpu: its rows stay apart by CPU."""
        for name in ("entries", "size_bytes", "checkpoints", "seq_lost", "seq_gaps", "existing",
                     "clock_pairs"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        rows = {(row.cpu, row.location, row.name): row for row in self.rows}
        for row in other.rows:
            cpu = row.cpu if per_cpu else None
            key = cpu, row.location, row.name
            rows.setdefault(key, Row(*key)).add(row)
        self.rows = [rows[key] for key in sorted(rows, key=lambda key: (key[0] or 0, key[1:]))]
        self.missed += other.missed
        self.unproven |= other.unproven
        if other.unseen_cpu_ns is not None:
            self.add_unseen(other.unseen_cpu_ns, other.unseen_span_ns)
        for lines, more in ((self.off, other.off), (self.shed, other.shed)):
            lines += [line for line in more if line not in lines]

    def add_unseen(self, cpu_ns: int, span_ns: int) -> None:
        """So much more CPU time of process 1, in so much more time."""
        self.unseen_cpu_ns = (self.unseen_cpu_ns or 0) + cpu_ns
        self.unseen_span_ns += span_ns

    def about_unseen(self, notes: Iterable[str] = ()) -> list[str]:
        """How long process 1 had a CPU: a line, or none where it is not known. Those of the notes
        that say what it is about come first."""
        if self.unseen_cpu_ns is None or not self.unseen_span_ns:
            return []
        whole = "capture" if self.part is None else "dump" if self.part.is_dump else "segment"
        said = dict.fromkeys(note for note in notes if note.startswith(NOT_SEEN))
        found = [*said, describe(self.unseen_cpu_ns, self.unseen_span_ns, whole)]
        if self.unseen_cpu_ns * _UNSEEN_SHARE <= self.unseen_span_ns:
            self.details |= {*found, *(note for note in self.notes if note.startswith(NOT_SEEN))}
        return found

    def settle(self, problems: Problems) -> None:
        """All problems are known. A window is complete only where nothing is wrong or missing."""
        self.problems, self.problems_total = problems.listed, problems.total
        self.suspects = problems.entries
        if problems.total or self.lost_total or not self.proven_end:
            self.window = [re.sub("^complete from ", "not complete from ", line)
                           for line in self.window]  # fmt: skip

    def word(self, word: str) -> str:
        """What a person calls it in this format."""
        return self.words.get(word, word)

    @property
    def totals(self) -> Row:
        """The sum of the rows."""
        total = Row(None, 0, "total", lost=dict.fromkeys(CAUSES, 0))
        for row in self.rows:
            total.add(row)
        return total

    @property
    def missed_total(self) -> int:
        """Events that the programs never saw."""
        return sum(one.recursion + one.kprobe for one in self.missed)

    @property
    def lost_total(self) -> int:
        """Everything known to be missing; sequence numbers where there is no ledger."""
        return max(self.totals.lost_total, self.seq_lost) + self.missed_total

    @property
    def tail_unknown(self) -> bool:
        """Nothing proves that the file's last entry was the capture's last."""
        return self.ledger and not self.proven_end

    @property
    def exit_code(self) -> int:
        """0 nothing lost, 3 losses that are all accounted for, an unknown tail, events that are
        not proven or losses that a ring alone counts, 5 otherwise."""
        if self.error is not None:
            return self.error_exit
        if self.problems_total:
            return DOES_NOT_ADD_UP
        is_unsure = self.tail_unknown or self.unproven or self.ring_unexplained
        return LOSSES if is_unsure or self.lost_total else PROVEN

    @property
    def verdict(self) -> str:
        """One phrase for a person; never says that nothing was lost unless it is proven."""
        if self.error is not None:
            return self.error
        if self.problems_total:
            return f"does not add up: {self.problems_total} problem(s)"
        lost = self.lost_total
        if not self.ledger:
            what = f"{self.seq_gaps} gap(s), {lost} missing" if lost else "it has no gap"
            none = self.word("no ledger in this file")
            return f"{none}: only the sequence can be checked; {what}"
        if self.tail_unknown:
            known = f"{lost} lost before" if lost else "what comes before adds up"
            return f"tail unknown ({known})"
        while_on = " while it was switched on (see below)" if self.off else ""
        if shed := self.totals.shed:
            while_on += f"; {shed} shed by the budget"
        if self.unproven:
            of = f"{len(self.unproven)} {self.word('location')}(s)"
            counted = f"{lost or 'no'} loss(es) counted{while_on}"
            return f"adds up: {counted}; not proven for {of} (see below)"
        if more := self.ring_unexplained:
            what = f"{lost or 'no'} loss(es) counted, {more} more by the rings themselves"
            return f"adds up: {what}{while_on} (see below)"
        what = f"{lost} lost, all accounted for" if lost else "nothing lost"
        return f"adds up: {what}{while_on}"

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        inner = {"rows", "missed", "problems", "suspects", "error_exit", "words", "brief",
                 "details"}  # fmt: skip
        plain = {name: value for name, value in vars(self).items() if name not in inner}
        plain.update(
            verdict=self.verdict,
            exit_code=self.exit_code,
            tail_unknown=self.tail_unknown,
            lost_total=self.lost_total,
            missed_total=self.missed_total,
            rows=[row.as_json() for row in self.rows],
            totals=self.totals.as_json(),
            missed=[vars(one) for one in self.missed],
            problems=[vars(one) for one in self.problems],
            part=self.part.as_json() if self.part is not None else None,
        )
        return plain
