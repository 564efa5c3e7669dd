# SPDX-License-Identifier: Apache-2.0
"""Copies the sound entries of a damaged capture, in order, and counts what is left out as lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.limits import MOST_CPUS, MOST_MISSING
from tcpkmon.formats.verify.psc.entries import Segment, is_number
from tcpkmon.formats.verify.psc.sequence import SequenceReader
from tcpkmon.formats.verify.report import I64, U64, Mask, Problems
from tcpkmon.formats.verify.segment import previous_of

if TYPE_CHECKING:
    from tcpkmon.formats.psc.reader import Capture

SEGMENT_ROWS = 1 << 16
HELD_ROWS = 64
"""Rows that wait for the next segment, so that each is judged by its neighbours on both sides."""
ROUNDS = 64

Raw = npt.NDArray[Any]


@dataclass
class Cleaned:
    """What became of the entries of a damaged capture."""

    kept: int = 0
    dropped: int = 0
    missing: int = 0
    """Sequence numbers that no LOSS entry accounted for before."""
    end: control.End | None = None
    """The END entry at the very end, if there is one."""

    @property
    def changed(self) -> bool:
        """Whether anything but the end had to be mended."""
        return bool(self.dropped or self.missing)


def increasing(seq: U64, previous: int) -> I64:
    """Indices of entries whose numbers rise, from `previous` on, without the single strays.

    Where two neighbours are out of order, the one that does not fit its other neighbour goes.
    """
    keep = np.flatnonzero(seq > np.uint64(previous)).astype(np.int64)
    for _ in range(ROUNDS):
        here = seq[keep]
        wrong = np.flatnonzero(here[1:] <= here[:-1])
        if not len(wrong):
            return keep
        before = np.where(wrong > 0, here[np.maximum(wrong - 1, 0)], np.uint64(previous))
        stray = np.where(here[wrong + 1] > before, wrong, wrong + 1)
        keep = np.delete(keep, stray)
    here = seq[keep]
    top = np.maximum.accumulate(here)
    first = np.concatenate((np.ones(1, np.bool_), here[1:] > top[:-1]))[: len(keep)]
    rising: I64 = keep[first]
    return rising


class Cleaner:
    """One pass over a capture that tcpkmon wrote; `skip` are entries to leave out in any case.

    `to` gets whole entries in the byte order of the file.
    """

    def __init__(self, capture: Capture, skip: Set[int], to: IO[bytes]) -> None:
        self._capture = capture
        self._skip = np.array(sorted(skip), np.int64)
        self._write = to.write
        self._dtype = capture.array.dtype
        self._order = ">" if capture.header.endian == Endian.BIG else "<"
        self._opaque = np.dtype(("V", self._dtype.itemsize))
        self._cpu_limit = MOST_CPUS
        self._has_cpu = is_number(capture, "cpu")
        before = previous_of(capture.settings)
        self._old_seq = self._new_seq = before.last_seq
        self._written = before.entries
        self._checkpoints = before.checkpoints
        self._last_row: Raw = np.zeros(1, self._opaque)
        self._end_row = self._last_row
        self._end_seq = 0
        self.result = Cleaned()

    def run(self) -> Cleaned:
        """Write everything up to and with END."""
        for rows, seq in self._candidates():
            self._emit(rows, seq)
        self._finish_gap()
        end = self.result.end
        reason = (
            end.reason if end is not None and not self.result.changed else (control.EndReason.ERROR)
        )
        lost = self._new_seq - self._written
        entry = control.End(reason, self._written, lost, self._checkpoints)
        self._append(entry, self._last_row if end is None else self._end_row)
        return self.result

    def _finish_gap(self) -> None:
        """What is missing just before the END entry that was taken out."""
        gap = self._end_seq - self._old_seq - 1
        if self.result.end is None or not 0 < gap <= MOST_MISSING:
            return
        self.result.missing += gap
        self._new_seq += gap
        loss = control.Loss(control.ANY_CPU, 0, gap, control.LossCause.DAMAGED)
        self._append(loss, self._last_row)

    def _append(self, entry: control.Control, like: Raw) -> None:
        rows = self._control_rows([entry], like)
        self._new_seq += 1
        self._written += 1
        self._number(rows, np.array([self._new_seq], np.uint64))
        self._write(rows.tobytes())

    def _candidates(self) -> Iterator[tuple[Raw, U64]]:
        """Rows that make sense alone and whose sequence numbers rise, in pieces."""
        reader = SequenceReader(self._capture, Problems(0, 1))
        rows: Raw = np.zeros(0, self._opaque)
        seq: U64 = np.zeros(0, np.uint64)
        total = len(self._capture)
        for piece in self._capture.chunks(SEGMENT_ROWS):
            segment = Segment(self._capture, piece.start, piece.stop)
            numbers = reader.read(segment)
            good = self._sensible(segment, numbers)
            self._note_end(segment, numbers, good)
            self.result.dropped += len(segment) - int(np.count_nonzero(good))
            rows = np.concatenate((rows, segment.rows.view(self._opaque)[good]))
            seq = np.concatenate((seq, numbers[good]))
            keep = increasing(seq, self._old_seq)
            # What is held is judged again with what follows it.
            upto = len(seq) if piece.stop == total else max(len(seq) - HELD_ROWS, 0)
            now = keep[keep < upto]
            self.result.dropped += upto - len(now)
            if len(now):
                yield rows[now], seq[now]
            rows, seq = rows[upto:], seq[upto:]

    def _sensible(self, segment: Segment, seq: U64) -> Mask:
        location = segment.wide("location")
        ports = segment.numbers("lport").astype(np.int64) | segment.numbers("rport")
        is_control = control.is_control(location)
        known = (location > 0) & (location <= max(facts.NAMES))
        good: Mask = known & ~(is_control & (ports != 0)) & (seq < np.uint64(2**63))
        good &= seq.astype(np.uint32) == segment.numbers("seq_no")
        if not segment.start:
            starts = segment.control_rows(location == control.Start.location)
            if len(starts) and starts.index[0] == 0:
                start = starts.decode(0)
                assert isinstance(start, control.Start)
                self._cpu_limit = min(start.cpus, 0xFFFF) or MOST_CPUS
            good &= (location != control.Start.location) | (np.arange(len(location)) == 0)
        else:
            good &= location != control.Start.location
        if self._has_cpu:
            cpu = segment.numbers("cpu").astype(np.int64)
            good &= is_control | ((cpu >= 0) & (cpu < self._cpu_limit))
        low, high = np.searchsorted(self._skip, (segment.start, segment.stop))
        good[self._skip[low:high] - segment.start] = False
        return good

    def _note_end(self, segment: Segment, seq: U64, good: Mask) -> None:
        """END entries are taken out (a new one is written); the one at the very end is kept in
        mind."""
        ends = segment.control_rows(segment.wide("location") == control.End.location)
        for at, index in enumerate(ends.index.tolist()):
            local = index - segment.start
            if not good[local]:
                continue
            good[local] = False
            if index == len(self._capture) - 1:
                found = ends.decode(at)
                assert isinstance(found, control.End)
                self.result.end = found
                self._end_seq = int(seq[local])
                self._end_row = segment.rows.view(self._opaque)[local : local + 1]
                self.result.dropped -= 1

    def _emit(self, rows: Raw, seq: U64) -> None:
        """Number rows anew, with a LOSS entry for every gap that none accounts for."""
        rows, gap, count = self._with_right_losses(rows, seq)
        if not len(rows):
            return
        extra = gap - count
        inserted = extra > 0
        own = count + np.uint64(1)
        step = own + np.where(inserted, extra + np.uint64(1), np.uint64(0))
        new = np.cumsum(step, dtype=np.uint64) + np.uint64(self._new_seq)
        place = np.arange(len(rows)) + np.cumsum(inserted)
        total = int(place[-1]) + 1
        out = np.empty(total, self._opaque)
        numbers = np.empty(total, np.uint64)
        out[place], numbers[place] = rows, new
        at = place[inserted] - 1
        losses = [
            control.Loss(control.ANY_CPU, 0, int(n), control.LossCause.DAMAGED)
            for n in extra[inserted]
        ]
        out[at] = self._control_rows(losses, rows[inserted]).view(self._opaque)
        numbers[at] = (new - own)[inserted]
        typed = out.view(self._dtype)
        self._number(typed, numbers)
        self._count_checkpoints(typed, numbers)
        self._write(out.tobytes())
        self.result.kept += len(rows)
        self.result.missing += int(extra.sum())
        self._written += total
        self._new_seq = int(new[-1])
        self._last_row = rows[-1:].copy()

    def _with_right_losses(self, rows: Raw, seq: U64) -> tuple[Raw, U64, U64]:
        """Rows without LOSS entries that count more than is missing; gaps; what LOSSes count."""
        while True:
            gap = np.diff(seq, prepend=np.uint64(self._old_seq)) - np.uint64(1)
            typed = rows.view(self._dtype)
            is_loss = typed["location"] == control.Loss.location
            is_loss &= (typed["lport"] | typed["rport"]) == 0
            words = control.words_view(typed, self._order).astype(np.uint64)
            count = np.where(is_loss, words[:, 2] | (words[:, 3] << np.uint64(32)), np.uint64(0))
            wrong = is_loss & ((count == 0) | (count > gap))
            wrong |= is_loss & (words[:, 4] > max(control.LossCause))
            wrong |= ~is_loss & (gap > MOST_MISSING)
            if not np.any(wrong):
                break
            self.result.dropped += int(np.count_nonzero(wrong))
            rows, seq = rows[~wrong], seq[~wrong]
        if len(seq):
            self._old_seq = int(seq[-1])
        return rows, gap, count

    def _control_rows(self, entries: Sequence[control.Control], like: Raw) -> Raw:
        """Control entries with the times of the rows `like`, not numbered yet."""
        rows = control.encode_many(entries, self._dtype)
        model = like.view(self._dtype)
        for name in ("tv_sec", "tv_usec", "time_ns"):
            if name in (self._dtype.names or ()) and self._dtype[name].kind == "u":
                rows[name] = model[name]
        return rows

    def _number(self, rows: Raw, seq: U64) -> None:
        rows["seq_no"] = seq.astype(np.uint32)
        if is_number(self._capture, "seq"):
            rows["seq"] = seq

    def _count_checkpoints(self, rows: Raw, seq: U64) -> None:
        """What checkpoints say of their place is made right; the ledger stays as it was."""
        mask = (rows["location"] == control.Checkpoint.location) & (rows["lport"] == 0)
        at = np.flatnonzero(mask & (rows["rport"] == 0))
        if not len(at):
            return
        before = (at + self._written).astype(np.uint64)
        lost = seq[at] - np.uint64(1) - before
        words = control.words_view(rows, self._order)
        for word, value in ((0, before), (2, lost)):
            words[at, word] = value & np.uint64(0xFFFFFFFF)
            words[at, word + 1] = value >> np.uint64(32)
        self._checkpoints = int(rows["callvalue"][at[-1]]) + 1
