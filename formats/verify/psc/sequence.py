# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers of a capture run on but for gaps that a LOSS entry counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.sequence import unwrap
from tcpkmon.formats.verify.psc.entries import ControlRows, Segment, is_number
from tcpkmon.formats.verify.report import U64, Mask, Problems

if TYPE_CHECKING:
    from tcpkmon.formats.psc.reader import Capture


class SequenceReader:
    """Sequence numbers as u64, from `seq` or from the 32 bits of seq_no, across segments."""

    def __init__(self, capture: Capture, problems: Problems) -> None:
        self._problems = problems
        self._wide = is_number(capture, "seq") and is_number(capture, "seq_no")
        self._previous: U64 | None = None

    def read(self, segment: Segment) -> U64:
        """Sequence numbers of a segment that is not empty, in order of the file."""
        start = segment.start
        low = segment.numbers("seq_no").astype(np.uint32)
        if self._wide:
            seq = segment.numbers("seq").astype(np.uint64)
            differ = np.flatnonzero(seq.astype(np.uint32) != low)
            self._problems.add_each(
                differ,
                start,
                lambda at: f"seq_no {low[at]} is not the low half of {seq[at]}",
                rest=True,
            )
            return seq
        before = None if self._previous is None else self._previous.view(np.int64)
        found: U64 = unwrap(low, before).view(np.uint64)
        self._previous = found[-1:]
        return found


class SequenceCheck:
    """Follows the sequence through the file; `lost` and `gaps` are what is missing so far.

    before: the last number of the capture's earlier files.
    """

    def __init__(self, problems: Problems, ledger: bool, before: int = 0) -> None:
        self._problems = problems
        self._ledger = ledger
        self._previous: int | None = before if ledger else None
        self.lost = 0
        self.gaps = 0

    @property
    def last(self) -> int:
        """The last number so far."""
        return self._previous or 0

    def feed(self, start: int, seq: U64, rows: ControlRows) -> U64:
        """Check one segment; returns, for each entry, how many numbers are missing before it."""
        if self._previous is None:
            self._previous = int(seq[0]) - 1
        before = np.concatenate((np.array([self._previous & 2**64 - 1], np.uint64), seq[:-1]))
        self._previous = int(seq[-1])
        step = (seq - before).view(np.int64)
        back = np.flatnonzero(step <= 0)
        self._problems.add_each(
            back,
            start,
            lambda at: f"sequence number {seq[at]} comes after {before[at]}: not in order",
            rest=True,
        )
        gap = np.maximum(step - 1, 0).astype(np.uint64)
        self.gaps += int(np.count_nonzero(gap))
        if self._ledger:
            self._match(start, gap, rows)
        else:
            self.lost += int(gap.sum())
        return gap

    def _match(self, start: int, gap: U64, rows: ControlRows) -> None:
        """Each gap ends at a LOSS entry of the same count, and each LOSS entry ends one."""
        losses = rows.take(rows.location == control.Loss.location)
        count = losses.pairs[:, 1]
        here = gap[losses.index - start]
        cause = losses.words[:, 4]
        right = (count == here) & (count > 0)
        add_each = self._problems.add_each
        add_each(
            np.flatnonzero(~right),
            losses.index,
            lambda at: (
                f"LOSS entry counts {count[at]}, but {here[at]} sequence numbers are missing"
            ),
            rest=True,
        )
        unknown = np.flatnonzero(cause > max(control.LossCause))
        add_each(unknown, losses.index, lambda at: f"LOSS entry has unknown cause {cause[at]}")
        late_stage = is_late_stage(losses)
        nameless = (losses.callvalue == control.ANY_CPU) & (losses.pairs[:, 0] == 0)
        odd = ~nameless & (late_stage | (losses.callvalue == control.ANY_CPU))
        add_each(
            np.flatnonzero(odd),
            losses.index,
            lambda at: f"LOSS entry of cause {cause[at]} may not name this CPU and serial",
        )
        self.lost += int(here[right].sum())
        silent = gap > 0
        silent[losses.index - start] = False
        add_each(
            np.flatnonzero(silent),
            start,
            lambda at: f"{gap[at]} sequence number(s) missing without a LOSS entry",
            rest=True,
        )


def is_late_stage(rows: ControlRows) -> Mask:
    """Which rows are LOSS entries of the causes 2 to 4, which know of no CPU."""
    cause = rows.words[:, 4]
    causes = (cause >= control.LossCause.QUEUE_FULL) & (cause <= control.LossCause.WRITE_ERROR)
    mask: Mask = causes & (rows.location == control.Loss.location)
    return mask


def is_unsure(rows: ControlRows) -> Mask:
    """Which rows are LOSS entries that cannot say of which CPU or kind the lost entries were."""
    nameless = (rows.callvalue == control.ANY_CPU) & (rows.location == control.Loss.location)
    mask: Mask = is_late_stage(rows) | nameless
    return mask
