# SPDX-License-Identifier: Apache-2.0
"""The names of a capture's segments, and their order in a folder.

    HOST-20261122T090000Z-000042.pm         sealed: it has its end
    .HOST-20261122T090000Z-000043.pm.part   not yet, or its capture was killed
    index.jsonl                             what was sealed, archived and deleted, when and why
"""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, FileIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.files import open_plain
from tcpkmon.formats.base.limits import MOST_INDEX_BYTES, MOST_INDEX_LINE
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.text import some_of

INDEX = "index.jsonl"
NEW_INDEX = f".{INDEX}.new"
"""A shorter one, before it gets that name: see collector/session/short_index.py."""
_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,63})-(?P<utc>\d{8}T\d{6}Z)-(?P<number>\d{6,12})"
    r"(?P<suffix>\.pm|\.klog|\.magnet|\.arrow)(?P<archived>\.zst|\.parquet)?"
)
_STRANGE = re.compile(r"[^A-Za-z0-9._-]")
_MOST_AHEAD = 1 << 20
"""An index that tells of segments so far behind the last one is forged."""
PlaceAt = Callable[[Path], tuple[str, int]]
"""Capture and number of a segment; ("", 0) for a file that is none, or cannot be read."""


@dataclass(frozen=True, order=True)
class Segment:
    """A segment by its name alone; sorted as they were written."""

    utc: str
    number: int
    host: str
    suffix: str
    name: str
    """As it is called once it is sealed."""
    sealed: bool = True
    archived: str = ""

    @property
    def original(self) -> str:
        """Its name before it was archived."""
        return self.name.removesuffix(self.archived)

    def path(self, folder: str | os.PathLike[str]) -> Path:
        """Where it is."""
        return Path(folder, self.name if self.sealed else hidden(self.name))


