# SPDX-License-Identifier: Apache-2.0
"""What a stream puts between the records, without a format: a codec makes bytes of it.

Beside these items there are those of formats/base/control.py: Clock, Change, Trigger, Loss and what
reconciling found. A codec leaves out what its format has no entry for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.note import Note
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.changes import ChangeKind, merge
from tcpkmon.formats.base.control import Change, Clock, Control, EndReason, Mark

Released = Mapping[int, tuple[int, int]]
"""By CPU, the last serial that was released or lost, and how many up to it were lost."""


@dataclass(frozen=True)
class Account:
    """The ledger at a moment. offset_ns: time of day less monotonic time; final: at the end."""

    books: Books
    released: Released = field(default_factory=dict)
    offset_ns: int = 0
    final: bool = False


@dataclass(frozen=True)
class Marks:
    """Marks that a process set."""

    marks: Sequence[Mark]
    pid: int


@dataclass(frozen=True)
class Logging:
    """What is logged from now on: the rings, the clocks, the events. states: see Current."""

    buffer_bytes: int
    low_water_percent: int
    clock: Clock
    states: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Switched:
    """Single events were switched on or off. states: of those."""

    states: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Paused:
    """Nothing is logged from now on."""


@dataclass(frozen=True)
class Finish:
    """The end of a file."""

    reason: EndReason


Item = Control | Account | Marks | Logging | Switched | Paused | Finish | Note


@dataclass(frozen=True)
class Ending:
    """The end of a file. mono_ns: when it was asked for; serials: the sum of those released."""

    items: Sequence[Item]
    mono_ns: int
    serials: int


@dataclass(frozen=True)
class Beginning:
    """The beginning of a file; of a capture that rotates, or of a dump, it has an account.

    logging, off: what is logged, and what is switched off. cpus: which CPUs have a file of their
    own; none: those that have one. states: last records of connections, of so many `known` ones.
    recorder, written: of a dump, what its header says, and what the files before it would hold.
    """

    clock: Clock
    info: CaptureInfo
    logging: Sequence[Item] = ()
    account: Account | None = None
    off: Sequence[Item] = ()
    cpus: Sequence[int] = ()
    states: Ordered | None = None
    known: int = 0
    recorder: Mapping[str, object] | None = None
    written: Written | None = None

    @property
    def named_ns(self) -> int:
        """The time of day in its name: when it begins; of a dump, when its first trigger fired."""
        if self.recorder is None:
            return self.clock.realtime_ns
        return self.clock.realtime_ns + cast(int, self.recorder["at_ns"]) - self.clock.mono_ns

    @property
    def items(self) -> list[Item]:
        """What the file begins with, after its header."""
        account = [self.account] if self.account is not None else []
        return [*self.logging, *account, *self.off]


SHED_KEY = -1
_HARMLESS = (ChangeKind.RING, ChangeKind.LOW_WATER)


def alters(changes: Sequence[Change]) -> bool:
    """Whether one of these changes what is recorded."""
    return any(change.kind not in _HARMLESS for change in changes)


def switched_off(states: Mapping[str, tuple[int, int]], now_ns: int) -> dict[int, Change]:
    """For keep_off(): what is off before any change. states: (number, 1 on, 0 off) by name."""
    return {
        number: Change(ChangeKind.SWITCH, number, now_ns, now_ns, 1, 0)
        for number, state in states.values()
        if not state
    }


def keep_off(off: dict[int, Change], changes: Sequence[Change]) -> None:
    """Keep the change of each event that is switched off now, and as SHED_KEY the last one of a
    budget of which steps are in force: the next file begins with them."""
    for change in changes:
        if change.kind in (ChangeKind.SWITCH, ChangeKind.SHED):
            sheds = change.kind == ChangeKind.SHED
            key = SHED_KEY if sheds else change.which
            off.pop(key, None)
            if bool(change.new) == sheds:
                off[key] = change


def owe(owed: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    """Of items that could not be written, those without which others are misread: the step of the
    clock, and each change. owed: of earlier ones."""
    clock: Clock | None = None
    changes: dict[tuple[int, int], Change] = {}
    for item in (*owed, *items):
        if isinstance(item, Clock):
            step_ns = item.step_ns + (clock.step_ns if clock is not None else 0)
            clock = replace(item, step_ns=step_ns)
        elif isinstance(item, Change):
            key = item.kind, item.which
            changes[key] = merge(changes.get(key), item)
    return [*([clock] if clock is not None else []), *changes.values()]
