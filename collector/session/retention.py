# SPDX-License-Identifier: Apache-2.0
"""Deletes the oldest segments of a folder, and says so in its index."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session.short_index import shorten
from tcpkmon.collector.writer.own_files import append_line, identity, is_own, open_own
from tcpkmon.collector.writer.segment_folder import inside
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.segments import INDEX, Segment, find_segments, parse_name, read_more

INDEX_BYTES = 1 << 20
"""A larger index is made shorter."""


@dataclass(frozen=True)
class Kept:
    """A segment that is there; folders have the bytes of their files."""

    segment: Segment
    size_bytes: int
    written_s: float
    is_folder: bool


class Retention:
    """Applies the limits of a Rotation to a folder, which it holds by a descriptor.

    It deletes sealed segments alone that its index or told() names, files and folders that are no
    links, and nothing that has another name. Where others may write, their index tells it nothing,
    and their files do not count. free_bytes: of the folder's disk.
    """

    def __init__(
        self,
        rotation: Rotation,
        folder: int,
        now_s: Callable[[], float] = time.time,
        free_bytes: Callable[[int], int] | None = None,
    ) -> None:
        self._rotation = rotation
        self._folder = folder
        self._now_s = now_s
        self._free_bytes = free_bytes or _free_bytes
        self._own: dict[str, str] = {}
        """The captures of the segments that may be deleted, by name."""
        self._index = -1
        """What was read of the index; open, so that no other file has its inode."""
        self._index_at = 0
        self._most_bytes = INDEX_BYTES
        self._has_refused = False

    def told(self, name: str) -> None:
        """This segment was sealed by this capture."""
        self._own.setdefault(name, "")

    def sealed(self) -> list[str]:
        """The segments of its own that are there and not archived, sorted."""
        self._read_index()
        found = find_segments(self._folder)
        return [one.name for one in found if one.name in self._own and one.sealed
                and not one.archived]  # fmt: skip

    def _read_index(self) -> None:
        """What was added to it since the last time."""
        try:
            index = open_own(INDEX, self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._has_refused:
                why = error.strerror or error
                say(f"collect: files: {why}: older captures are neither deleted nor archived")
            self._has_refused = True
            return
        if self._index >= 0:
            if identity(os.fstat(index)) != identity(os.fstat(self._index)):
                self._index_at = 0  # a shorter one got its name
            os.close(self._index)
        self._index = os.dup(index)
        lines, self._index_at = read_more(index, self._index_at)
        for line in lines:
            if line.get("what") in ("sealed", "archived", "repaired"):
                name = str(line.get("name"))
                segment = parse_name(name)
                before = self._own.get(segment.original, "") if segment is not None else ""
                self._own[name] = str(line.get("capture") or before)

    def apply(self) -> list[str]:
        """Delete what is too much; the names of what was deleted."""
        rotation, deleted = self._rotation, []
        if rotation.keeps_all:
            return []
        self._read_index()
        kept = list(self._find())
        there = {one.segment.name for one in kept}
        self._own = {name: capture for name, capture in self._own.items() if name in there}
        total = sum(one.size_bytes for one in kept)
        mine = sorted((one for one in kept if self._is_own(one)), key=lambda one: one.segment)
        while mine:
            why = self._too_much(mine, total)
            if not why:
                break
            first = mine.pop(0)
            total -= first.size_bytes
            if self._delete(first, why):
                deleted.append(first.segment.name)
        if self._index_at > self._most_bytes:
            with suppress(OSError):  # it stays as it is
                shorten(self._folder)
            self._read_index()
            self._most_bytes = max(INDEX_BYTES, 2 * self._index_at)
        return deleted

    def _too_much(self, mine: list[Kept], total: int) -> str:
        rotation = self._rotation
        if rotation.keep_files is not None and len(mine) > rotation.keep_files:
            return "keep-files"
        if rotation.keep_bytes is not None and total > rotation.keep_bytes:
            return "keep-size"
        if rotation.keep_s is not None and mine[0].written_s < self._now_s() - rotation.keep_s:
            return "keep-for"
        if rotation.keep_free_bytes is not None:
            with suppress(OSError):
                if self._free_bytes(self._folder) < rotation.keep_free_bytes:
                    return "keep-free"
        return ""

    def _is_own(self, one: Kept) -> bool:
        return one.segment.sealed and one.segment.name in self._own

    def _find(self) -> Iterator[Kept]:
        folder = os.fstat(self._folder)
        for segment in find_segments(self._folder):
            with suppress(OSError):
                name = segment.path("").name
                found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                if not is_own(found, folder):
                    continue
                if stat.S_ISREG(found.st_mode):
                    yield Kept(segment, found.st_size, found.st_mtime, False)
                elif stat.S_ISDIR(found.st_mode):
                    with inside(name, self._folder) as inner:
                        size = sum(one.st_size for one in _files_in(inner).values())
                    yield Kept(segment, size, found.st_mtime, True)

    def _delete(self, one: Kept, why: str) -> bool:
        name = one.segment.name
        capture = self._own.pop(name)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now_s())),
            "what": "deleted",
            "name": name,
            "capture": capture or None,
            "number": one.segment.number,
            "bytes": one.size_bytes,
            "why": why,
        }
        told = self._tell(line)
        try:
            if one.is_folder:
                with inside(name, self._folder) as inner:
                    for each in _files_in(inner):
                        os.unlink(each, dir_fd=inner)
                os.rmdir(name, dir_fd=self._folder)
            else:
                os.unlink(name, dir_fd=self._folder)
        except OSError:
            return False
        if not told:  # a full disk has room for it now
            self._tell(line)
        return True

    def _tell(self, line: dict[str, Any]) -> bool:
        try:
            append_line(self._folder, line)
        except OSError:
            return False
        return True


def _free_bytes(folder: int) -> int:
    disk = os.fstatvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _files_in(folder: int) -> dict[str, os.stat_result]:
    """The plain files in a folder, by name."""
    found = {one: os.stat(one, dir_fd=folder, follow_symlinks=False) for one in os.listdir(folder)}
    return {one: known for one, known in found.items() if stat.S_ISREG(known.st_mode)}
