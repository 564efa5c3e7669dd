# SPDX-License-Identifier: Apache-2.0
"""Follows checkpoints and END through a file, with the snapshots between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.verify.psc.checkpoints import GROUP_KINDS, Checkpoint, CheckpointReader, Name
from tcpkmon.formats.verify.psc.entries import ControlRows, Segment
from tcpkmon.formats.verify.psc.losses import LossSums
from tcpkmon.formats.verify.report import I64, U64, Mask, Problems
from tcpkmon.formats.verify.segment import Previous
from tcpkmon.formats.verify.tape import Item, Opening, Records


class Landmarks:
    """What is between the snapshots: fed with segments in order, then finished.

    checkpoint_at: the entry of the last CHECKPOINT; number: the number due next; end: the entry
    number of END and its content, end_ns its time. previous: of a segment, where the one before it
    ended. name: of a location.
    """

    def __init__(
        self, problems: Problems, sums: LossSums, previous: Previous | None, name: Name
    ) -> None:
        self._before = previous or Previous()
        self._is_first = previous is not None  # whose checkpoint is the base
        self._base_at = 1
        self._problems = problems
        self._sums = sums
        self._groups = CheckpointReader(problems, name)
        self.number = self._before.checkpoints
        self.cpu_limit = MOST_CPUS
        """CPUs that there can be, as START says."""
        self.checkpoint_at = -1
        self._checkpoint_ns: int | None = None
        self.end_ns: int | None = None
        self.end: tuple[int, control.End] | None = None

    @property
    def broken(self) -> int:
        """Checkpoints that a loss took part of."""
        return self._groups.broken

    def finish(self) -> Iterator[Item]:
        """The whole file was fed."""
        return self._settle(self._groups.close(at_end=self.end is None))

    def feed(
        self, segment: Segment, rows: ControlRows, seq: U64, index: I64, keys: I64, unsure_at: I64
    ) -> Iterator[Item]:
        """Checkpoints with their groups, in order, and the snapshots between them.

        index, keys: entry numbers of the snapshots, and cpu * POINTS + location of each.
        """
        if not segment.start and (rows.location[rows.index == 1] == Unseen.location).any():
            self._base_at = 2
        in_group = np.isin(rows.location, GROUP_KINDS)
        claimed = np.zeros(len(rows), np.bool_)
        done = 0
        yield from self._gather(segment, rows, in_group, claimed, unsure_at)
        marks = (rows.location == control.Checkpoint.location) | (
            rows.location == control.End.location
        )
        for at in np.flatnonzero(marks):
            entry = int(rows.index[at])
            upto = int(np.searchsorted(index, entry))
            yield Records(keys[done:upto])
            done = upto
            found = rows.decode(int(at))
            before = self._before.entries + entry
            missing = int(seq[entry - segment.start]) - 1 - before
            if isinstance(found, control.Checkpoint):
                yield from self._settle(self._groups.close())
                yield Opening()
                self._checkpoint_ns = segment.stamp_ns(entry)
                self._checkpoint(entry, found, missing)
                yield from self._gather(segment, rows, in_group, claimed, unsure_at)
            elif isinstance(found, control.End):
                self.end_ns = segment.stamp_ns(entry)
                self._ends(entry, found, missing)
        yield Records(keys[done:])
        for at in np.flatnonzero(in_group & ~claimed)[:8]:
            self._stray(int(rows.index[at]))

    def _stray(self, entry: int) -> None:
        """An entry of a ledger that no checkpoint announces."""
        # The checkpoint itself, or a neighbour in its group, may have been lost.
        if not self._sums.unsure:
            self._problems.add(entry, "a ledger entry that belongs to no checkpoint")

    def _gather(
        self, segment: Segment, rows: ControlRows, in_group: Mask, claimed: Mask, unsure_at: I64
    ) -> Iterator[Item]:
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
            yield from self._settle(self._groups.close())

    def _checkpoint(self, entry: int, found: control.Checkpoint, missing: int) -> None:
        number = found.number
        if number != self.number and not (self._sums.unsure and number > self.number):
            self._problems.add(entry, f"checkpoint {number} where {self.number} is due")
        self.number = number + 1
        self._totals(entry, f"checkpoint {number}", found.entries, found.lost, missing)
        if found.final > 1:
            self._problems.add(entry, f"checkpoint {number} has final {found.final}")
        self.checkpoint_at = entry
        self._groups.open(entry, found)

    def _totals(self, entry: int, what: str, entries: int, lost: int, missing: int) -> None:
        before = self._before.entries + entry
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

    def _settle(self, shot: Checkpoint | None) -> Iterator[Item]:
        """A checkpoint's group is whole."""
        if shot is None:
            return
        shot.check_rows(self._problems, self.cpu_limit)
        shot.is_base = self._is_first and shot.index == self._base_at
        self._is_first = False
        shot.stamp_ns = self._checkpoint_ns
        shot.repaired = self._sums.repaired
        yield shot