def name_segment(host: str, realtime_ns: int, number: int, suffix: str) -> str:
    """The name of a segment that begins at this time of day."""
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(realtime_ns // 1_000_000_000))
    host = _STRANGE.sub("-", host).lstrip(".-_")[:64] or "host"
    return f"{host}-{utc}-{number:06}{suffix}"


def hidden(name: str) -> str:
    """Its name before it is sealed."""
    return f".{name}.part"


def parse_name(name: str) -> Segment | None:
    """The segment of this name; None for any other file."""
    sealed = not (name.startswith(".") and name.endswith(".part"))
    shown = name if sealed else name[1:-5]
    if (found := _NAME.fullmatch(shown)) is None:
        return None
    return Segment(
        found["utc"], int(found["number"]), found["host"], found["suffix"], shown, sealed,
        found["archived"] or "",
    )  # fmt: skip


def open_segment(path: Path) -> FileIO:
    """As open_plain(); under its new name if it was sealed since it was found."""
    try:
        return open_plain(path)
    except FileNotFoundError:
        segment = parse_name(path.name)
        if segment is None or segment.sealed:
            raise
        return open_plain(path.with_name(segment.name))


def find_segments(folder: str | os.PathLike[str] | int) -> list[Segment]:
    """The segments in a folder, sorted. Those that are not sealed yet are among them. OSError.

    An archive is left out while it is made, or while the original is there too.
    """
    names = set(os.listdir(folder))
    found = (parse_name(name) for name in names)
    return sorted(
        one
        for one in found
        if one is not None
        and not (one.archived and (not one.sealed or one.original in names))
    )


def place_of(settings: object) -> tuple[str, int]:
    """Capture and number of a segment, from the settings in a header; ("", 0) of what is none."""
    try:
        segment = settings["segment"]  # type: ignore[index]
        return str(segment["capture"]), int(segment["number"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return "", 0


def has_earlier(settings: object) -> bool:
    """Whether a segment's header says that other segments, or what was evicted, come before it."""
    return setting(settings, "segment", "previous") is not None


def find_capture(
    folder: str | os.PathLike[str], suffix: str, place_at: PlaceAt
) -> list[Path]:
    """The segments of a folder from the first of its newest capture on; FileError without any."""
    found = [one for one in _segments_of(folder) if one.suffix == suffix]
    if not found:
        why = f"no segment in it ends in {suffix}"
        raise FileError(f"{folder} cannot be read as one capture: {why}", "name a file")
    paths = [one.path(folder) for one in sorted(found, key=lambda one: (one.utc, one.number))]
    newest = next(filter(None, (place_at(path)[0] for path in reversed(paths))), "")
    captures = [*takewhile(lambda each: each != newest, (place_at(path)[0] for path in paths))]
    before = max((at for at, each in enumerate(captures, 1) if each), default=0)
    return paths[before:]


@dataclass(frozen=True)
class Ordered:
    """The segments of one capture. absent: first and last number of each run that is missing.
    others: how many files are of other captures. strange: how many have a number that is not in
    their name, or that another one has. unread: those of which nobody can tell."""

    paths: list[Path]
    numbers: list[int]
    absent: list[tuple[int, int]]
    others: int
    unread: list[Path]
    strange: int = 0

    def describe(self) -> str:
        """What is missing or left out, for people."""
        runs = [f"{a}" if a == b else f"{a} to {b}" for a, b in self.absent]
        told = [f"segment {some_of(runs, 8)} is missing"] if runs else []
        if self.others:
            told.append(f"{self.others} file(s) of other captures are left out")
        if self.strange:
            told.append(f"{self.strange} file(s) are not the segment that their name says")
        return "; ".join(told)


def order(
    paths: Sequence[Path], place_at: PlaceAt, folder: str | os.PathLike[str] | None = None
) -> Ordered:
    """The segments of the capture of the first path that has one, each number once, in their order.

    folder: these are all that it has of the capture, so what its index does not call deleted is
    missing before the first and after the last of them too. None: somebody named them; UsageError
    unless they are of one capture.
    """
    places = [(place_at(path), path) for path in paths]
    capture = next((name for (name, _), _ in places if name), "")
    mine: dict[int, Path] = {}
    for (name, number), path in places:
        if name == capture:
            mine.setdefault(number, path)
    numbers = sorted(mine)
    others = sum(1 for (name, _), _ in places if name not in ("", capture))
    unread = [path for (name, _), path in places if not name] if capture else []
    if folder is None:
        if others or unread or not capture:
            for path in paths:
                if not path.exists():
                    raise FileError(f"cannot open {path}: No such file or directory",
                                    "an output is named with -o")  # fmt: skip
            raise UsageError(
                f"{', '.join(map(str, paths[:3]))}{' ...' if len(paths) > 3 else ''} are not "
                "segments of one capture",
                "name one of them, or the folder of a capture",
            )
        absent = gaps(as_runs(numbers), numbers[0], numbers[-1])
        return Ordered([mine[number] for number in numbers], numbers, absent, 0, [])
    absent, strange = [], 0
    if capture:
        named = {one.number for path in unread if (one := parse_name(path.name)) is not None}
        absent = _not_deleted(folder, capture, sorted({*numbers, *named}))
        strange = sum(
            1 for (name, number), path in places
            if name == capture and (mine[number] != path or not _is_named(path, number))
        )  # fmt: skip
    return Ordered([mine[number] for number in numbers], numbers, absent, others, unread, strange)


def _is_named(path: Path, number: int) -> bool:
    found = parse_name(path.name)
    return found is not None and found.number == number


def _not_deleted(
    folder: str | os.PathLike[str], capture: str, numbers: list[int]
) -> list[tuple[int, int]]:
    """Runs of numbers of a capture without a file, of which its index does not say that they were
    deleted. numbers: sorted, of those that have a file."""
    deleted, last, first_told = Deleted(), numbers[-1], 0
    lines, has_all = read_index(folder)
    for line in lines:
        named = numbers_of(line)
        if str(line.get("capture")) != capture or named is None:
            continue
        first, number = named
        if not has_all:
            first_told = min(first_told or first, first)
        if line.get("what") != "deleted":
            if number > numbers[-1] + _MOST_AHEAD:
                continue
            last = max(last, number)
        deleted.add(line, first, number)
    known = sorted([*as_runs(numbers), *deleted.runs()])
    return gaps(known, max(first_told, 1), last)


def numbers_of(line: Mapping[str, Any]) -> tuple[int, int] | None:
    """The first and the last segment that a line of an index is about; None where it has no
    number. A line that says "deleted" can be about many."""
    first, last = line.get("first"), line.get("number")
    if type(last) is not int:
        return None
    if line.get("what") != "deleted" or type(first) is not int or first > last:
        return last, last
    return first, last


class Deleted:
    """The numbers of one capture that its index calls deleted, from its lines in their order.

    A line that is about many is weaker than any other line of a number: it stands for numbers that
    have no other line. there: the numbers with a line that is no deletion, and none after it.
    """

    def __init__(self) -> None:
        self.there: set[int] = set()
        self._runs: list[tuple[int, int]] = []

    def add(self, line: Mapping[str, Any], first: int, last: int) -> None:
        """A line about these numbers; see numbers_of()."""
        if line.get("what") != "deleted":
            self.there.add(last)
            return
        if first == last:
            self.there.discard(last)
        if self._runs and self._runs[-1][1] == first - 1:
            self._runs[-1] = self._runs[-1][0], last
        else:
            self._runs.append((first, last))

    def runs(self) -> list[tuple[int, int]]:
        """First and last number of each run, sorted."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(self._runs):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first, last))
        there, found = sorted(self.there), []
        for first, last in merged:
            inside = there[bisect_left(there, first) : bisect_right(there, last)]
            found += gaps(as_runs(inside), first, last)
        return found


def as_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Each number as a run of one."""
    return [(number, number) for number in numbers]


def gaps(known: Iterable[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The runs from first to last of what is in no known run; these are sorted."""
    found = []
    for begin, end in known:
        if begin > last:
            break
        if begin > first:
            found.append((first, begin - 1))
        first = max(first, end + 1)
    return [*found, (first, last)] if first <= last else found


def suffix_of(folder: str | os.PathLike[str]) -> str:
    """That of the newest segment in a folder: it tells the format. FileError."""
    found = _segments_of(folder)
    if not found:
        raise FileError(f"no segments in {folder}", "name a file")
    return max(found, key=lambda one: (one.utc, one.number)).suffix


def _segments_of(folder: str | os.PathLike[str]) -> list[Segment]:
    try:
        return find_segments(folder)
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error.strerror}") from error


def read_index(folder: str | os.PathLike[str]) -> tuple[Iterator[dict[str, Any]], bool]:
    """The lines of a folder's index, and whether these are all; what is no JSON object is left out.
    """
    try:
        fd = os.open(Path(folder, INDEX), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _lines(b""), True
    data, start = _read_from(fd, 0)
    return _lines(data), not start


def read_more(index: int, at: int) -> tuple[Iterator[dict[str, Any]], int]:
    """As read_index(), the lines from this byte on; and where to read on later. index: a
    descriptor, which it closes."""
    data, start = _read_from(index, at)
    whole = data.rfind(b"\n") + 1
    return _lines(data[:whole]), start + whole


def _read_from(fd: int, at: int) -> tuple[bytes, int]:
    """The end of an index, from this byte on but at most MOST_INDEX_BYTES; where it begins.

    One that is shorter is another one: it is read from its beginning.
    """
    try:
        with open(fd, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.seek(max(at if at <= size else 0, size - MOST_INDEX_BYTES))
            return file.read(MOST_INDEX_BYTES), start
    except OSError:
        return b"", at


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for each in BytesIO(data):  # no list of all: they take twice their bytes
        if (line := parse_line(each)) is not None:
            yield line


def parse_line(data: bytes) -> dict[str, Any] | None:
    """A line of an index; None for what is too long or no JSON object."""
    if len(data) > MOST_INDEX_LINE:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
