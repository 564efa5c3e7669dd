# SPDX-License-Identifier: Apache-2.0
"""The folder of a capture that rotates: makes its segments hidden, and gives them their names.

A segment is a file, or for a log a folder with a file for each CPU. The writing thread has no right
to make any; collector/linux/deputy.py answers its requests there.
"""

from __future__ import annotations

import calendar
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tcpkmon.collector.linux.syscalls import c_string, call_libc
from tcpkmon.collector.writer.output_file import (
    CHECK,
    MODE,
    Owner,
    check_name,
    give_to,
    unpack_check,
)
from tcpkmon.collector.writer.output_folder import OutputFolder
from tcpkmon.collector.writer.own_files import Identity, append_line, has_name, identity
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import hidden, name_segment, parse_name

OPEN, SEAL, DROP, FILE = range(4)
"""Requests: make a hidden segment, give it its name, remove it; make a file in one of a log."""
LOG_SUFFIX = ".klog"
"""A segment of this name is a folder."""
LOG_NAME = "kernlog.dump.cpu"
"""The file of a CPU in it."""
GONE = "gone"
"""In the index: the segment was removed, moved or replaced before it got its name."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_MODE = 0o750
_RENAME_NOREPLACE = 1
_TRIES = 10
HANDOVER_S = 2.0
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_NO_FLAGS = frozenset({errno.EINVAL, errno.ENOSYS})


class SegmentFolder(OutputFolder):
    """See collector/writer/output_folder.py. owner: to whom the files belong, too."""

    def __init__(self, path: str | Path, owner: Owner | None = None) -> None:
        super().__init__(path, owner, "a capture that rotates")

    def answer(self, request: int, data: bytes) -> int:
        """Do what is asked; returns a descriptor: of what is new, else of the folder. OSError.

        data: of OPEN and DROP the segment's name; of SEAL its line for the index, with "file", the
        device and inode of the segment where they are known; of FILE the segment's name and the
        CPU, "NAME/0"; of CHECK such a name, or that of a segment, or "" for the folder.
        SEAL of a segment whose file is gone is FileNotFoundError; where its line says "gone" the
        line is added alone.
        """
        if request == CHECK:
            return self._look(*unpack_check(data))
        if request == SEAL:
            line = json.loads(data)
            known = line.pop("file", None)
            self._seal(_check(line["name"]), line, tuple(known) if known else None)
            return os.dup(self.fd)
        if request == FILE:
            segment, _, cpu = data.decode().rpartition("/")
            with inside(hidden(_check(segment)), self.fd) as folder:
                return self._make_file(f"{LOG_NAME}{int(cpu)}", folder)
        name = hidden(_check(data.decode()))
        if request == DROP:
            self._drop(name)
            return os.dup(self.fd)
        with suppress(FileNotFoundError):
            os.stat(data, dir_fd=self.fd, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, f"{data.decode()} exists")
        if not name.removesuffix(".part").endswith(LOG_SUFFIX):
            return self._make_file(name, self.fd)
        os.mkdir(name, _FOLDER_MODE, dir_fd=self.fd)
        fd = os.open(name, _FOLDER, dir_fd=self.fd)
        os.fchmod(fd, _FOLDER_MODE)
        give_to(fd, self._owner)
        return fd

    def _look(self, name: str, known: Identity) -> int:
        if not name:
            return check_name(self.path, identity(os.fstat(self.fd)))
        segment, _, cpu = name.partition("/")
        if not cpu:
            return check_name(hidden(_check(segment)), known, self.fd)
        with inside(hidden(_check(segment)), self.fd) as folder:
            return check_name(f"{LOG_NAME}{int(cpu)}", known, folder)

    def drop(self, name: str) -> None:
        """Remove a segment that has no beginning."""
        self._drop(hidden(_check(name)))

    def _make_file(self, name: str, folder: int) -> int:
        fd = os.open(name, _NEW, MODE, dir_fd=folder)
        keep_from_repair(fd)
        os.fchmod(fd, MODE)
        give_to(fd, self._owner)
        return fd

    def _drop(self, name: str) -> None:
        if not stat.S_ISDIR(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=self.fd)
            return
        with inside(name, self.fd) as folder:
            for inner in os.listdir(folder):
                os.unlink(inner, dir_fd=folder)
        os.rmdir(name, dir_fd=self.fd)

    def _seal(self, name: str, line: Mapping[str, Any], known: Identity | None) -> None:
        if line.get("what") != GONE:
            self._rename(name, known)
        with suppress(OSError):  # some file systems cannot sync a directory
            os.fsync(self.fd)
        with suppress(OSError):  # a full disk: the segment itself is whole
            append_line(self.fd, line, self._owner)


    def _rename(self, name: str, known: Identity | None) -> None:
        """Give a segment its name. FileNotFoundError where nothing, or another file, has its hidden
        name."""
        part = hidden(name)
        if name.endswith(LOG_SUFFIX):
            with suppress(OSError), inside(part, self.fd) as folder:
                os.fsync(folder)
        if known is not None and has_name(name, self.fd, known):
            return  # the deputy before this one was killed when it had done that
        if known is not None and not has_name(part, self.fd, known):
            raise FileNotFoundError(errno.ENOENT, f"{part} is not there")
        try:
            rename_new(self.fd, part, name)
        except FileNotFoundError:
            if known is not None:
                raise
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)  # that one had done it, too


class Segments:
    """The segments of one capture, for its writing thread: names, and lines of the index.

    ask: see SegmentFolder.answer(). sealed: called with the name of each segment that got it, and
    which file that was; None: not known.
    """

    def __init__(self, host: str, suffix: str, ask: Callable[[int, bytes], int]) -> None:
        self.ask = ask
        self.sealed: Callable[[str, Identity | None], None] = lambda name, known: None
        self._made: dict[str, Identity] = {}
        """Of the segments that are not sealed."""
        self.capture = secrets.token_hex(16)
        """What the segments of one capture have in common."""
        self.name = ""
        """Of the segment that is written now."""
        self._host, self._suffix = host, suffix
        self.next = ""
        """Of the segment that open() made."""
        self._latest_ns = 0
        self._before = (0, 0)
        self._unsealed: list[Mapping[str, Any]] = []
        self.gone: dict[str, int] = {}
        """By name, the segments that were gone when they got their end; and their records."""

    def resume(
        self, capture: str, name: str, before: tuple[int, int], older: Sequence[str], fd: int = -1
    ) -> None:
        """Go on with a capture's last segment. before: records, lost numbers in the earlier ones;
        older: those of them that are to be sealed; fd: of the segment."""
        self.capture, self.name, self._before = capture, name, before
        if fd >= 0:
            self._made[name] = identity(os.fstat(fd))
        for one in older:
            self._unsealed.append({**self._line(one), "why": "its process was killed"})
        found = parse_name(name)
        assert found is not None
        self._latest_ns = calendar.timegm(time.strptime(found.utc, "%Y%m%dT%H%M%SZ")) * 10**9

    def open(self, number: int, realtime_ns: int) -> int:
        """Make the next segment, which is hidden; its descriptor. FileError or OSError.

        Its name has no earlier time than the last one's, though the clock may have been set back,
        and a later second where one of another capture has the name.
        """
        self._latest_ns = max(realtime_ns, self._latest_ns)
        for _ in range(_TRIES):
            self.next = name_segment(self._host, self._latest_ns, number, self._suffix)
            try:
                fd = self.ask(OPEN, self.next.encode())
                self._made[self.next] = identity(os.fstat(fd))
                return fd
            except (FileError, OSError) as error:
                # In the deputy's words, where it was the deputy.
                if is_absent(error):
                    raise FolderGone(self.next) from error
                if not isinstance(error.__cause__ or error, FileExistsError):
                    raise
            self._latest_ns += 1_000_000_000
        raise FileError(f"{self.next} exists")

    def open_file(self, cpu: int, is_next: bool = False) -> int:
        """Make a CPU's file of the segment that is written now, or of the next one; its
        descriptor. FileError or OSError."""
        return self.ask(FILE, f"{self.next if is_next else self.name}/{cpu}".encode())

    @contextmanager
    def beginning(self, folder: SegmentFolder, realtime_ns: int) -> Iterator[int]:
        """The descriptor of the first segment, which this thread makes itself. FileError.

        Nothing of it stays when the `with` block fails.
        """
        asked, self.ask = self.ask, folder.answer
        try:
            with ExitStack() as undo:
                fd = self.open(1, realtime_ns)
                undo.callback(self.drop)
                self.begin()
                yield fd
                undo.pop_all()
        except OSError as error:
            raise FileError(f"cannot write into {folder.path}: {error.strerror}") from error
        finally:
            self.ask = asked

    def previous(
        self, written: Written, released: Mapping[int, tuple[int, int]], evicted: bool = False
    ) -> dict[str, Any]:
        """What the header of the next segment says of those before. released: by CPU, the last
        serial and how many up to it were lost (Queues.released()). evicted: they were never
        written."""
        return {
            **({"name": "", "evicted": True} if evicted else {"name": self.name}),
            "last_seq": written.last_seq,
            "entries": written.entries,
            "checkpoints": written.checkpoints,
            "serials": {str(cpu): serial for cpu, (serial, _) in released.items()},
            "lost": {str(cpu): lost for cpu, (_, lost) in released.items() if lost},
            "skipped": written.skipped,
        }

    def describe(
        self, settings: Mapping[str, Any], number: int, previous: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """A header's settings with those of a segment."""
        segment = {"capture": self.capture, "number": number, "previous": previous}
        return {**settings, "segment": segment}

    def drop(self) -> None:
        """Remove the next segment: it was not begun."""
        self._made.pop(self.next, None)
        with suppress(OSError, FileError):
            os.close(self.ask(DROP, self.next.encode()))

    def begin(self, records: int | None = None) -> None:
        """The next segment is the one that is written now.

        records: how many Written counts that earlier files hold; without it, as the last one ended.
        """
        self.name = self.next
        if records is not None:
            self._before = records, 0

    def seal(
        self, written: Written, size_bytes: int, why: str, is_gone: bool = False
    ) -> None:
        """Give the segment that was written its name; see Written.rotation_error.

        Where that fails it is tried again with the next one. is_gone: its file is not there any
        more. The index says so then, and nothing is tried again.
        """
        records, lost = written.in_file.total(), written.lost
        line = {
            **self._line(self.name),
            "number": written.segment,
            "records": records - self._before[0],
            "lost": lost - self._before[1],
            "bytes": size_bytes,
            "why": why,
        }
        self._before = records, lost
        self._unsealed.append(line)
        if is_gone:
            self._is_gone(line)
        written.rotation_error = None
        for each in list(self._unsealed):
            try:
                self._seal(each)
            except (OSError, FileError) as error:
                written.rotation_error = error
                if not isinstance(error.__cause__ or error, FileExistsError):
                    break

    def _seal(self, line: Mapping[str, Any]) -> None:
        """Give a segment its name. OSError, FileError."""
        name = line["name"]
        try:
            os.close(self.ask(SEAL, json.dumps({**line, "file": self._made.get(name)}).encode()))
        except (OSError, FileError) as error:
            if not is_absent(error):
                raise
            self._is_gone(line)
            return
        self._unsealed.remove(line)
        self.sealed(name, self._made.pop(name, None))

    def _is_gone(self, line: Mapping[str, Any]) -> None:
        """Count a segment that is not there any more, and say so in the index."""
        self._unsealed.remove(line)
        self._made.pop(line["name"], None)
        self.gone[line["name"]] = line.get("records", 0)
        with suppress(OSError, FileError):
            os.close(self.ask(SEAL, json.dumps({**line, "what": GONE}).encode()))

    @property
    def unsealed(self) -> list[str]:
        """Segments that have their end, but not their name."""
        return [str(line["name"]) for line in self._unsealed]

    def _line(self, name: str) -> dict[str, Any]:
        """The beginning of a line in the index."""
        found = parse_name(name)
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "what": "sealed",
            "name": name,
            "capture": self.capture,
            "number": found.number if found is not None else 0,
        }


