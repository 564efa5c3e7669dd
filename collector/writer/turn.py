# SPDX-License-Identifier: Apache-2.0
"""A rotation, as the writing thread does it: the file ends at a point of the stream, and the next
one begins there.

The next file is made first, with room on the disk for its beginning and its end. Where that fails,
or the file cannot be ended, the file goes on, and `Written.rotation_error` has the reason. So a
rotation loses nothing that would not have been lost without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collector.sequencer.ordered_batch import Ordered
from collector.writer.written import Written
from formats.base.changes import ChangeKind
from formats.base.control import Change


@dataclass(frozen=True)
class Turn:
    """mono_ns, realtime_ns: when it was asked for."""

    last: Callable[[Written], Sequence[Any]]
    """Makes the entries that end the file."""
    first: Callable[[Written], Any]
    """Makes the beginning of the next file, after the end of the last one."""
    mono_ns: int
    realtime_ns: int
    why: str = ""
    """The condition that was met."""
    last_seq: int | None = None
    """How many records were released, with those that were lost; None: the writer numbers them."""
    states: Ordered | None = None
    """Last records of connections that follow the beginning."""


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
