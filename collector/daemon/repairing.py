# SPDX-License-Identifier: Apache-2.0
"""Repairs the segments that a killed capture left without their end.

    isolated.py collector.daemon.repairing FOLDER NAME...

NAME: as the segment is called once it is sealed. It reads what may be damaged, so it is a process
of its own that may write in that folder alone. Another user may write there, too: a file is opened
once, by open_own(), and what was opened is repaired, with its owner and mode.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tcpkmon.collector.linux.trusted_files import open_no_link
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.collector.writer.own_files import append_line, has_name, identity, open_own
from tcpkmon.collector.writer.segment_folder import LOG_SUFFIX, keep_from_repair, rename_new
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import FileError, TcpkmonError
from tcpkmon.formats.base.segments import Segment, find_segments, hidden, parse_name

_WORK, _MADE = ".{}.mending", ".{}.mended"


def mend(folder: Path, names: list[str]) -> None:
    """Repair these segments, and give them their names."""
    from tcpkmon.collector.linux.privileges import settle

    fd = open_no_link(os.fspath(folder), os.O_RDONLY | os.O_DIRECTORY, trusted_users())
    with ExitStack() as opened:
        opened.callback(os.close, fd)
        settle(("CAP_DAC_OVERRIDE", "CAP_CHOWN"), folders=[fd])
        _clear(fd)
        for one in find_segments(fd):
            if one.sealed or one.name not in names:
                continue
            with ExitStack() as stack, suppress(BlockingIOError):  # a capture writes it
                try:
                    left = _Left(one, fd, stack)
                    if left.is_empty:
                        left.remove()
                    else:
                        _repair(left, fd, folder)
                except BlockingIOError:
                    raise
                except (TcpkmonError, OSError) as error:
                    why = (isinstance(error, OSError) and error.strerror) or str(error)
                    say(f"tcpkmon daemon: {one.path(folder)} cannot be repaired: {why}")


class _Left:
    """What a capture left of a segment: a file, or the folder of a log; open, and locked.

    OSError where it is something else, or may be: see open_own(). BlockingIOError where a capture
    has it. `stack` closes it.
    """

    def __init__(self, segment: Segment, folder: int, stack: ExitStack) -> None:
        self.segment, self._folder = segment, folder
        self.is_log = segment.suffix == LOG_SUFFIX
        self.fd = self._open(hidden(segment.name), folder, stack, self.is_log)
        self.status = os.fstat(self.fd)
        self.files: dict[str, os.stat_result] = {}
        """Of a log, by name; those without a byte are removed."""
        for name in os.listdir(self.fd) if self.is_log else ():
            found = os.fstat(self._open(name, self.fd, stack, False))
            if found.st_size:
                self.files[name] = found
            else:
                os.unlink(name, dir_fd=self.fd)

    @staticmethod
    def _open(name: str, folder: int, stack: ExitStack, is_folder: bool) -> int:
        fd = open_own(name, folder, is_folder=is_folder)
        stack.callback(os.close, fd)
        if not keep_from_repair(fd):
            raise BlockingIOError(errno.EAGAIN, "a capture writes it")
        return fd

    @property
    def is_empty(self) -> bool:
        """Whether its capture was killed before it was begun."""
        return not self.files if self.is_log else not self.status.st_size

    def remove(self) -> None:
        for name in self.files:
            os.unlink(name, dir_fd=self.fd)
        name = hidden(self.segment.name)
        if has_name(name, self._folder, identity(self.status)):
            (os.rmdir if self.is_log else os.unlink)(name, dir_fd=self._folder)


def _repair(left: _Left, fd: int, folder: Path) -> None:
    """Repair it in a folder of this process alone, and copy that to where it gets its name."""
    from tcpkmon.formats.registry import format_of

    name, made = left.segment.name, _MADE.format(left.segment.name)
    work, source = _WORK.format(name), f"/proc/self/fd/{left.fd}"
    with ExitStack() as stack:
        os.mkdir(work, 0o700, dir_fd=fd)
        inside = open_own(work, fd, is_folder=True)
        stack.callback(os.close, inside)
        stack.callback(_remove, work, fd, inside)
        keep_from_repair(inside)
        out = f"/proc/self/fd/{inside}/{name}"
        try:
            summary, report = format_of(source).repair(source, out)
        except TcpkmonError as error:
            raise FileError(error.message.replace(source, name)) from error
        size = _copy_log(left, out, made, fd) if left.is_log else _copy(out, made, fd, left.status)
        found = identity(os.stat(made, dir_fd=fd, follow_symlinks=False))
        rename_new(fd, made, name)
        if not has_name(name, fd, found):
            raise OSError(errno.EPERM, f"another file has the name {name} now")
    left.remove()
    say(f"tcpkmon daemon: {folder / name}, of a capture that was killed: {summary}")
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "what": "repaired",
        "name": name,
        "capture": report.part.capture if report.part is not None else "",
        "number": left.segment.number,
        "bytes": size,
        "why": "its capture was killed",
    }
    append_line(fd, line)
    if report.exit_code == 5:
        say(f"tcpkmon daemon: {folder / name} does not add up: tcpkmon verify says why")


def _copy_log(left: _Left, path: str, made: str, folder: int) -> int:
    os.mkdir(made, 0o700, dir_fd=folder)
    fd = open_own(made, folder, is_folder=True)
    try:
        keep_from_repair(fd)
        size = sum(_copy(f"{path}/{name}", name, fd, left.files[name]) for name in os.listdir(path))
        _give(fd, left.status)
    finally:
        os.close(fd)
    return size


def _copy(path: str, name: str, folder: int, like: os.stat_result) -> int:
    """Copy a file, which gets `like`'s owner and mode; its bytes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(path, "rb") as old, open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as new:
        keep_from_repair(new.fileno())
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        _give(new.fileno(), like)
        return os.fstat(new.fileno()).st_size


def _give(fd: int, like: os.stat_result) -> None:
    os.fchmod(fd, like.st_mode & 0o777)
    if like.st_uid != os.geteuid():
        os.fchown(fd, like.st_uid, like.st_gid)
    os.fsync(fd)


def _remove(name: str, folder: int, fd: int) -> None:
    """Remove an open folder with what is in it, if it has its name still. By name nothing is
    opened: another user may have put a pipe there."""
    with suppress(OSError):
        for inside in os.listdir(fd):
            try:
                os.unlink(inside, dir_fd=fd)
            except IsADirectoryError:
                below = open_own(inside, fd, is_folder=True)
                _remove(inside, fd, below)
                os.close(below)
        if has_name(name, folder, identity(os.fstat(fd))):
            os.rmdir(name, dir_fd=folder)


def _clear(folder: int) -> None:
    """Remove what was left of repairs that were killed."""
    for name in os.listdir(folder):
        for form in (_WORK, _MADE):
            _, _, ending = form.partition("{}")
            if parse_name(name[1:].removesuffix(ending)) is None or not name.endswith(ending):
                continue
            with suppress(OSError):
                is_folder = stat.S_ISDIR(
                    os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                )
                fd = open_own(name, folder, is_folder=is_folder)
                try:
                    if not keep_from_repair(fd):
                        continue
                    if is_folder:
                        _remove(name, folder, fd)
                    else:
                        os.unlink(name, dir_fd=folder)
                finally:
                    os.close(fd)


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        mend(folder, sys.argv[2:])
    except (TcpkmonError, OSError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        say(f"tcpkmon daemon: {folder} is not repaired: {why}")
        sys.exit(1)