class FolderGone(FileError):
    """The folder of the segments was removed: no file can be made in it any more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"cannot make {name}: the folder was removed while the capture ran",
                         "start the capture again: it makes the folder")  # fmt: skip


def is_absent(error: Exception) -> bool:
    """Whether an answer says that what was asked for is not there: that does not change again."""
    cause = error.__cause__ or error
    return isinstance(cause, OSError) and cause.errno in _ABSENT


@contextmanager
def inside(name: str, parent: int) -> Iterator[int]:
    """The descriptor of a folder in another, which no link leads to."""
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


def keep_from_repair(fd: int) -> bool:
    """Until it is closed: see collector/daemon/repairing.py. Some file systems have no locks.

    False where another process still has it open to write: one that was killed does not end while
    a disk stands still.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def take_over_file(fd: int, name: str) -> None:
    """keep_from_repair() of a file that another process began. FileError where that one is there
    after HANDOVER_S."""
    until_s = time.monotonic() + HANDOVER_S
    while not keep_from_repair(fd):
        if time.monotonic() > until_s:
            raise FileError(f"{name}: the process that wrote it has not ended")
        time.sleep(0.01)


def write_first(fd: int, data: bytes) -> None:
    """Write a file's first bytes, and put them on the disk. OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def rename_new(folder: int, old: str, new: str) -> None:
    """Rename a file or folder in a folder; FileExistsError if something has the new name."""
    try:
        call_libc("renameat2", folder, c_string(old), folder, c_string(new), _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            raise
        # A file system without that flag.
        with suppress(FileNotFoundError):
            os.stat(new, dir_fd=folder, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def _check(name: str) -> str:
    found = parse_name(name)
    if found is None or not found.sealed or found.archived:
        raise FileError(f"{name!r} is not the name of a segment")
    return name
