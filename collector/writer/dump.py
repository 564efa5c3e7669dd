# SPDX-License-Identifier: Apache-2.0
"""What the flight recorder keeps and writes: collector/writer/recorder.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tcpkmon.collector.sequencer.clock_pairs import offset_of
from tcpkmon.collector.writer.tape import Item
from tcpkmon.formats.base.control import Clock, Trigger

MOST_TOLD = 1000
"""Triggers that one dump names; the rest is counted."""
MORE = 0xFFFF
"""Trigger.number of the entry that counts the rest."""


@dataclass(frozen=True)
class Keeping:
    """What to keep, and how much a dump has: collector/plan/recorder.py has its options."""

    last_s: float | None
    last_bytes: int
    after_s: float
    triggers: Sequence[str]
    dumps_per_hour: int


@dataclass(frozen=True)
class Hit:
    """A trigger fired. mono_ns: when its condition was met; conn_id: of the first connection, 0 if
    there is none; count: how many connections or events did at once."""

    number: int
    mono_ns: int
    conn_id: int
    count: int


@dataclass
class Dump:
    """The dump that is written now. at_ns: when its first trigger fired; until_ns: it ends when
    all records up to this time are written; offset_ns: time of day less monotonic time at the last
    pair of clocks in it; told, untold: triggers that it names, and those that it counts."""

    number: int
    at_ns: int
    offset_ns: int
    until_ns: int = 0
    told: int = 0
    untold: int = 0

    def name(self, trigger: Trigger) -> bool:
        """Whether it names a trigger, and not only counts it."""
        if self.told >= MOST_TOLD:
            self.untold += trigger.count
            return False
        self.told += 1
        return True

    def follow(self, items: Sequence[Item]) -> list[Item]:
        """The items; pairs of clocks with their step since the last pair in the file."""
        return [self._follow(item) if isinstance(item, Clock) else item for item in items]

    def _follow(self, pair: Clock) -> Clock:
        before, self.offset_ns = self.offset_ns, offset_of(pair)
        return replace(pair, step_ns=self.offset_ns - before)
