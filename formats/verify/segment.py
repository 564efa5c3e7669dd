# SPDX-License-Identifier: Apache-2.0
"""What a segment's header says of its capture and of the segment before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.base.settings import setting

_CAPTURE = re.compile(r"[0-9a-f]{32}")
_MOST = 1 << 62
UNKNOWN = -1


@dataclass(frozen=True)
class Previous:
    """Where the segment before ended: its name, and what the capture's files held until then."""

    name: str = ""
    last_seq: int = 0
    entries: int = 0
    checkpoints: int = 0
    skipped: int = 0
    """Sequence numbers that LOSS entries without a CPU count."""
    serials: Mapping[int, int] = field(default_factory=dict)
    """By CPU, the last one that is in a file or lost."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """By CPU, how many of them were lost."""
    evicted: bool = False
    """No file has them: the flight recorder wrote a dump, which begins here."""


@dataclass
class Part:
    """A segment of a capture; verify fills in where it ends.

    first, last: a digest of the ledger at its beginning and at its end; empty where it has none.
    """

    capture: str
    number: int
    previous: Previous | None
    last_seq: int = 0
    """UNKNOWN where a full disk or queue dropped the last records of a log."""
    entries: int = 0
    goes_on: bool = False
    """Another segment follows it."""
    unsure: bool = False
    """The file does not tell each CPU's last serial: records were lost of which no CPU is known, or
    it has no serials."""
    serials: dict[int, int] = field(default_factory=dict)
    first: str = ""
    last: str = ""

    @property
    def is_dump(self) -> bool:
        """It is a dump of the flight recorder: no other segment is before or after it."""
        return self.previous is not None and self.previous.evicted

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        previous = self.previous.name if self.previous else None
        return {"capture": self.capture, "number": self.number, "previous": previous}


def find_part(settings: object) -> Part | None:
    """The segment of a header's settings; None for a file that is none. ValueError if damaged."""
    found = setting(settings, "segment")
    if found is None:
        return None
    try:
        capture, number, previous = found["capture"], found["number"], found["previous"]
        if not (isinstance(capture, str) and _CAPTURE.fullmatch(capture) and _number(number)):
            raise ValueError
        return Part(capture, number, None if previous is None else _previous(previous))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("the header's description of this segment cannot be read") from None


def previous_of(settings: object) -> Previous:
    """Where the segment before ended, for who repairs: verify tells of damage."""
    try:
        part = find_part(settings)
    except ValueError:
        part = None
    return (part.previous if part is not None else None) or Previous()


def _previous(found: Mapping[str, Any]) -> Previous:
    counts = {name: found[name] for name in ("last_seq", "entries", "checkpoints", "skipped")}
    if not all(map(_number, counts.values())) or not isinstance(found["name"], str):
        raise ValueError
    return Previous(
        found["name"], **counts, serials=_by_cpu(found["serials"]), lost=_by_cpu(found["lost"]),
        evicted=found.get("evicted") is True,
    )  # fmt: skip


def _by_cpu(found: Mapping[str, Any]) -> dict[int, int]:
    numbers = {int(cpu): number for cpu, number in found.items()}
    inside = all(0 <= cpu <= MOST_CPUS and _number(n) for cpu, n in numbers.items())
    if not inside or len(numbers) != len(found):
        raise ValueError
    return numbers


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
