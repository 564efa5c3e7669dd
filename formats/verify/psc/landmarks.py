# SPDX-License-Identifier: Apache-2.0
"""Follows checkpoints and END through a file, and counts the snapshots between them for verify."""

from __future__ import annotations

import numpy as np

from formats.base import control
from formats.verify import balance, ledger
from formats.verify.entries import I64, U64, ControlRows, Mask, Segment
from formats.verify.report import Problems

_GROUP_KINDS = np.array(ledger.GROUP_KINDS)


class Landmarks:
    """What stands between the snapshots: fed with segments in order, then finished.

    `counts` are the snapshots so far, by cpu * 256 + location; `last` the last whole checkpoint;
    `checkpoint_at` the entry of the last CHECKPOINT, `number` the number due next; `end` the entry
    number of END and its content.
    """

    def __init__(self, problems: Problems, has_cpu: bool, sums: balance.LossSums) -> None:
        self._problems = problems
        self._has_cpu = has_cpu
        self._sums = sums
        self._groups = ledger.CheckpointReader(problems)
        self.counts = np.zeros(ledger.LOCATIONS, np.int64)
        self.last: ledger.Snapshot | None = None
        self.number = 0
        self.cpu_limit = ledger.MOST_CPUS
        """CPUs that there can be, once START told."""
        self.checkpoint_at = -1
        self.end: tuple[int, control.End] | None = None

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
        in_group = np.isin(rows.location, _GROUP_KINDS)
        claimed = np.zeros(len(rows), np.bool_)
        keys = cpu * ledger.LOCATIONS + location
        size = (int(cpu.max(initial=0)) + 1) * ledger.LOCATIONS
        if size > len(self.counts):
            self.counts = np.concatenate((self.counts, np.zeros(size - len(self.counts), np.int64)))
        done = 0
        self._gather(segment, rows, in_group, claimed, unsure_at)
        marks = (rows.location == control.Checkpoint.location) | (
            rows.location == control.End.location
        )
        for at in np.flatnonzero(marks):
            entry = int(rows.index[at])
            upto = int(np.searchsorted(index, entry))
            if upto > done:
                self.counts += np.bincount(keys[done:upto], minlength=len(self.counts))
                done = upto
            found = rows.decode(int(at))
            missing = int(seq[entry - segment.start]) - 1 - entry
            if isinstance(found, control.Checkpoint):
                self._checkpoint(entry, found, missing)
                self._gather(segment, rows, in_group, claimed, unsure_at)
            elif isinstance(found, control.End):
                self._ends(entry, found, missing)
        if len(keys) > done:
            self.counts += np.bincount(keys[done:], minlength=len(self.counts))
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
        self._groups.open(entry, found, self.counts.copy())

    def _totals(self, entry: int, what: str, entries: int, lost: int, missing: int) -> None:
        if entries != entry:
            self._problems.add(entry, f"{what} counts {entries} entries before it, not {entry}")
        if lost != missing:
            self._problems.add(entry, f"{what} counts {lost} lost, its place says {missing}")

    def _ends(self, entry: int, found: control.End, missing: int) -> None:
        if self.end is not None:
            self._problems.add(entry, "a second END entry")
        self.end = entry, found
        self._totals(entry, "END", found.entries, found.lost, missing)
        if found.reason > max(control.EndReason):
            self._problems.add(entry, f"END has unknown reason {found.reason}")
        if found.checkpoints != self.number and not self._sums.unsure:
            self._problems.add(
                entry, f"END counts {found.checkpoints} checkpoints, not {self.number}"
            )

    def _settle(self, shot: ledger.Snapshot | None) -> None:
        """A checkpoint's group is whole: check it."""
        if shot is None:
            return
        if self.last is not None:
            if self.last.final:
                self._problems.add(shot.index, "a checkpoint after the final one")
            ledger.check_monotone(self._problems, self.last, shot)
        ledger.check_cpus(self._problems, shot, self.cpu_limit)
        ledger.check_identities(self._problems, shot)
        balance.check_counts(self._problems, shot, self._has_cpu, self._sums.repaired)
        self.last = shot
