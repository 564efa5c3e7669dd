# SPDX-License-Identifier: Apache-2.0
"""The sequencer: between the rings and the spool, makes one numbered stream of all CPUs' records.

Records of a CPU are put in the order of their serials, CPUs are merged by time, and each missing
serial takes a sequence number where it happened; a LOSS entry stands after each such gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.ordered import (
    I64,
    NO_CPU,
    MonoToEpoch,
    Ordered,
    fill_losses,
    joined,
    stamp,
    stamp_control,
)
from collector.queues import FOREVER_NS, NO_NUMBERS, Part, Queues
from formats.control import Control, Loss, encode_many

SLACK_NS = 50_000_000
"""How long a record may be under way from its stamp to its ring. Usually microseconds; but fentry
programs can be preempted between the two, and a virtual CPU can be taken away."""


class Sequencer(Queues):
    """Orders and numbers the records of all CPUs. One thread uses it.

    `dtype` is that of an entry (itemsize a multiple of 8); mono_to_epoch turns CLOCK_MONOTONIC
    into time of day for tv_sec and tv_usec. No more than about `limit_bytes` wait: beyond, the
    oldest half goes out before its watermark.
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

    def release(self, watermark_ns: int) -> Ordered:
        """All records up to this time, ordered and numbered, with a LOSS entry after each gap.

        A missing serial whose successor is released here is lost from now on.
        """
        return self._merge(self.take(watermark_ns))

    def finish(self, serials: Mapping[int, int], mono_ns: int | None = None) -> Ordered:
        """The rest, at the end: also what is missing after each CPU's last record.

        serials: by CPU, how many the kernel has given out. mono_ns: the time for the tail's LOSS
        entries; without it, that of the last record.
        """
        rest = self.release(FOREVER_NS)
        losses = [Loss(cpu, first, count, 0) for cpu, first, count in self.tails(serials)]
        if not losses:
            return rest
        seqs = self._next_seq - 1 + np.cumsum([loss.count + 1 for loss in losses], dtype=np.int64)
        return joined(rest, self._control(losses, seqs, max(mono_ns or 0, self.last_ns)))

    def control(self, entries: Iterable[Control], mono_ns: int) -> Ordered:
        """Control entries with the next sequence numbers, all of one moment."""
        listed = list(entries)
        seqs = np.arange(self._next_seq, self._next_seq + len(listed), dtype=np.int64)
        return self._control(listed, seqs, mono_ns)

    def _control(self, entries: Iterable[Control], seqs: I64, mono_ns: int) -> Ordered:
        rows = encode_many(entries, self._dtype)
        stamp_control(rows, seqs, mono_ns, self._mono_to_epoch)
        first = self._next_seq
        self._next_seq = int(seqs[-1]) + 1 if len(seqs) else first
        cpus = np.full(len(rows), NO_CPU, np.uint16)
        return Ordered(rows, seqs, cpus, first, self._next_seq - first, mono_ns)

    def _merge(self, parts: list[Part]) -> Ordered:
        """One stream of several CPUs' parts: stable by time, then by CPU."""
        first = self._next_seq
        if not parts:
            return Ordered(np.empty(0, self._dtype), NO_NUMBERS, np.empty(0, np.uint16), first, 0)
        gaps = np.concatenate([part.gaps for part in parts])
        times_ns = np.concatenate([part.times_ns for part in parts])
        serials = np.concatenate([part.serials for part in parts])
        cpus = np.repeat(
            np.array([part.cpu for part in parts], np.uint16), [len(part.rows) for part in parts]
        )
        # Records of one CPU alone are in order already.
        order: slice | I64 = slice(None)
        if len(parts) > 1:
            order = np.argsort(np.concatenate([part.keys_ns for part in parts]), kind="stable")
        gaps, times_ns, serials, cpus = gaps[order], times_ns[order], serials[order], cpus[order]
        after_gap = gaps > 0
        # A lost record takes one number, the LOSS entry after it one, the record itself one.
        seqs = first - 1 + np.cumsum(gaps + after_gap + 1)
        place = np.arange(len(seqs)) + np.cumsum(after_gap)
        losses = place[after_gap] - 1

        total = len(seqs) + len(losses)
        raw = np.empty((total, self._dtype.itemsize // 4), np.uint32)
        entries: NDArray[Any] = raw.view(self._dtype).reshape(total)
        whole = raw.view(self._opaque).reshape(total)
        if total == len(parts[0].rows):
            whole[:] = parts[0].rows
        else:
            back = np.empty_like(place)
            back[order] = place
            start = 0
            for part in parts:
                whole[back[start : start + len(part.rows)]] = part.rows
                start += len(part.rows)

        out = Ordered(
            entries,
            np.empty(total, np.int64),
            np.full(total, NO_CPU, np.uint16),
            first,
            int(seqs[-1]) - first + 1,
            int(times_ns[0]),
        )
        mono_ns = np.empty(total, np.int64)
        out.seqs[place], mono_ns[place], out.cpus[place] = seqs, times_ns, cpus
        if len(losses):
            count = gaps[after_gap]
            fill_losses(raw, losses, cpus[after_gap], serials[after_gap] - count, count)
            out.seqs[losses] = seqs[after_gap] - 1
            mono_ns[losses] = times_ns[after_gap]
            if "time_ns" in (self._dtype.names or ()):
                entries["time_ns"][losses] = mono_ns[losses]
        stamp(entries, out.seqs, mono_ns, self._mono_to_epoch)
        self._next_seq += out.span
        return out
