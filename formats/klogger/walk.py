# SPDX-License-Identifier: Apache-2.0
"""Where the dumps of a log lie, from their heads alone: what verify and repair walk on."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from formats.base.errors import FileError
from formats.klogger import (
    DUMP_BYTES_MAX,
    DUMP_HEAD,
    DUMP_HEAD_BYTES,
    DUMP_MAGIC,
    HEAD_CRC_AT,
    MAGIC,
    PREAMBLE,
)

_READ_BYTES = 1 << 20
_PLACE = re.compile(r"at offset (\d+): ")


@dataclass(frozen=True)
class DumpAt:
    """A dump that is whole: `offset` of its head, `size` with it [bytes], crc32 of its body."""

    index: int
    offset: int
    size: int
    crc: int


@dataclass
class Dumps:
    """The dumps of a file, and where they end.

    is_cut: what follows `end` can be the beginning of a dump that was never finished (or room that
    was never written), so that it is no damage where a capture was killed.
    """

    found: list[DumpAt] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    size_bytes: int = 0
    is_cut: bool = False

    @property
    def offsets(self) -> dict[int, int]:
        """Offset of each dump's head by its index; of several the first."""
        return {dump.index: dump.offset for dump in reversed(self.found)}


def place_of(problem: str) -> int | None:
    """The offset that one of LogReader's problems tells of."""
    match = _PLACE.match(problem)
    return int(match[1]) if match else None


def is_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a Klogger log does; False for what cannot be read."""
    try:
        if not Path(path).is_file():
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def find_dumps(path: str | os.PathLike[str], order: str) -> Dumps:
    """Reads the heads of a log whose header is good. `order`: "<" or ">". Raises FileError."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = struct.unpack(order + PREAMBLE.format[1:], file.read(PREAMBLE.size))[1]
            begin = PREAMBLE.size + header_bytes
            dumps = Dumps(begin=begin, end=begin, size_bytes=size)
            for dump in _walk(file, order, dumps):
                dumps.found.append(dump)
                dumps.end = dump.offset + dump.size
            return dumps
    except (OSError, struct.error) as error:
        raise FileError(f"cannot read {path}: {error}") from error


def _walk(file: IO[bytes], order: str, dumps: Dumps) -> Iterator[DumpAt]:
    at = dumps.end
    while at < dumps.size_bytes:
        file.seek(at)
        head = file.read(DUMP_HEAD_BYTES)
        if len(head) < DUMP_HEAD_BYTES:
            dumps.is_cut = DUMP_MAGIC.startswith(head[: len(DUMP_MAGIC)]) or not any(head)
            return
        layout = order + DUMP_HEAD.format[1:]
        magic, index, _, body, _, crc, seal, _ = struct.unpack(layout, head)
        good = magic == DUMP_MAGIC and zlib.crc32(head[:HEAD_CRC_AT]) == seal
        if not good or body > DUMP_BYTES_MAX:
            dumps.is_cut = _is_zero(file, at)
            return
        if at + DUMP_HEAD_BYTES + body > dumps.size_bytes:
            dumps.is_cut = True
            return
        yield DumpAt(index, at, DUMP_HEAD_BYTES + body, crc)
        at += DUMP_HEAD_BYTES + body


def _is_zero(file: IO[bytes], at: int) -> bool:
    file.seek(at)
    while piece := file.read(_READ_BYTES):
        if any(piece):
            return False
    return True
