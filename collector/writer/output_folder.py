# SPDX-License-Identifier: Apache-2.0
"""A folder that a capture writes into, held by its descriptor."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from tcpkmon.collector.linux.trusted_files import open_folder
from tcpkmon.collector.writer.output_file import STDOUT, Owner, give_to, trusted_users
from tcpkmon.formats.base.errors import FileError, UsageError

MODE = 0o750


class OutputFolder:
    """Makes the folder if it does not exist; its parent must exist. FileError if it cannot.

    It follows no symbolic link but those of open_folder() above it, and uses the same folder even
    if another user puts something else in its place. owner: to whom the folder belongs if it is
    made. what: what it is for, for people.
    """

    def __init__(self, path: str | Path, owner: Owner | None, what: str) -> None:
        self.path = str(path)
        self._owner = owner
        self._what = what
        self.made = False
        if self.path == STDOUT:
            raise UsageError(f"{what} is a folder of files, not standard output", "name one")
        parent, self._name = os.path.split(self.path.rstrip("/") or "/.")
        self._open_files = ExitStack()
        with ExitStack() as undo:
            undo.callback(self._open_files.close)
            self._parent = self._open(parent or ".", None)
            self.made = self._make()
            self.fd = self._open(self._name, self._parent)
            """Of the folder."""
            if self.made:
                os.fchmod(self.fd, MODE)
                give_to(self.fd, owner)
            self.check()
            undo.pop_all()

    def check(self) -> None:
        """FileError for a folder that cannot be used."""

    def answer(self, request: int, data: bytes) -> int:
        """Make a file in it; its descriptor. OSError, FileError."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove what is replaced."""

    def discard(self) -> None:
        """Close the folder; remove it if it was made and nothing is in it."""
        if self.made:
            with suppress(OSError):
                os.rmdir(self._name, dir_fd=self._parent)
        self._open_files.close()

    def _make(self) -> bool:
        try:
            os.mkdir(self._name, MODE, dir_fd=self._parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise FileError(f"cannot make {self.path}: {error.strerror}") from error
        return True

    def _open(self, name: str, parent: int | None) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            if parent is None:
                fd = open_folder(name, trusted_users())
            else:
                fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            raise self._failed(error, name, parent) from error
        self._open_files.callback(os.close, fd)
        return fd

    def _failed(self, error: OSError, name: str, parent: int | None) -> FileError:
        if parent is None:
            if error.errno == errno.ENOENT:
                return FileError(f"no such directory: {name}", "make it first")
            return FileError(f"cannot use {name}: {error.strerror}")
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            return FileError(f"cannot use {self.path}: {error.strerror}")
        with suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                return FileError(f"{self.path} is a symbolic link", "name the folder itself")
        return FileError(f"{self.path} is not a folder", f"{self._what} is one: -o FOLDER")
