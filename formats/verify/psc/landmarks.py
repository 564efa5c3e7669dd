# SPDX-License-Identifier: Apache-2.0
"""Follows checkpoints and END through a file, and counts the snapshots between them for verify."""

from __future__ import annotations

import numpy as np

from formats.base import control
from formats.base.limits import MOST_CPUS
from formats.verify.balance import check_counts, check_rise, check_sums, sum_by_point
from formats.verify.ledger import POINTS, Tally
from formats.verify.psc.checkpoints import GROUP_KINDS, Checkpoint, CheckpointReader
from formats.verify.psc.entries import ControlRows, Segment
from formats.verify.psc.losses import LossSums
from formats.verify.report import I64, U64, Mask, Problems
from formats.verify.segment import Previous

EARLY = (control.EndReason.ROTATED, control.EndReason.DUMPED)
"""The file ends at a point of the stream, and the capture goes on."""


class Landmarks:
    """What is between the snapshots: fed with segments in order, then finished.

    `tally` counts the snapshots so far; `last` is the last whole checkpoint;
    `checkpoint_at` the entry of the last CHECKPOINT, `number` the number due next; `end` the entry
    number of END and its content. previous: of a segment, where the one before it ended.
    """

    def __init__(
        self, problems: Problems, has_cpu: bool, sums: LossSums, previous: Previous | None = None
    ) -> None:
        self.previous = previous or Previous()
        self.existing_before = 0
        """How many connections that were open already the earlier files hold."""
        self._is_next = previous is not None
        self._problems = problems
        self._has_cpu = has_cpu
        self._sums = sums
        self._groups = CheckpointReader(problems)
        self.tally = Tally()
        self.last: Checkpoint | None = None
        self.base: Checkpoint | None = None
        """What the capture's earlier files held: the first checkpoint of a later segment."""
        self.number = self.previous.checkpoints
        self.cpu_limit = MOST_CPUS
        """CPUs that there can be, as START says."""
        self.checkpoint_at = -1
        self._checkpoint_ns = self._end_ns = 0
        self.end: tuple[int, control.End] | None = None

    @property
    def is_rotated(self) -> bool:
        """Whether END says that another file follows, or that the flight recorder goes on."""
        return self.end is not None and self.end[1].reason in EARLY

    @property
    def is_closed(self) -> bool:
        """Whether END directly follows the last whole ledger, which is final; or, where the capture
        goes on, was made for this end: it has its time, and is not the first one."""
        if self.end is None or self.last is None or self.last is self.base:
            return False
        is_its_own = self.last.final or (
            self.is_rotated and self._checkpoint_ns == self._end_ns != -1
        )
        return is_its_own and self.last.index == self.checkpoint_at and (
            self.end[0] == self.last.stop
        )

    @property
    def broken(self) -> int:
        """Checkpoints that a loss took part of."""
        return self._groups.broken

    def finish(self) -> None:
        """The whole file was fed."""
        self._settle(self._groups.close(at_end=self.end is None))

    def feed(
        self,
        segment: Segment,
        rows: ControlRows,
        seq: U64,
        index: I64,
        location: I64,
        cpu: I64,
        unsure_at: I64,
    ) -> None:
        """Checkpoints with their groups, and END, in order; counts the snapshots between them."""
        in_group = np.isin(rows.location, GROUP_KINDS)
        claimed = np.zeros(len(rows), np.bool_)
        keys = cpu * POINTS + location
        done = 0
        self._gather(segment, rows, in_group, claimed, unsure_at)
        marks = (rows.location == control.Checkpoint.location) | (
            rows.location == control.End.location
        )
        for at in np.flatnonzero(marks):
            entry = int(rows.index[at])
            upto = int(np.searchsorted(index, entry))
            self.tally.add(keys[done:upto])
            done = upto
            found = rows.decode(int(at))
            before = self.previous.entries + entry
            missing = int(seq[entry - segment.start]) - 1 - before
            if isinstance(found, control.Checkpoint):
                self._checkpoint_ns = segment.stamp_ns(entry)
                self._checkpoint(entry, found, missing)
                self._gather(segment, rows, in_group, claimed, unsure_at)
            elif isinstance(found, control.End):
                self._end_ns = segment.stamp_ns(entry)
                self._ends(entry, found, missing)
        self.tally.add(keys[done:])
        for at in np.flatnonzero(in_group & ~claimed)[:8]:
            self._stray(int(rows.index[at]))

    def _stray(self, entry: int) -> None:
        """An entry of a ledger that no checkpoint announces."""
        # The checkpoint itself, or a neighbour in its group, may have been lost.
        if not self._sums.unsure:
            self._problems.add(entry, "a ledger entry that belongs to no checkpoint")

    def _gather(
        self,
        segment: Segment,
        rows: ControlRows,
        in_group: Mask,
        claimed: Mask,
        unsure_at: I64,
    ) -> None:
        """Take from this segment what belongs to the open checkpoint; settle it when whole."""
        until = self._groups.until
        if until is None:
            return
        low = int(np.searchsorted(rows.index, self.checkpoint_at + 1))
        high = int(np.searchsorted(rows.index, until))
        hidden = bool(np.any((unsure_at > self.checkpoint_at) & (unsure_at < until)))
        chosen = low + np.flatnonzero(in_group[low:high])
        claimed[chosen] = True
        self._groups.gather(rows.take(chosen), hidden)
        if until <= segment.stop:
            self._settle(self._groups.close())

    def _checkpoint(self, entry: int, found: control.Checkpoint, missing: int) -> None:
        self._settle(self._groups.close())
        number = found.number
        if number != self.number and not (self._sums.unsure and number > self.number):
            self._problems.add(entry, f"checkpoint {number} where {self.number} is due")
        self.number = number + 1
        self._totals(entry, f"checkpoint {number}", found.entries, found.lost, missing)
        if found.final > 1:
            self._problems.add(entry, f"checkpoint {number} has final {found.final}")
        self.checkpoint_at = entry
        self._groups.open(entry, found, self.tally.counts.copy())

    def _totals(self, entry: int, what: str, entries: int, lost: int, missing: int) -> None:
        before = self.previous.entries + entry
        if entries != before:
            self._problems.add(entry, f"{what} counts {entries} entries before it, not {before}")
        if lost != missing:
            self._problems.add(entry, f"{what} counts {lost} lost, its place says {missing}")

    def _ends(self, entry: int, found: control.End, missing: int) -> None:
        if self.end is not None:
            self._problems.add(entry, "a second END entry")
        self.end = entry, found
        self._totals(entry, "END", found.entries, found.lost, missing)
        if found.reason not in tuple(control.EndReason):
            self._problems.add(entry, f"END has unknown reason {found.reason}")
        if found.checkpoints != self.number and not self._sums.unsure:
            self._problems.add(
                entry, f"END counts {found.checkpoints} checkpoints, not {self.number}"
            )

    def _settle(self, shot: Checkpoint | None) -> None:
        """A checkpoint's group is whole: check it."""
        if shot is None:
            return
        if self.last is not None:
            if self.last.final:
                self._problems.add(shot.index, "a checkpoint after the final one")
            check_rise(self._problems, self.last, shot)
        shot.check_rows(self._problems, self.cpu_limit)
        check_sums(self._problems, shot)
        if self._is_next and self.base is None:
            self.base = self.last = shot
            if shot.index != 1:
                self._problems.add(shot.index, "a segment begins with the ledger of those before")
            keys, told = shot.points.keys, shot.points["in_file"].view(np.int64)
            self.tally.begin(*((keys, told) if self._has_cpu else sum_by_point(keys, told)))
            self.existing_before = self.tally.of_point(control.EXISTING)
            shot.counts = self.tally.counts.copy()
            return
        check_counts(self._problems, shot, self._has_cpu, self._sums.repaired)
        self.last = shot
