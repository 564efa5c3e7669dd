# SPDX-License-Identifier: Apache-2.0
"""A capture file as a tape: what its decoder yields, in the order of the file.

    Records | Told Told ... | Opening ... Ledger | Records | ... | End

formats/verify/run.py proves a tape, whatever its format. What only one format has (sequence
numbers, checksums, dumps), its decoder checks itself, and adds to the same problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tcpkmon.formats.base.control import EXISTING, Control, EndReason
from tcpkmon.formats.verify.ledger import Ledger
from tcpkmon.formats.verify.report import DAMAGED, I64, Problems, Report
from tcpkmon.formats.verify.segment import Part, Previous, find_part

EARLY = ("rotated", "dumped")
"""Reasons for an end at which the capture goes on."""
FAILED = "error"


@dataclass(frozen=True)
class Records:
    """Records of events: cpu * POINTS + point of each; a file without CPUs has cpu 0."""

    keys: I64


class Opening:
    """A ledger begins here: it counts the records before. Without one, it does at its end."""


@dataclass(frozen=True)
class Told:
    """Something that the collector tells, and which entry of the file tells it."""

    entry: int
    what: Control


@dataclass(frozen=True)
class End:
    """The end of the capture, or of its segment; the last item. reason: as people read it.

    is_last: nothing follows it in the file. stamp_ns: to compare with that of its ledger, None:
    unknown. mono_ns: CLOCK_MONOTONIC up to which all records are in the file, None: unknown.
    """

    entry: int
    reason: str
    is_last: bool
    stamp_ns: int | None
    mono_ns: int | None

    @property
    def is_early(self) -> bool:
        """Whether the capture goes on."""
        return self.reason in EARLY


Item = Records | Opening | Told | Ledger | End


def reason_of(number: int) -> str:
    """Why a capture ended, as people read it; the number where nobody knows it."""
    known = number in tuple(EndReason)
    return EndReason(number).name.lower().replace("_", " ") if known else str(number)


@dataclass
class Found:
    """What a run found: the last ledger; the base, the first one of a later segment, which counts
    what earlier ones held; the end. None where there is none."""

    last: Ledger | None = None
    base: Ledger | None = None
    end: End | None = None

    @property
    def is_early(self) -> bool:
        """Whether the file ends at a point of its capture, which goes on."""
        return self.end is not None and self.end.is_early


class Decoder(ABC):
    """Reads a file as a tape. part: the segment that it is, if it is one; before: what was in the
    segments before it, previous: the same, None where it is the first."""

    end = "END"
    """What the end is called in such a file."""
    has_cpu = True
    """The file tells of which CPU a record is."""
    has_all = True
    """The file has the records of all CPUs."""
    existing: int | None = EXISTING
    """The point of connections that were open before the start."""
    damaged = DAMAGED
    """The cause of what a CPU counts as damaged."""
    ahead_ns = 0
    """The time of day less CLOCK_MONOTONIC."""

    def __init__(self, report: Report, problems: Problems, settings: object) -> None:
        self.report = report
        self.problems = problems
        self.settings = settings
        try:
            report.part = find_part(settings)
        except ValueError as error:
            problems.add_header(str(error))
        self.previous = report.part.previous if report.part is not None else None
        self.before = self.previous or Previous()

    @abstractmethod
    def tape(self) -> Iterator[Item]:
        """The items of the file."""

    @abstractmethod
    def name(self, point: int) -> str:
        """What a point is called."""

    @property
    def serials(self) -> Mapping[int, int]:
        """By CPU of the ledger's keys, its last serial in the segments before."""
        return self.before.serials

    @property
    def lost(self) -> Mapping[int, int]:
        """By CPU of the ledger's keys, how many of these serials were lost."""
        return self.before.lost

    @property
    def needs_no_ledger(self) -> bool:
        """Whether the end may be without a final ledger: nothing was recorded, or it was lost."""
        return False

    @abstractmethod
    def conclude(self, found: Found) -> None:
        """The tape was read to its end: add what only this format tells, and checks."""

    @abstractmethod
    def describe(self, part: Part, found: Found) -> None:
        """Say where this segment of a capture ends, but for its ledgers."""
