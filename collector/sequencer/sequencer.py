# SPDX-License-Identifier: Apache-2.0
"""The sequencer: between the rings and the spool, makes one numbered stream of all CPUs' records.

It sorts each CPU's records by serial and merges the CPUs by time. Each missing serial takes a
sequence number in its place, and a LOSS entry follows each such gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.buffer_pool import PIECE_BYTES, Pool, even
from tcpkmon.collector.sequencer.cpu_queue import Queues
from tcpkmon.collector.sequencer.merge import Share, flows, pick, put, put_rows
from tcpkmon.collector.sequencer.ordered_batch import (
    I64,
    LOCATION_WORD,
    MonoToEpoch,
    Numbering,
    Ordered,
    Origin,
    fill_losses,
    head_words,
    stamp,
    stamp_control,
)
from tcpkmon.collector.sequencer.part import Part
from tcpkmon.formats.base.control import Control, Loss, LossCause, encode_many

SLACK_NS = 100_000
"""How much the clocks of two CPUs may differ. A record is reserved in its ring before it gets its
serial and its stamp, so a drain finds each record that was stamped before it."""
_ROWS_PER_CPU = 128
"""The least records of a piece for each CPU of a release: numpy is slow for few."""


class Sequencer(Queues):
    """Orders and numbers the records of all CPUs. One thread uses it.

    dtype: of an entry (itemsize a multiple of 8). mono_to_epoch: from CLOCK_MONOTONIC to the time
    of day for tv_sec and tv_usec. limit_bytes: see Queues.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        mono_to_epoch: MonoToEpoch,
        first_seq: int = 1,
        limit_bytes: int = 256 << 20,
    ) -> None:
        super().__init__(dtype, limit_bytes)
        self._dtype = dtype
        self._mono_to_epoch = mono_to_epoch
        self._next_seq = first_seq
        self._numbering, self._ahead = Numbering(), 0
        self._bytes = 0
        self._pool = Pool()

    def warm(self) -> None:
        """Make memory ready before the first records come."""
        self._pool.warm()

    def pieces(self, watermark_ns: int) -> Iterator[Ordered]:
        """All records up to this time, ordered and numbered, with a LOSS entry after each gap.

        In pieces of about PIECE_BYTES: use all of them. Missing serials before these records are
        lost.
        """
        return self._merge(self.take(watermark_ns), PIECE_BYTES)

    def missing(self, serials: Mapping[int, int], mono_ns: int | None = None) -> Ordered:
        """LOSS entries for the serials after each CPU's last record, when all is released.

        serials: by CPU, how many the kernel gave out. mono_ns: the time of the entries; without
        it, that of the last record.
        """
        return self._missing(self.tails(serials), mono_ns, LossCause.KERNEL)

    def _missing(
        self, tails: Sequence[tuple[int, int, int]], mono_ns: int | None, cause: LossCause
    ) -> Ordered:
        losses = [Loss(cpu, first, count, cause) for cpu, first, count in tails]
        seqs = self._first() - 1 + np.cumsum([loss.count + 1 for loss in losses], dtype=np.int64)
        return self._control(losses, seqs, max(mono_ns or 0, self.last_ns))

    def missing_killed(self, counts: Mapping[int, int], mono_ns: int) -> Ordered:
        """LOSS entries for records that a process had read which was killed before it wrote them.

        counts: by CPU. Call it after resume(), before anything is released.
        """
        return self._missing(self.kill(counts), mono_ns, LossCause.KILLED)

    def _first(self) -> int:
        """The number of the next entry, with the latest feedback of the writer."""
        ahead = self._numbering.ahead
        self._next_seq += ahead - self._ahead
        self._ahead = ahead
        return self._next_seq

    def _rows(self, count: int) -> NDArray[Any]:
        """Memory for so many entries, aligned as in the file: a direct write does not copy it."""
        return self._pool.rows(count, self._opaque, self._bytes + self._numbering.ahead_bytes)

    def _ordered(
        self, rows: NDArray[Any], seqs: I64, origins: Sequence[Origin], first_ns: int
    ) -> Ordered:
        """A batch of entries, which uses all numbers up to the last in `seqs`."""
        first, self._next_seq = self._next_seq, int(seqs[-1]) + 1 if len(seqs) else self._next_seq
        start, self._bytes = self._bytes, self._bytes + rows.nbytes
        span = self._next_seq - first
        return Ordered(
            rows, seqs, origins, first, span, first_ns, self._numbering, self._ahead, start
        )

    def _control(self, entries: Iterable[Control], seqs: I64, mono_ns: int) -> Ordered:
        rows = encode_many(entries, self._dtype)
        stamp_control(rows, seqs, mono_ns, self._mono_to_epoch)
        return self._ordered(rows, seqs, (), mono_ns)

    def _merge(self, parts: list[Part], piece_bytes: int) -> Iterator[Ordered]:
        """Merge several CPUs' parts into one stream, in pieces."""
        total = sum(map(len, parts))
        if not total:
            return
        merged = flows(parts)
        most = max(1, piece_bytes // self._dtype.itemsize, _ROWS_PER_CPU * len(parts))
        step = even(total, most)
        for start in range(0, total, step):
            stop = min(start + step, total)
            shares = [share for flow in merged if len((share := flow.next(start, stop)).where)]
            if all(share.gaps is None for share in shares):
                yield self._steady(shares, stop - start)
            else:
                yield self._with_losses(shares, stop - start)

    def _steady(self, shares: list[Share], count: int) -> Ordered:
        """A piece without gaps."""
        whole = self._rows(count)
        mono_ns = np.empty(count, np.int64)
        for share in shares:
            put(mono_ns, share.where, share.times_ns)
            put_rows(whole, share.where, share.rows)
        first = self._first()
        seqs = np.arange(first, first + count, dtype=np.int64)
        entries: NDArray[Any] = whole.view(self._dtype)
        stamp(entries, seqs, mono_ns, self._mono_to_epoch)
        places = [(share.cpu, share.where) for share in shares]
        return self._ordered(entries, seqs, _origins(entries, places), int(mono_ns[0]))

    def _with_losses(self, shares: list[Share], count: int) -> Ordered:
        """A piece with LOSS entries after its gaps, such as

            serials of a CPU     7   8           11  12       9 and 10 are missing
            gaps                 0   0            2   0       missing before each record
            numbers             41  42           46  47       43 and 44 were lost, 45 is the LOSS
            place                0   1            3   4       of each record in the piece
            losses                       2                    place of each LOSS entry
            seqs                41  42  45       46  47       of all entries of the piece
        """
        gaps, serials, times_ns = np.zeros((3, count), np.int64)
        cpus_of = np.empty(count, np.uint16)
        for share in shares:
            times_ns[share.where], serials[share.where] = share.times_ns, share.serials
            cpus_of[share.where] = share.cpu
            if share.gaps is not None:
                gaps[share.where] = share.gaps
        after_gap = gaps > 0
        # Each lost record takes one number, the LOSS entry one, the record one.
        numbers = self._first() - 1 + np.cumsum(gaps + after_gap + 1)
        place = np.arange(count) + np.cumsum(after_gap)
        losses = place[after_gap] - 1

        total = count + len(losses)
        whole = self._rows(total)
        for share in shares:
            put_rows(whole, place[share.where], share.rows)
        entries: NDArray[Any] = whole.view(self._dtype)
        seqs, mono_ns = np.empty((2, total), np.int64)
        seqs[place], mono_ns[place] = numbers, times_ns
        missing = gaps[after_gap]
        fill_losses(
            head_words(entries), losses, cpus_of[after_gap], serials[after_gap] - missing, missing
        )
        seqs[losses] = numbers[after_gap] - 1
        mono_ns[losses] = times_ns[after_gap]
        if "time_ns" in (self._dtype.names or ()):
            entries["time_ns"][losses] = mono_ns[losses]
        stamp(entries, seqs, mono_ns, self._mono_to_epoch)
        places = [(share.cpu, place[share.where]) for share in shares]
        return self._ordered(entries, seqs, _origins(entries, places), int(times_ns[0]))


def _origins(entries: NDArray[Any], places: Sequence[tuple[int, I64]]) -> list[Origin]:
    # Copy now, while the entries' heads are in the core's cache.
    locations = head_words(entries)[:, LOCATION_WORD].copy()
    return [Origin(cpu, where, pick(locations, where)) for cpu, where in places]
