# SPDX-License-Identifier: Apache-2.0
"""When events were switched off during a capture: then nothing of them is recorded."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.text import some_of

_MOST_NAMES = 4
_MOST_SPANS = 20
_SECOND_NS = 1_000_000_000


class ChangeKind(enum.IntEnum):
    """What a Change is of: a location or event (1 on, 0 off; its limit: records a second and CPU),
    the ring of a CPU [bytes], the wake-up threshold [%], entries of the filters in force, how many
    of the budget's steps are in force."""

    SWITCH = 0
    LIMIT = 1
    RING = 2
    LOW_WATER = 3
    FILTERS = 4
    SHED = 5


@dataclass(frozen=True)
class Off:
    """A span in which a location or event was off, CLOCK_MONOTONIC; end_ns: None: to the end.

    It is the longest that it may have been: from before it was switched off until after it was on.
    """

    point: int
    begin_ns: int
    end_ns: int | None
    by_others: bool = False


class Switches:
    """Follows the changes of a capture in their order. spans: those that have ended."""

    def __init__(self) -> None:
        self.spans: list[Off] = []
        self._open: dict[int, Off] = {}

    def feed(self, change: Change) -> None:
        """The next change, of any kind."""
        if change.kind != ChangeKind.SWITCH:
            return
        point, others = change.which, bool(change.by_others)
        off = self._open.pop(point, Off(point, change.before_ns, None, others))
        if change.new:
            others = others or off.by_others
            self.spans.append(Off(point, off.begin_ns, change.after_ns, others))
        else:
            self._open[point] = off

    def all(self) -> list[Off]:
        """All spans, also those that last."""
        return [*self.spans, *self._open.values()]


def merge(earlier: Change | None, later: Change) -> Change:
    """One change for two of one kind and number: what was between them is not known."""
    if earlier is None:
        return later
    by_others = max(earlier.by_others, later.by_others)
    return replace(later, before_ns=earlier.before_ns, old=earlier.old, by_others=by_others)


def describe(
    spans: Iterable[Off], name: Callable[[int], str], epoch_ns: Callable[[int], int]
) -> list[str]:
    """A line for each span, for people. epoch_ns: the time of day of a monotonic time."""
    groups: dict[tuple[int, int | None, bool], list[str]] = {}
    for off in sorted(spans, key=lambda off: (off.begin_ns, off.point)):
        groups.setdefault((off.begin_ns, off.end_ns, off.by_others), []).append(name(off.point))
    lines = []
    for (begin_ns, end_ns, by_others), names in groups.items():
        until = "the end"
        if end_ns is not None:
            lasted_s = (end_ns - begin_ns) / _SECOND_NS
            until = f"{iso(epoch_ns(end_ns))} ({lasted_s:.3f} s)"
        who = "; not tcpkmon switched it" if by_others else ""
        was = "was" if len(names) == 1 else "were"
        shown = some_of(list(dict.fromkeys(names)), _MOST_NAMES)
        lines.append(f"{shown} {was} off from {iso(epoch_ns(begin_ns))} to {until}{who}")
    if len(lines) > _MOST_SPANS:
        more = [*groups][_MOST_SPANS - 1 :]
        off_s = sum(end_ns - begin_ns for begin_ns, end_ns, _ in more if end_ns is not None)
        told = f"and {len(more):,} more times, {off_s / _SECOND_NS:.3f} s in all"
        lines[_MOST_SPANS - 1 :] = [told]
    return lines


def iso(epoch_ns: int) -> str:
    """A time of day with microseconds; any number is valid."""
    seconds, rest_ns = divmod(epoch_ns, _SECOND_NS)
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):  # of a damaged file
        return f"{epoch_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns // 1000:06}Z"
