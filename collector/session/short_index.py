# SPDX-License-Identifier: Apache-2.0
"""Makes the index of a folder of segments shorter, while others read it and add lines.

Lines of deleted segments fold into one for each run of numbers, with "first" and "number". All
others stay as they are. A new file is written, is on the disk, and then gets the name. Who adds a
line looks whether its file has the name still (append_line()); what came before that is copied.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tcpkmon.collector.writer.own_files import has_name, identity, open_own
from tcpkmon.formats.base.limits import MOST_INDEX_LINE
from tcpkmon.formats.base.segments import (
    INDEX,
    NEW_INDEX,
    Deleted,
    find_segments,
    numbers_of,
    parse_line,
    parse_name,
)

CAPTURES = 1000
"""So many captures without a segment keep their lines, the latest: they may make another one."""
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def shorten(folder: int) -> None:
    """Replace the index in a folder (a descriptor) by a shorter one. OSError where that cannot be
    done, or another process does it now; the index is as it was then."""
    with os.fdopen(open_own(INDEX, folder), "rb") as old:
        fcntl.flock(old.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        like = os.fstat(old.fileno())
        if not has_name(INDEX, folder, identity(like)):
            return
        with suppress(FileNotFoundError):
            os.unlink(NEW_INDEX, dir_fd=folder)  # of a process that was killed
        with os.fdopen(os.open(NEW_INDEX, _NEW, 0o600, dir_fd=folder), "ab") as new:
            try:
                read = _fold(old, new, {one.original for one in find_segments(folder)})
                os.fchmod(new.fileno(), stat.S_IMODE(like.st_mode))
                os.fchown(new.fileno(), like.st_uid, like.st_gid)
                os.fsync(new.fileno())
                read = _copy_lines(old, new, read)
                if not has_name(NEW_INDEX, folder, identity(os.fstat(new.fileno()))):
                    raise FileExistsError(f"another file has the name {NEW_INDEX} now")
                os.rename(NEW_INDEX, INDEX, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(NEW_INDEX, dir_fd=folder)
                raise
            _copy_lines(old, new, read)
    with suppress(OSError):  # some file systems cannot sync a directory
        os.fsync(folder)


@dataclass(slots=True)
class _Capture:
    """What the lines of one capture say. runs: the first number of each run of deleted segments,
    by its last; ends: the line that deleted that one; latest: the latest such line."""

    deleted: Deleted = field(default_factory=Deleted)
    runs: dict[int, int] = field(default_factory=dict)
    ends: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    latest: Mapping[str, Any] = field(default_factory=dict)


def _fold(old: BinaryIO, new: BinaryIO, there: set[str]) -> int:
    """Write the lines that stay, then one for each run of deleted segments; how far it read.

    there: the names of the segments that have a file; what is said of them stays.
    """
    captures: dict[str, _Capture] = {}
    read = 0
    for at, _, line in _lines(old, 0):
        read = at
        if (numbers := numbers_of(line)) is None:
            continue
        name = str(line.get("capture"))
        capture = captures.setdefault(name, _Capture())
        if _is_deletion(line, there):
            capture.deleted.add(line, *numbers)
            capture.latest = line
            captures[name] = captures.pop(name)  # the last to delete one is the last
        else:
            capture.deleted.there.add(numbers[1])
    for capture in captures.values():
        capture.runs = {last: first for first, last in capture.deleted.runs()}
    for at, data, line in _lines(old, 0):
        if at > read:
            break
        numbers = numbers_of(line)
        if numbers is None:
            if line.get("what") != "archived" or _original(line) in there:
                new.write(data)
            continue
        capture = captures[str(line.get("capture"))]
        if _is_deletion(line, there):
            if numbers[1] in capture.runs:
                capture.ends[numbers[1]] = line
        elif numbers[1] in capture.deleted.there:
            new.write(data)
    ended = [name for name, capture in captures.items() if not capture.deleted.there]
    for name in ended[:-CAPTURES]:
        del captures[name]
    for capture in captures.values():
        for last, first in capture.runs.items():
            end = capture.ends.get(last, capture.latest)
            named = {key: end.get(key) for key in ("time", "what", "name", "capture")}
            numbered = {"first": first, "number": last, "why": end.get("why")}
            new.write(json.dumps({**named, **numbered}).encode() + b"\n")
    new.flush()
    return read


def _is_deletion(line: Mapping[str, Any], there: set[str]) -> bool:
    """Whether a line says that a segment was deleted, and it was."""
    return line.get("what") == "deleted" and _original(line) not in there


def _original(line: Mapping[str, Any]) -> str:
    name = str(line.get("name"))
    segment = parse_name(name)
    return name if segment is None else segment.original


def _copy_lines(old: BinaryIO, new: BinaryIO, at: int) -> int:
    """Copy the lines from this byte on; the byte after them."""
    read = at
    for after, data, _ in _lines(old, at):
        new.write(data)
        read = after
    new.flush()
    return read


def _lines(file: BinaryIO, at: int) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """The lines from this byte on that have their end: the byte after each, and what it says."""
    file.seek(at)
    while data := file.readline(MOST_INDEX_LINE + 1):
        if not data.endswith(b"\n") and len(data) <= MOST_INDEX_LINE:
            return
        at += len(data)
        if (line := parse_line(data)) is not None:
            yield at, data, line
