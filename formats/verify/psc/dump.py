# SPDX-License-Identifier: Apache-2.0
"""A dump of the flight recorder: the window that its file holds completely, and its triggers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from formats.base import control
from formats.psc.reader import Capture
from formats.psc.states import described, find_states
from formats.verify.ledger import NUMBERED, Ledger, by_cpu
from formats.verify.psc.entries import ControlRows, Segment
from formats.verify.report import Problems, Report
from formats.verify.segment import Previous

MORE = 0xFFFF
"""Trigger.number where the entry counts those that are not named."""
_LISTED = 10


@dataclass(frozen=True)
class Window:
    """What a file says of its window: what was before it, its first ledger, the place of the END of
    a dump."""

    previous: Previous
    base: Ledger | None
    dumped_at: int | None


class DumpCheck:
    """Fed with the control entries of a file in order; for other files it does nothing."""

    def __init__(self, settings: object, problems: Problems) -> None:
        found = settings.get("recorder") if isinstance(settings, dict) else None
        self._settings: Mapping[str, Any] = found if isinstance(found, dict) else {}
        self._problems = problems
        texts = self._settings.get("triggers")
        self._texts = [str(text) for text in texts] if isinstance(texts, list) else []
        self._fired: list[control.Trigger] = []
        self._untold = 0
        self.end_ns: int | None = None
        """The time of END: up to it all records are in the file."""

    def feed(self, rows: ControlRows, segment: Segment, has_mono: bool) -> None:
        """Control rows of a piece of the file; has_mono: its entries have monotonic times."""
        for at in np.flatnonzero(rows.location == control.Trigger.location).tolist():
            entry = rows.decode(at)
            assert isinstance(entry, control.Trigger)
            self.fired(int(rows.index[at]), entry)
        for at in np.flatnonzero(rows.location == control.End.location).tolist():
            # Stamped with the time up to which all records are in the file.
            place = int(rows.index[at]) - segment.start
            self.end_ns = int(segment.wide("time_ns")[place]) if has_mono else None

    def fired(self, index: int, entry: control.Trigger) -> None:
        """A trigger, in the entry of this number."""
        if entry.number > len(self._texts) and entry.number != MORE:
            what = f"trigger {entry.number} of {len(self._texts)} that the header has"
            self._problems.add(index, what)
        if len(self._fired) < _LISTED and entry.number != MORE:
            self._fired.append(entry)
        else:
            self._untold += max(1, entry.count)

    def conclude(
        self, report: Report, window: Window, epoch_ns: Callable[[int], int]
    ) -> None:
        """Say what the file holds. epoch_ns: the time of day of a monotonic time."""
        previous = window.previous
        if not previous.evicted:
            if window.dumped_at is not None:
                self._problems.add(window.dumped_at, "END of a dump in a file that is none")
            return
        report.evicted = previous.entries
        self._check_evicted(window)
        before = min(report.seq_lost, self._lost_before(window))
        report.seq_lost -= before
        from_ns = self._settings.get("from_ns")
        if not isinstance(from_ns, int) or not 0 <= from_ns < 1 << 62:
            self._problems.add_header("the header's description of this dump cannot be read")
            return
        first = iso(epoch_ns(from_ns))
        until = "the last entry"
        if report.proven_end and self.end_ns is not None:
            until = iso(epoch_ns(self.end_ns))
        report.window.append(
            f"complete from {first} to {until}; {previous.entries:,} records before that are "
            "evicted"
        )
        if before:
            report.window.append(f"{before:,} numbers missing here are of records lost before it")
        for entry in self._fired:
            report.window.append(describe(entry, self._texts, epoch_ns))
        if self._untold:
            report.window.append(f"and {self._untold:,} more triggers")

    def _lost_before(self, window: Window) -> int:
        """Losses that the kernel had counted when the window began. Their gap is in the file all
        the same: a gap shows when the next record of its CPU comes."""
        if window.base is None:
            return 0
        points = window.base.points
        cpus, lost = by_cpu(points.keys, points.sum(*NUMBERED))
        known = window.previous.lost
        pairs = zip(cpus.tolist(), lost.tolist(), strict=True)
        return sum(max(0, count - known.get(cpu, 0)) for cpu, count in pairs)

    def _check_evicted(self, window: Window) -> None:
        base, previous = window.base, window.previous
        if base is None:
            return
        if int(base.points["in_file"].sum()) != previous.entries:
            self._problems.add(base.index, "the ledger and the header count other records evicted")


def tell_states(capture: Capture, report: Report) -> None:
    """What a later segment repeats is no connection that was open before the capture."""
    if report.part is None or not capture.controls_fit:
        return
    read = partial(capture.column, "location")
    _, count = find_states(capture.header, len(capture), read)
    if count:
        known = described(capture.header).get("known")
        of = f" of {known}" if isinstance(known, int) and known > count else ""
        report.existing -= count
        what = f"the last record before it of {count}{of} connections that were open"
        report.window.append(f"it repeats {what}")


def describe(
    entry: control.Trigger, texts: Sequence[str], epoch_ns: Callable[[int], int]
) -> str:
    """A trigger for people. texts: those of the header; epoch_ns: the time of day of a monotonic
    time."""
    who = f"process {entry.pid}" if entry.pid else "SIGUSR2"
    text = f"asked for by {who}"
    if entry.number and entry.number <= len(texts):
        text = f"trigger: {texts[entry.number - 1]}"
    if entry.conn_id:
        text += f", connection {entry.conn_id}"
    if entry.count > 1:
        text += f" ({entry.count} at once)"
    late_ms = (entry.told_ns - entry.mono_ns) / 1e6
    return f"{text}, at {iso(epoch_ns(entry.mono_ns))}, noticed after {late_ms:.1f} ms"


def iso(epoch_ns: int) -> str:
    """A time of day for people."""
    seconds, rest_ns = divmod(epoch_ns, 1_000_000_000)
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):  # of a damaged file
        return f"{epoch_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns // 1000:06}Z"
