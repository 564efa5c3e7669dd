# SPDX-License-Identifier: Apache-2.0
"""The files of one capture, read as one: a PSC file, or all segments of a folder in their order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path

from tcpkmon.formats.base.errors import DamagedError, FileError, TcpkmonError
from tcpkmon.formats.base.files import is_unpacked, read_head
from tcpkmon.formats.base.segments import find_capture, open_segment, order, place_of
from tcpkmon.formats.psc.header import Header, read_header

SUFFIX = ".pm"
_ANY_BYTES = 1 << 62


@dataclass(frozen=True)
class Piece:
    """A file with some of the entries; rows: how many. rest: bytes of an entry cut short."""

    path: Path
    header: Header
    data_offset: int
    rows: int
    rest: int
    plain: FileIO | None = None
    """The file, if it is open: what a compressed file holds."""
    shifts: Mapping[str, int] = field(default_factory=dict)
    """By column: what is added to its values."""

    def read(self, view: memoryview, row: int) -> None:
        """Fill the memory with entries from this row on. Any thread may call it."""
        offset, done = self.data_offset + row * self.header.entry_size, 0
        try:
            with nullcontext(self.plain) if self.plain else open_segment(self.path) as file:
                while done < len(view):
                    count = os.preadv(file.fileno(), [view[done:]], offset + done)
                    if not count:
                        what = "the file became shorter while it was read"
                        raise DamagedError(f"{self.path}: {what}")
                    done += count
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error


def look(path: Path) -> Piece:
    """The header of a PSC file, and how many entries follow it. FileError, DamagedError."""
    try:
        file = open_segment(path)
        with file if not is_unpacked(file) else nullcontext():
            size = os.fstat(file.fileno()).st_size
            header, offset = read_header(lambda count: os.pread(file.fileno(), count, 0), size)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except DamagedError as error:
        raise DamagedError(f"{path}: {error.message}", error.hint) from error
    rows, rest = divmod(size - offset, header.entry_size)
    return Piece(path, header, offset, rows, rest, None if file.closed else file)


def find_files(
    path: str | os.PathLike[str], *more: str | os.PathLike[str]
) -> tuple[list[Path], str]:
    """The file itself, the PSC segments of a folder, from the first of its newest capture on, or
    several segments of one capture in their order; and what is missing, for people. The first one
    can be read if any can.

    FileError where there is none, UsageError for files of several captures.
    """
    if not more and not os.path.isdir(path):
        return [Path(path)], ""
    files = [each for one in (path, *more) for each in _in(one)]
    found = order(files, place_at, None if more else path)
    if not found.paths:  # none can be read, or they are no segments
        return _in(path), ""
    return [*found.paths, *found.unread], found.describe()


def _in(path: str | os.PathLike[str]) -> list[Path]:
    if not os.path.isdir(path):
        return [Path(path)]
    return find_capture(path, SUFFIX, place_at)


def place_at(path: Path) -> tuple[str, int]:
    """Capture and number of a segment; ("", 0) for a file that is none."""
    try:
        return capture_of(read_header(partial(read_head, path), _ANY_BYTES)[0])
    except (TcpkmonError, OSError):
        return "", 0


def follow(
    first: Piece, paths: Iterable[Path], warnings: list[str]
) -> tuple[list[Piece], bool]:
    """The first piece and those of the same capture among the paths; whether one is damaged.

    warnings: gets a line for each that is left out.
    """
    capture, _ = capture_of(first.header)
    pieces, damaged = [first], False
    for path in paths:
        try:
            piece = look(path)
        except TcpkmonError as error:
            warnings.append(f"left out: {error.message}")
            damaged |= isinstance(error, DamagedError)
            continue
        other, _ = capture_of(piece.header)
        if other != capture or piece.header.columns != first.header.columns:
            warnings.append(f"{path.name}: left out: it is of another capture")
            continue
        if piece.rest:
            warnings.append(f"{path.name}: its last entry is cut short; it is left out")
        pieces.append(piece)
    return pieces, damaged or any(piece.rest for piece in pieces[:-1])


def capture_of(header: Header) -> tuple[str, int]:
    """Capture and number of a segment's header; ("", 0) for a file that is none."""
    return place_of(header.settings)
