# SPDX-License-Identifier: Apache-2.0
"""A dump of the flight recorder: the window that its file holds completely, and its triggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tcpkmon.formats.base.changes import iso
from tcpkmon.formats.base.control import Trigger
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.verify.ledger import NUMBERED, Ledger, by_cpu
from tcpkmon.formats.verify.report import Problems
from tcpkmon.formats.verify.tape import Decoder, End

MORE = 0xFFFF
"""Trigger.number where the entry counts those that are not named."""
_LISTED = 10
_DUMPED = "dumped"


class Window:
    """Told of each trigger; for other files than dumps it does nothing."""

    def __init__(self, settings: object, problems: Problems) -> None:
        self._problems = problems
        self._from_ns = setting(settings, "recorder", "from_ns")
        texts = setting(settings, "recorder", "triggers")
        self._texts = [str(text) for text in texts] if isinstance(texts, list) else []
        self._fired: list[Trigger] = []
        self._untold = 0

    def fired(self, index: int, trigger: Trigger) -> None:
        """A trigger, in the entry of this number."""
        if not 0 <= trigger.number <= len(self._texts) and trigger.number != MORE:
            what = f"trigger {trigger.number} of {len(self._texts)} that the header has"
            self._problems.add(index, what)
        elif len(self._fired) < _LISTED and trigger.number != MORE:
            self._fired.append(trigger)
        else:
            self._untold += max(1, trigger.count)

    def conclude(
        self, decoder: Decoder, base: Ledger | None, end: End | None, epoch_ns: Callable[[int], int]
    ) -> None:
        """Say what the file holds. epoch_ns: the time of day of a monotonic time."""
        report, previous = decoder.report, decoder.before
        if not previous.evicted:
            if end is not None and end.reason == _DUMPED:
                what = f"{decoder.end} of a dump in a file that is none"
                self._problems.add(end.entry, what)
            return
        report.evicted = previous.entries if decoder.has_all else 0
        before = 0
        if base is not None:
            held = int(base.points["in_file"].sum())
            if decoder.has_all and held != previous.entries:
                what = "the ledger and the header count other records evicted"
                self._problems.add(base.index, what)
            report.evicted = previous.entries if decoder.has_all else held
            before = min(report.seq_lost, _lost_before(base, decoder.lost))
        report.seq_lost -= before
        from_ns = self._from_ns
        if type(from_ns) is not int or not 0 <= from_ns < 1 << 62:
            self._problems.add_header("the header's description of this dump cannot be read")
            return
        until = f"the last {report.word('entry')}"
        if report.proven_end and end is not None and end.mono_ns is not None:
            until = iso(epoch_ns(end.mono_ns))
        more = f"; {evicted_words(report.evicted)}" if decoder.has_all else ""
        report.window.append(f"complete from {iso(epoch_ns(from_ns))} to {until}{more}")
        if before:
            numbers = report.word("numbers")
            what = f"{before:,} {numbers} missing here are of records lost before it"
            report.window.append(what)
        report.window += [describe(one, self._texts, epoch_ns) for one in self._fired]
        if self._untold:
            report.window.append(f"and {self._untold:,} more triggers")


def evicted_words(count: int) -> str:
    """Of records before a window."""
    return f"{count:,} records before that are evicted"


def _lost_before(base: Ledger, known: Mapping[int, int]) -> int:
    """Losses that the kernel had counted when the window began. Their gap is in the file all the
    same: a gap shows when the next record of its CPU comes."""
    cpus, lost = by_cpu(base.points.keys, base.points.sum(*NUMBERED))
    pairs = zip(cpus.tolist(), lost.tolist(), strict=True)
    return sum(max(0, count - known.get(cpu, 0)) for cpu, count in pairs)


def describe(
    trigger: Trigger, texts: Sequence[str], epoch_ns: Callable[[int], int]
) -> str:
    """A trigger for people. texts: those of the header; epoch_ns: the time of day of a monotonic
    time."""
    who = f"process {trigger.pid}" if trigger.pid else "SIGUSR2"
    text = f"asked for by {who}"
    if trigger.number and trigger.number <= len(texts):
        text = f"trigger: {texts[trigger.number - 1]}"
    if trigger.conn_id:
        text += f", connection {trigger.conn_id}"
    if trigger.count > 1:
        text += f" ({trigger.count} at once)"
    late_ms = (trigger.told_ns - trigger.mono_ns) / 1e6
    return f"{text}, at {iso(epoch_ns(trigger.mono_ns))}, noticed after {late_ms:.1f} ms"
