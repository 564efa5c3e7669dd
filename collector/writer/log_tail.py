# SPDX-License-Identifier: Apache-2.0
"""Where the files of a log end whose process was killed, so that another can go on with them.

The journal says it (collector/ring/log_notes.py). What is behind that in a file is cut off: those
records are in the rings still.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from tcpkmon.collector.linux.trusted_files import open_no_link
from tcpkmon.collector.ring.log_notes import FileNote, LogNotes
from tcpkmon.collector.writer.codec import Left, Tail
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.collector.writer.own_files import is_own
from tcpkmon.collector.writer.segment_folder import (
    LOG_NAME,
    LOG_SUFFIX,
    SegmentFolder,
    take_over_file,
)
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments, hidden

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class LogState:
    """Where a CPU's file is: its last serial, the base events and dumps in it. before: the last of
    the kernel's serials in earlier segments."""

    last: int = 0
    inserted: int = 0
    dumps: int = 0
    before: int = 0


def open_log(path: str, notes: LogNotes) -> Tail:
    """Of a log that does not rotate. FileError, OSError."""
    folder = open_no_link(path, _FOLDER, trusted_users())
    try:
        return _open(folder, path, notes)
    finally:
        os.close(folder)


def open_log_segment(folder: SegmentFolder, capture: str, notes: LogNotes) -> Tail:
    """Of a capture's last segment. A later one, which has no beginning, is removed. FileError where
    there is none, OSError."""
    now = notes.now()
    name = now.name.decode() if now is not None else ""
    found = [
        one for one in find_segments(folder.fd) if not one.sealed and one.suffix == LOG_SUFFIX
    ]
    number = next((one.number for one in found if one.name == name), 0)
    if not number:
        raise FileError("its last log is not there")
    for one in found:
        if one.number == number + 1:
            folder.drop(one.name)
    inside = os.open(hidden(name), _FOLDER, dir_fd=folder.fd)
    try:
        tail = _open(inside, name, notes)
    finally:
        os.close(inside)
    tail.capture, tail.name = capture, name
    tail.older = [one.name for one in found if one.number == number - 1]
    return tail


def _open(folder: int, path: str, notes: LogNotes) -> Tail:
    now = notes.now()
    if now is None:
        raise FileError(f"{path}: nothing is known of its files")
    noted = notes.files(now.segment)
    written = Written(segment=now.segment, last_seq=now.last_seq)
    for column, place, count in notes.counts(now.segment):
        counts = written.in_file if column == "in_file" else written.drops[column]
        counts[place] += count
    written.entries = written.in_file.total()
    with ExitStack() as undo:
        files = {}
        for cpu, note in noted.items():
            fd = os.open(f"{LOG_NAME}{cpu}", _FILE, dir_fd=folder)
            undo.callback(os.close, fd)
            if not is_own(os.fstat(fd), os.fstat(folder)):
                raise FileError(f"{path}, CPU {cpu}: it is another user's, or has another name")
            _check(fd, note, f"{path}, CPU {cpu}")
            at = LogState(note.last, note.inserted, note.dumps, note.before)
            files[cpu] = Left(fd, note.end_bytes, at, note.serial)
        undo.pop_all()
    return Tail(
        files, path, os.path.basename(path), written, _released(noted, written),
        Counter(notes.late()), Counter(notes.killed()), notes.offset_ns,
        before=(now.records, now.lost),
    )  # fmt: skip


def _check(fd: int, note: FileNote, what: str) -> None:
    """FileError where a file cannot be gone on with."""
    there = os.fstat(fd)
    if not stat.S_ISREG(there.st_mode) or there.st_size < note.end_bytes:
        raise FileError(f"{what}: it is shorter than what was noted")
    take_over_file(fd, what)


def _released(
    noted: Mapping[int, FileNote], written: Written
) -> dict[int, tuple[int, int]]:
    """By CPU, the last serial and how many up to it were lost."""
    known: Counter[int] = Counter()
    for counts in (written.in_file, *written.drops.values()):
        for (cpu, _), count in counts.items():
            known[cpu] += count
    return {cpu: (note.serial, note.serial - known[cpu]) for cpu, note in noted.items()}
