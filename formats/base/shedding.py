# SPDX-License-Identifier: Apache-2.0
"""What a capture left out to stay within its budget: CHANGE entries of the kind SHED.

    step in force    0     1     2     1     0
    CHANGE             0->1  1->2  2->1  1->0     why: cause + 256 * percent of the budget in use
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from tcpkmon.formats.base.changes import ChangeKind, iso
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.settings import setting

_LISTED = 16
_MOST_PERCENT = (1 << 24) - 1


class Why(enum.IntEnum):
    """Why a step was taken, or taken back (CALM)."""

    CPU = 1
    DISK_RATE = 2
    MEMORY = 3
    CALM = 4

    @property
    def text(self) -> str:
        """In words."""
        return _TEXTS[self]


_TEXTS = {
    Why.CPU: "CPU", Why.DISK_RATE: "disk rate", Why.MEMORY: "memory", Why.CALM: "the highest",
}  # fmt: skip


def encode_why(why: Why, percent: float) -> int:
    """For Change.why."""
    return why | min(max(round(percent), 0), _MOST_PERCENT) << 8


def describe_why(code: int) -> str:
    """Of Change.why, in words; any number is valid."""
    why, percent = code & 0xFF, code >> 8
    text = Why(why).text if why in {*Why} else f"cause {why}"
    return f"{text} at {percent} % of its budget"


def steps_of(settings: object) -> list[str]:
    """The steps that a header's settings name, in their order; any settings are valid."""
    steps = setting(settings, "budget", "steps")
    return [str(step) for step in steps] if isinstance(steps, list) else []


class Shed:
    """Follows the steps of a capture. The first are kept, the others counted."""

    def __init__(self) -> None:
        self._kept: list[Change] = []
        self._more = 0

    def feed(self, change: Change) -> None:
        """The next change, of any kind."""
        if change.kind == ChangeKind.SHED:
            if len(self._kept) < _LISTED:
                self._kept.append(change)
            else:
                self._more += 1

    def describe(self, steps: Sequence[str], epoch_ns: Callable[[int], int]) -> list[str]:
        """A line for each step, for people. epoch_ns: the time of day of a monotonic time."""
        lines = []
        for change in self._kept:
            taken = change.new > change.old
            number = change.new if taken else change.new + 1
            name = f" {steps[number - 1]}" if 0 < number <= len(steps) else ""
            what = "leaves out" if taken else "taken back"
            if change.old > number:
                what, name = "and those after it taken back", ""
            why = f" ({describe_why(change.why)})" if change.why else ""
            at = iso(epoch_ns(change.before_ns))
            lines.append(f"{at}: step {number} of the budget {what}{name}{why}")
        if self._more:
            lines.append(f"and {self._more} more step(s) of the budget")
        return lines
