# SPDX-License-Identifier: Apache-2.0
"""Why and where the kernel dropped a packet: what the records DROPPED say, and the names for it.

     callvalue of DROPPED    31     30 .. 16     15 .. 0
                            +------+------------+--------+
                            | sent | the place  | reason |
                            +------+------------+--------+

The places are functions of the kernel. Their names come as control entries, at most a second after
the first record, and are in the settings of the headers of later files. The names of reasons are in
the schema of each file: the enums REASONS and RESETS, as the kernel's BTF has them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tcpkmon.formats.base.control import WORDS_BYTES, WORDS_COUNT, Call, Control
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.tcp import Location
from tcpkmon.formats.base.text import text_of

SETTING = "drop_places"
"""In the settings of a header: by number, as text, the name of a function."""
REASONS, RESETS = "drop_reason", "reset_reason"
MOST_PLACES = 1024
REASON_BITS, SENT_BIT = 0xFFFF, 31
"""Of the callvalue of DROPPED; SENT_BIT: this host sent the packet."""
_WORDS = struct.Struct(f"<{WORDS_COUNT}I")


@dataclass(frozen=True)
class DropPlace(Control):
    """The function that has a number in records DROPPED: at most 40 bytes of its name."""

    location: ClassVar[int] = Location.DROP_PLACE
    event: ClassVar[str] = "DROP_PLACE"
    number: Call
    function: bytes

    def words(self) -> tuple[int, ...]:
        return _WORDS.unpack(self.function[:WORDS_BYTES].ljust(WORDS_BYTES, b"\0"))

    @classmethod
    def from_words(cls, callvalue: int, words: Sequence[int]) -> DropPlace:
        return cls(callvalue, _WORDS.pack(*words).rstrip(b"\0"))


class DropPlaces:
    """The functions that a capture names, by number. settings: of the header, which may hold
    anything."""

    def __init__(self, settings: Any = None) -> None:
        self._found: dict[int, str] = {}
        told = setting(settings, SETTING)
        for number, name in told.items() if isinstance(told, dict) else ():
            if isinstance(name, str) and number.isascii() and number.isdigit() and len(number) < 5:
                self._take(int(number), name)

    def feed(self, entry: Control) -> None:
        """Take what a control entry says."""
        if isinstance(entry, DropPlace):
            self._take(entry.number, text_of(entry.function))

    def _take(self, number: int, name: str) -> None:
        if 0 < number < MOST_PLACES:
            self._found[number] = name[:WORDS_BYTES]

    def get(self, number: int) -> str | None:
        """The function of this number; None where the capture does not name it."""
        return self._found.get(number)


@dataclass(frozen=True)
class Drop:
    """What the callvalue of a DROPPED says. place: 0 where the capture had no number left."""

    reason: int
    place: int
    sent: bool

    @classmethod
    def of(cls, callvalue: int) -> Drop:
        """As it is in a record."""
        return cls(callvalue & REASON_BITS, callvalue >> 16 & 0x7FFF, bool(callvalue >> SENT_BIT))
