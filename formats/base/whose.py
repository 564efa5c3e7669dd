# SPDX-License-Identifier: Apache-2.0
"""Whose a control group is: its unit, container and pod, by its path and what a file tells.

A capture with the column cgroup has the groups that exist at its start in the settings of each
file's header, and those that come later as control entries. A name of any length takes several:

    id of the group (w0, w1), 32 bytes of text (w2 to w9); callvalue: part * 2^16 + parts

All parts together are a JSON object: `path`, and what only other files tell (`container`, ...).
"""

from __future__ import annotations

import json
import struct
from collections.abc import ItemsView, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tcpkmon.formats.base.control import WORDS_COUNT, Call, Control
from tcpkmon.formats.base.group_names import MOST_GROUPS, Group, group_of
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.tcp import Location

SETTING = "groups"
"""In the settings of a header: by id, as text, what is known of a group."""
UNKNOWN = "unknown"
"""In SETTING: how many groups came and went before the collector could read their paths."""
MOST_CHARACTERS = 512 << 10
"""Of the groups in a header."""
MOST_TEXT = 4096
_PART_BYTES = 32
_WORDS = struct.Struct(f"<{WORDS_COUNT}I")
_ENTRY = struct.Struct(f"<Q{_PART_BYTES}s")


@dataclass(frozen=True)
class GroupPart(Control):
    """A part of what a group is. text: at most 32 bytes, ASCII."""

    location: ClassVar[int] = Location.CGROUP
    event: ClassVar[str] = "CGROUP"
    part: Call
    parts: Call
    id: int
    text: bytes

    def words(self) -> tuple[int, ...]:
        return _WORDS.unpack(_ENTRY.pack(self.id, self.text))

    @classmethod
    def from_words(cls, callvalue: int, words: Sequence[int]) -> GroupPart:
        number, text = _ENTRY.unpack(_WORDS.pack(*words))
        return cls(callvalue >> 16, callvalue & 0xFFFF, number, text.rstrip(b"\0"))


def entries_of(number: int, group: Group) -> Iterator[GroupPart]:
    """The control entries that tell of a group."""
    text = json.dumps(group.told(), separators=(",", ":")).encode()
    if len(text) > MOST_TEXT:
        text = json.dumps({"path": "…/" + group.path[-MOST_TEXT // 12 :]}).encode()
    pieces = [text[at : at + _PART_BYTES] for at in range(0, len(text), _PART_BYTES)]
    for part, piece in enumerate(pieces):
        yield GroupPart(part, len(pieces), number, piece)


def unknown_entry(count: int) -> list[GroupPart]:
    """The control entry that tells how many groups came and went unseen."""
    return [GroupPart(0, 1, 0, b'{"%s":%d}' % (UNKNOWN.encode(), count))]


class Groups:
    """The groups that a capture tells of, by id. settings: of the header, which may hold anything.

    unknown: how many came and went unseen.
    """

    def __init__(self, settings: Any = None) -> None:
        self._found: dict[int, Group] = {}
        self._open: dict[int, list[bytes]] = {}
        self.unknown = 0
        self.add(settings)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, number: int) -> Group | None:
        """The group of this id, if the capture tells of it."""
        return self._found.get(number)

    def items(self) -> ItemsView[int, Group]:
        """All that are known, by id."""
        return self._found.items()

    def add(self, settings: Any) -> None:
        """Take those of a header too."""
        told = setting(settings, SETTING)
        for key, value in told.items() if isinstance(told, dict) else ():
            if key == UNKNOWN and type(value) is int:
                self.unknown = max(self.unknown, value)
            elif key.isascii() and key.isdigit() and len(key) < 20:
                self._take(int(key), value)

    def feed(self, entry: Control) -> None:
        """The next control entry, of any kind."""
        if not isinstance(entry, GroupPart):
            return
        if not entry.part:
            self._open[entry.id] = []
        pieces = self._open.get(entry.id)
        if pieces is None or len(pieces) != entry.part or entry.part * _PART_BYTES > MOST_TEXT:
            self._open.pop(entry.id, None)
            return
        pieces.append(entry.text)
        if len(pieces) == entry.parts:
            text = b"".join(self._open.pop(entry.id))
            try:
                self._take(entry.id, json.loads(text))
            except (ValueError, RecursionError):
                return  # verify tells of damage
        elif len(self._open) > MOST_GROUPS:
            self._open.clear()

    def _take(self, number: int, told: Any) -> None:
        if not number:
            count = told.get(UNKNOWN) if isinstance(told, dict) else None
            self.unknown = max(self.unknown, count if type(count) is int else 0)
        elif isinstance(told, dict) and isinstance(path := told.get("path"), str):
            known = {one.name for one in fields(Group)} - {"path"}
            more = {n: v for n, v in told.items() if n in known and isinstance(v, str)}
            if number in self._found or len(self._found) < 4 * MOST_GROUPS:
                self._found[number] = group_of(path[:MOST_TEXT], **more)
