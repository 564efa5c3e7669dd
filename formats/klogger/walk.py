# SPDX-License-Identifier: Apache-2.0
"""Finds the dumps of a log by their heads, for readers, verify and repair.

begin          found[0].body          found[0].end              found[-1].end = end    size
| header of    | list, records        | dump 1 ...              | not a dump           |
| dump 0       |                      |                         | (damage, is_cut)     |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_DUMP_BYTES
from tcpkmon.formats.klogger.encode import (
    DUMP_HEAD,
    DUMP_HEAD_BYTES,
    DUMP_MAGIC,
    HEAD_CRC_AT,
    SPARE_AT,
)
from tcpkmon.formats.klogger.table import RECORD_HEAD_BYTES

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class DumpHead:
    """A dump's head with a valid crc; `offset`: of the head in the file [bytes]."""

    offset: int
    index: int
    count: int
    body_bytes: int
    first_serial: int
    crc: int

    @property
    def body(self) -> int:
        """Offset of the dump's body."""
        return self.offset + DUMP_HEAD_BYTES

    @property
    def end(self) -> int:
        """Offset of what follows the dump."""
        return self.body + self.body_bytes


class DumpWalk:
    """Iterates once over the heads of the dumps whose whole body is in the file.

    read(offset, size) returns exactly `size` bytes. The dumps are in the bytes `begin` to `size` of
    the file. order: "<" or ">". found: the heads so far. damage: invalid heads, and why the bytes
    after the last of `found` are no dump.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], begin: int, size: int, order: str
    ) -> None:
        self._read = read
        self._layout = order + DUMP_HEAD.format[1:]
        self._is_torn = False
        self.begin = begin
        self.size = size
        self.found: list[DumpHead] = []
        self.damage: list[DamagedError] = []

    @property
    def end(self) -> int:
        """Offset of the first byte after the last dump of `found`."""
        return self.found[-1].end if self.found else self.begin

    def __iter__(self) -> Iterator[DumpHead]:
        while self.end < self.size:
            head = self._head(self.end)
            if head is None:
                return
            self.found.append(head)
            yield head

    def _head(self, at: int) -> DumpHead | None:
        rest = self.size - at
        if rest < DUMP_HEAD_BYTES:
            self._note(at, "the last dump is cut off in its head")
            return None
        data = self._read(at, DUMP_HEAD_BYTES)
        magic, index, count, body, first, crc, seal, spare = struct.unpack(self._layout, data)
        if magic != DUMP_MAGIC or zlib.crc32(data[:HEAD_CRC_AT]) != seal:
            self._note(at, f"no dump where one should begin; {rest} bytes unread")
            return None
        expected = self.found[-1].index + 1 if self.found else 0
        if index != expected:
            self._note(at, f"dump {index} where dump {expected} should be")
        if spare:
            self._note(at + SPARE_AT, f"the unused word in the head of dump {index} is not zero")
        # Before memory is allocated: the file must hold the body, and the body its records.
        least = count * RECORD_HEAD_BYTES + list_bytes(count)
        if not count or body % 8 or body > MOST_DUMP_BYTES or least > body:
            self._note(at + DUMP_HEAD_BYTES, f"dump {index} has a senseless size")
            return None
        there = rest - DUMP_HEAD_BYTES
        if body > there:
            self._is_torn = True
            what = f"dump {index} is cut off, {there} of {body} bytes are there"
            self._note(at + DUMP_HEAD_BYTES, f"{what}; what was in it is unknown")
            return None
        return DumpHead(at, index, count, body, first, crc)

    def _note(self, offset: int, what: str) -> None:
        self.damage.append(DamagedError(what, offset=offset))

    @property
    def is_cut(self) -> bool:
        """Whether a killed capture explains the bytes after `end`, so that they are no damage.

        They are the beginning of a dump, or zeros that were never written.
        """
        rest = self.size - self.end
        if not rest or self._is_torn:
            return self._is_torn
        head = self._read(self.end, min(rest, DUMP_HEAD_BYTES))
        if rest < DUMP_HEAD_BYTES and DUMP_MAGIC.startswith(head[: len(DUMP_MAGIC)]):
            return True
        pieces = range(self.end, self.size, _READ_BYTES)
        return not any(any(self._read(at, min(_READ_BYTES, self.size - at))) for at in pieces)


def list_bytes(count: int) -> int:
    """Bytes of the list of event numbers at the beginning of a dump's body."""
    return (2 * count + 7) // 8 * 8
