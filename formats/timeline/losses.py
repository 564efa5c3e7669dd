# SPDX-License-Identifier: Apache-2.0
"""Where records are missing in logs: a track for each CPU, and which slices lie across."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.timeline.model import Array, Timeline, slices
from tcpkmon.formats.timeline.tcp import LOST, NOT_KNOWN


class Cpus:
    """The groups of tracks of CPUs, and their losses.

    by_cpu: each log is of one CPU; else there is one log of all.
    """

    def __init__(self, timeline: Timeline, by_cpu: bool) -> None:
        self._timeline, self._by_cpu = timeline, by_cpu
        self._last: dict[int, tuple[int, int]] = {}
        self._gaps: dict[int, tuple[Array, Array]] = {}

    def group(self, cpu: int) -> int:
        """The group of a CPU."""
        name = f"CPU {cpu}" if self._by_cpu else "all CPUs"
        return self._timeline.track(("cpu", cpu if self._by_cpu else -1), name)

    def line(self, cpu: int, name: str) -> int:
        """A track of a CPU."""
        return self._timeline.track((cpu if self._by_cpu else -1, name), name, self.group(cpu))

    def lines(self, cpus: Array, name: str) -> Array:
        """(n,) the tracks of these CPUs."""
        found, of = np.unique(cpus, return_inverse=True)
        return np.array([self.line(cpu, name) for cpu in found.tolist()], np.uint64)[of]

    def note(self, batch: LogBatch) -> None:
        """The next records of a log, in the order of its file."""
        if not len(batch):
            return
        cpu = int(batch.cpus[0]) if self._by_cpu else -1
        serials, times = batch.serials.astype(np.int64), batch.times_ns.astype(np.int64)
        before, since = self._last.get(cpu, (int(serials[0]) - 1, int(times[0])))
        self._last[cpu] = int(serials[-1]), int(times[-1])
        missing = np.diff(serials, prepend=before) - 1
        at = np.flatnonzero(missing > 0)
        if not len(at):
            return
        begin = np.concatenate([[since], times[:-1]])[at]
        end = np.maximum(times[at], begin)
        timeline = self._timeline
        timeline.sink.dropped()
        timeline.add(
            slices(begin, end, self.line(max(cpu, 0), LOST), name=timeline.name(NOT_KNOWN),
                   arg=timeline.name("records"), arg_value=missing[at])
        )  # fmt: skip
        old = self._gaps.get(cpu, (begin[:0], end[:0]))
        # Times of a log step back a little: the ends rise by what they were before.
        ends = np.maximum.accumulate(np.append(old[1], end))
        self._gaps[cpu] = np.append(old[0], begin), ends

    def across(self, begin: Array, end: Array, cpus: Array | None = None) -> NDArray[np.bool_]:
        """(n,) whether records are missing in these times, on these CPUs (None: on any)."""
        found = np.zeros(len(begin), np.bool_)
        for cpu, (begins, ends) in self._gaps.items():
            at = np.arange(len(begin))
            if cpus is not None and self._by_cpu:
                at = np.flatnonzero(cpus == cpu)
            place = np.searchsorted(ends, begin[at], "right")
            inside = np.minimum(place, len(ends) - 1)
            found[at] |= (place < len(ends)) & (begins[inside] < end[at])
        return found
