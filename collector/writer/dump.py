# SPDX-License-Identifier: Apache-2.0
"""One dump of the flight recorder: what the reading thread puts into the spool for it.

A dump is a segment whose earlier segments were never written: its header says what they would hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collector.writer.capture_info import CaptureInfo
from collector.writer.dump_writer import Beginning
from collector.writer.keeper import Block, Noted
from collector.writer.ledger import Books
from collector.writer.psc_stream import make_header
from collector.writer.spool import Spool
from collector.writer.written import Written
from formats.base.control import Clock, End, EndReason, Start, Trigger

MOST_TOLD = 1000
"""Triggers that one dump names; the rest is counted."""
MORE = 0xFFFF
"""Trigger.number of the entry that counts the rest."""


@dataclass(frozen=True)
class Keeping:
    """What to keep, and how much a dump has; see collector/plan/recorder.py. triggers: texts."""

    last_s: float | None
    last_bytes: int
    after_s: float
    triggers: Sequence[str]
    dumps_per_hour: int


class Dump:
    """The dump that is written now.

    number: from 1. at_ns: when its first trigger fired. states: how many connections have their
    last state before the window in it. offset_ns: time of day less monotonic time at its beginning.
    """

    def __init__(
        self, spool: Spool[Any], number: int, at_ns: int, states: int, offset_ns: int
    ) -> None:
        self.number = number
        self.at_ns = at_ns
        self.until_ns = 0
        """It ends when all records up to this time are written."""
        self._spool = spool
        self._states = states
        self._offset_ns = offset_ns
        self._told = 0
        self._untold = 0

    def begin(
        self,
        first: Block,
        info: CaptureInfo,
        cpus: int,
        uncertainty_ns: int,
        settings: Mapping[str, Any],
        recorder: Mapping[str, Any],
    ) -> Beginning:
        """The beginning of its file. first: the first block that is in it; uncertainty_ns: of
        the clocks."""
        entries = first.passed.total()
        last_seq = entries + sum(lost for _, lost in first.released.values())
        written = Written(entries, last_seq, in_file=first.passed.copy(), segment=self.number)
        told = {
            **recorder,
            "number": self.number,
            "at_ns": self.at_ns,
            "from_ns": first.from_ns,
            "states": self._states,
        }
        pair = Clock(first.mono_ns, first.realtime_ns, uncertainty_ns, 0)
        start = Start(first.mono_ns, first.realtime_ns, cpus, info.recorded)
        after = replace(written, entries=entries + 1, last_seq=last_seq + 1)
        return Beginning(
            make_header(info, pair, {**settings, "recorder": told}),
            [start, *first.books.checkpoint(after), *first.off],
            first.mono_ns,
            first.realtime_ns,
            written,
        )

    def put_trigger(self, trigger: Trigger) -> None:
        """Name a trigger in its place."""
        if self._count(trigger):
            self._spool.put_control(lambda _: [trigger], trigger.told_ns, always=True)

    def put_books(self, books: Books, mono_ns: int) -> None:
        """A checkpoint."""
        self._spool.put_control(books.with_states(self._states).checkpoint, mono_ns)

    def put_noted(self, noted: Noted) -> None:
        """Control entries."""
        entries = [
            self._follow(entry) if isinstance(entry, Clock) else entry for entry in noted.entries
        ]
        self._spool.put_control(lambda _: entries, noted.mono_ns, always=True)

    def end(
        self,
        books: Books | None,
        clock: Clock,
        reason: EndReason,
        mono_ns: int,
        final: bool = False,
    ) -> None:
        """The last entries. mono_ns: all records up to this time were put."""
        put = self._spool.put_control
        if self._untold:
            more = self._more(mono_ns)
            put(lambda _: [more], mono_ns, reserved=True)
        pair = self._follow(clock)
        put(lambda _: [pair], mono_ns, reserved=True)
        if books is not None:
            told = books.with_states(self._states)
            put(lambda w: told.checkpoint(w, final=final), mono_ns, reserved=True)
        put(lambda w: [End(int(reason), w.entries, w.lost, w.checkpoints)], mono_ns, reserved=True)

    def _count(self, trigger: Trigger) -> bool:
        """Whether it is named, and not only counted."""
        if self._told >= MOST_TOLD:
            self._untold += trigger.count
            return False
        self._told += 1
        return True

    def _more(self, mono_ns: int) -> Trigger:
        """The triggers that are not named."""
        return Trigger(MORE, mono_ns, 0, mono_ns, self._untold, 0)

    def _follow(self, entry: Clock) -> Clock:
        """The pair, with its step since the last pair in the file."""
        offset_ns = entry.realtime_ns - entry.mono_ns
        step_ns, self._offset_ns = offset_ns - self._offset_ns, offset_ns
        return replace(entry, step_ns=step_ns)


def previous_of(first: Block) -> dict[str, Any]:
    """What the header says of the segments before, which were never written."""
    lost = {str(cpu): lost for cpu, (_, lost) in first.released.items() if lost}
    entries = first.passed.total()
    return {
        "name": "",
        "evicted": True,
        "last_seq": entries + sum(lost.values()),
        "entries": entries,
        "checkpoints": 0,
        "serials": {str(cpu): serial for cpu, (serial, _) in first.released.items()},
        "lost": lost,
        "skipped": 0,
    }
