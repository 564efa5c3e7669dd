# SPDX-License-Identifier: Apache-2.0
"""The output file. It gets its name only when its header and first entry are on the disk."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.linux.machine import read_sudo
from tcpkmon.collector.linux.trusted_files import open_folder
from tcpkmon.collector.writer.file_sink import Calls
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.files import hidden_name

MODE = 0o640
CHECK = 0xFFFF_FFFF
"""The request that makes no file: is the file, which is written, still under its name? Data: see
pack_check()."""
STDOUT = "-"
# Errors without O_TMPFILE in the file system, or without /proc to link from.
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
_TRIES = 100


@dataclass(frozen=True)
class Owner:
    """To whom a file belongs; gid -1: the group stays."""

    uid: int
    gid: int = -1


def find_owner(environment: Mapping[str, str] = os.environ) -> Owner | None:
    """The user who called sudo; None for root, or without sudo. Then files belong to this user."""
    try:
        ids = read_sudo(environment)
    except ValueError:
        return None
    if os.geteuid() != 0 or ids is None or ids[0] == 0:
        return None
    return Owner(ids[0], -1 if ids[1] is None else ids[1])


def trusted_users() -> set[int]:
    """Whose links root follows, beside its own: those of the user who called sudo."""
    owner = find_owner()
    return {owner.uid} if owner is not None else set()


def give_to(fd: int, owner: Owner | None) -> None:
    """Change the owner of an open file or folder, where its file system allows that."""
    if owner is not None:
        with contextlib.suppress(PermissionError):
            os.fchown(fd, owner.uid, owner.gid)


def pack_check(name: str, known: tuple[int, int]) -> bytes:
    """The data of CHECK. name: of a file in the output, "" for the output itself; known: device and
    inode of what is written."""
    return json.dumps([name, *known]).encode()


def unpack_check(data: bytes) -> tuple[str, tuple[int, int]]:
    """What pack_check() packed."""
    name, device, inode = json.loads(data)
    return str(name), (int(device), int(inode))


def check_name(path: str, known: tuple[int, int], folder: int | None = None) -> int:
    """A descriptor of nothing (/dev/null) where this file has the name. OSError: ENOENT where
    nothing has it, or something else. folder: a descriptor of the folder of a relative path."""
    found = os.stat(path, dir_fd=folder, follow_symlinks=False)
    if (found.st_dev, found.st_ino) != known:
        raise FileNotFoundError(errno.ENOENT, f"another file has the name {path}")
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class Output:
    """A file to write, or with "-" standard output. FileError when that is not possible.

    The constructor checks the name, so make an Output early. begin() writes the file's first
    bytes; then use its `fd`. Before begin(), nothing has the name, and discard() removes
    everything. It follows no symbolic link but those of open_folder() above it. Only with `force`
    it replaces a file: the old one is there until the new one has its first bytes. owner: to whom
    the file belongs, this process's user without it. folder: a descriptor of the path's folder,
    which another user may replace.
    """

    def __init__(
        self,
        path: str | Path,
        force: bool = False,
        calls: Calls | None = None,
        owner: Owner | None = None,
        folder: int | None = None,
    ) -> None:
        self.path = str(path)
        self._owner = owner
        self._calls = calls or Calls()
        self._force = force
        self._temporary: str | None = None
        self._begun = False
        self._directory = -1
        self.fd = -1
        """The descriptor, positioned after what begin() wrote. Then the caller closes it."""
        self.is_stdout = self.path == STDOUT
        if self.is_stdout:
            self._open_stdout()
            return
        above, self._name = os.path.split(self.path)
        if not self._name:
            raise FileError(f"{self.path} is not the name of a file")
        try:
            self._directory = (
                open_folder(above or ".", trusted_users())
                if folder is None
                else os.dup(folder)
            )
        except OSError as error:
            raise self._failed(error, folder=True) from error
        try:
            self._check_name()
            self._open()
        except OSError as error:
            self.discard()
            raise self._failed(error) from error
        except FileError:
            self.discard()
            raise

    @property
    def folder(self) -> int:
        """A descriptor of the file's folder, before begin()."""
        return self._directory

    def begin(self, first: bytes) -> None:
        """Write the first bytes, put them on the disk, and give the file its name."""
        try:
            self._write(first)
            if self.is_stdout:
                self._begun = True
                return
            self._calls.fsync(self.fd)
            self._publish()
            with contextlib.suppress(OSError):  # some file systems cannot sync a directory
                self._calls.fsync(self._directory)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and self.is_stdout:
                raise
            failed = self._failed(error)
            self.discard()
            raise failed from error
        except FileError:
            self.discard()
            raise
        self._close_directory()
        self._begun = True

    def answer(self, request: int, data: bytes) -> int:
        """begin() the file of all CPUs with its first bytes; its descriptor. Or CHECK."""
        if request == CHECK:
            return os.dup(1) if self.is_stdout else check_name(self.path, unpack_check(data)[1])
        self.begin(data)
        return self.fd

    def clear(self) -> None:
        """begin() replaces what is there."""

    def discard(self) -> None:
        """Close and remove the file; no effect after begin()."""
        if self._begun:
            return
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._calls.unlink(self._temporary, dir_fd=self._directory)
            self._temporary = None
        self._close_directory()
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                self._calls.close(self.fd)
            self.fd = -1

    def _open_stdout(self) -> None:
        try:
            if os.isatty(sys.__stdout__.fileno() if sys.__stdout__ else 1):
                raise FileError(
                    "standard output is a terminal", "pipe it or redirect it, or give -o FILE"
                )
            self.fd = os.dup(1)
        except OSError as error:
            raise self._failed(error) from error

    def _check_name(self) -> None:
        """FileError if something has the name that must not be replaced."""
        try:
            there = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(there.st_mode):
            raise FileError(f"{self.path} is a symbolic link", "name the file itself")
        if stat.S_ISDIR(there.st_mode):
            raise FileError(f"{self.path} is a directory", "name a file in it")
        if not stat.S_ISREG(there.st_mode):
            raise FileError(f"{self.path} is not a regular file", "use -o - and redirect")
        if not self._force:
            raise FileError(f"{self.path} exists", "use --force to replace it")

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            self.fd = self._calls.open(".", flags | os.O_TMPFILE, MODE, dir_fd=self._directory)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            self._open_temporary(flags)
        # Whatever the umask is.
        self._calls.fchmod(self.fd, MODE)
        give_to(self.fd, self._owner)

    def _open_temporary(self, flags: int) -> None:
        """Open a hidden file in the same directory, where there is no O_TMPFILE."""

        def create(name: str) -> None:
            self.fd = self._calls.open(
                name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE, dir_fd=self._directory
            )

        self._name_temporary(create)

    def _name_temporary(self, make: Callable[[str], None]) -> None:
        """Call `make` with hidden names until one does not exist yet."""
        for number in range(_TRIES):
            name = hidden_name(self._name, f"{os.getpid()}.{number}")
            try:
                make(name)
            except FileExistsError:
                continue
            self._temporary = name
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                count = self._calls.write(self.fd, view)
            except InterruptedError:
                continue
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            view = view[count:]

    def _publish(self) -> None:
        if not self._force:
            self._link(self._name)
            if self._temporary is not None:
                self._calls.unlink(self._temporary, dir_fd=self._directory)
                self._temporary = None
            return
        self._check_name()
        if self._temporary is None:
            self._name_temporary(self._link)
        assert self._temporary is not None
        self._calls.rename(
            self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._temporary = None

    def _link(self, name: str) -> None:
        """Give the open file a name. FileExistsError if something has it."""
        if self._temporary is not None:
            self._calls.link(
                self._temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory
            )
            return
        # linkat(2) follows the link in /proc, but no link called `name`.
        self._calls.link(
            f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self._directory, follow_symlinks=True
        )

    def _close_directory(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _failed(self, error: OSError, folder: bool = False) -> FileError:
        """The error to raise: what failed, why, what to try."""
        where = (os.path.dirname(self.path) or ".") if folder else self.path
        if self.is_stdout:
            where = "standard output"
        why = os.strerror(error.errno) if error.errno else str(error)
        known = {
            errno.ENOENT: (f"no such directory: {where}", "make it first"),
            errno.ENOTDIR: (f"{where} is not a directory", "name a file in a directory"),
            errno.EEXIST: (f"{where} exists", "use --force to replace it"),
            errno.EACCES: (f"no permission to write {where}", "choose another place with -o"),
            errno.EPERM: (f"no permission to write {where}", "choose another place with -o"),
            errno.EROFS: (f"{where} is on a read-only file system", "choose another place with -o"),
            errno.ENOSPC: (f"no room on the disk for {where}", "make room or choose another place"),
            errno.EDQUOT: (f"no quota left for {where}", "make room or choose another place"),
        }
        message, hint = known.get(error.errno or 0, (f"cannot write {where}: {why}", ""))
        return FileError(message, hint)
