# SPDX-License-Identifier: Apache-2.0
"""Where the files end whose process was killed, so that another can go on with them.

The journal says it (collector/ring/notes.py). What is behind that in a file is cut off: those
records are in the rings still.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from contextlib import ExitStack
from typing import Protocol

from tcpkmon.collector.linux.trusted_files import open_no_link
from tcpkmon.collector.ring.notes import FileNote, Notes
from tcpkmon.collector.writer.codec import ALL, Codec, Left, Tail
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.collector.writer.own_files import is_own
from tcpkmon.collector.writer.segment_folder import (
    LOG_NAME,
    SegmentFolder,
    inside,
    take_over_file,
)
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments, hidden

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Open(Protocol):
    """Opens the file of a CPU; a descriptor."""

    def __call__(self, cpu: int) -> int: ...


def open_noted(
    segments: SegmentFolder | None, path: str, capture: str, notes: Notes, codec: Codec
) -> Tail:
    """Of a capture whose files are noted. segments: of one that rotates; else its path.

    A later segment, which has no beginning, is removed. FileError where there is nothing to go on
    with, OSError.
    """
    if segments is None:
        if not codec.per_cpu:
            return _open(lambda _: open_no_link(path, _FILE, trusted_users()), path, notes, codec)
        folder = open_no_link(path, _FOLDER, trusted_users())
        try:
            return _open(_files_of(folder), path, notes, codec)
        finally:
            os.close(folder)
    name = notes.name
    found = [
        one for one in find_segments(segments.fd) if not one.sealed and one.suffix == codec.suffix
    ]
    number = next((one.number for one in found if one.name == name), 0)
    if not number:
        raise FileError("its last file is not there")
    for one in found:
        if one.number == number + 1:
            segments.drop(one.name)
    if codec.per_cpu:
        with inside(hidden(name), segments.fd) as folder:
            tail = _open(_files_of(folder), name, notes, codec)
    else:
        there = segments.fd
        tail = _open(lambda _: os.open(hidden(name), _FILE, dir_fd=there), name, notes, codec)
    tail.capture, tail.name, tail.number = capture, name, number
    tail.older = [one.name for one in found if one.number == number - 1]
    return tail


def _files_of(folder: int) -> _Open:
    """Opens files of a log in this folder."""

    def open_file(cpu: int) -> int:
        fd = os.open(f"{LOG_NAME}{cpu}", _FILE, dir_fd=folder)
        if not is_own(os.fstat(fd), os.fstat(folder)):
            os.close(fd)
            raise FileError(f"CPU {cpu}: its file is another user's, or has another name")
        return fd

    return open_file


def _open(open_file: _Open, path: str, notes: Notes, codec: Codec) -> Tail:
    now = notes.now()
    if now is None:
        raise FileError(f"{path}: nothing is known of its files")
    segment, counted = now
    written = Written(**vars(counted), segment=segment.segment)
    known: Counter[int] = Counter()
    for column, place, count in notes.counts():
        counts = written.in_file if column == "in_file" else written.drops[column]
        counts[place] += count
        known[place[0]] += count
    with ExitStack() as undo:
        files = {}
        for cpu, note in notes.files().items():
            what = f"{path}, CPU {cpu}" if codec.per_cpu else path
            fd = open_file(cpu)
            undo.callback(os.close, fd)
            _check(fd, note, what)
            files[cpu] = Left(fd, note.end_bytes, codec.open_state(note.state, fd, note.end_bytes))
        if not codec.per_cpu and files.keys() != {ALL}:
            raise FileError(f"{path}: nothing is known of its end")
        undo.pop_all()
    released = {cpu: (serial, serial - known[cpu]) for cpu, serial in notes.released().items()}
    return Tail(
        files, path, os.path.basename(path), written, released, Counter(notes.late()),
        Counter(notes.killed()), notes.offset_ns, before=(segment.records, segment.lost),
    )  # fmt: skip


def _check(fd: int, note: FileNote, what: str) -> None:
    """FileError where a file cannot be gone on with."""
    there = os.fstat(fd)
    if not stat.S_ISREG(there.st_mode) or there.st_size < note.end_bytes:
        raise FileError(f"{what}: it is shorter than what was noted")
    take_over_file(fd, what)
