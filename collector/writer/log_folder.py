# SPDX-License-Identifier: Apache-2.0
"""The folder of a Klogger log: one file a CPU, kernlog.dump.cpuN, as Klogger named them."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from collector.writer.output_file import STDOUT, Output, Owner, give_to
from formats.base.errors import FileError, UsageError
from formats.klogger.logs import LOG_NAME

MODE = 0o750
NAME = "kernlog.dump.cpu"


class LogFolder:
    """Makes the folder if it does not exist; its parent must exist. FileError if it cannot.

    It follows no symbolic links, and uses the same folder even if another user puts something else
    in its place. Only with `force` it replaces the files of an earlier log. owner: to whom the
    files belong, and the folder if it is made.
    """

    def __init__(
        self, path: str | Path, force: bool = False, owner: Owner | None = None
    ) -> None:
        self.path = str(path)
        self._force = force
        self._owner = owner
        self._made = False
        self._outputs: dict[int, Output] = {}
        if self.path == STDOUT:
            raise UsageError("a Klogger log is a folder of files, not standard output", "name one")
        parent, self._name = os.path.split(self.path.rstrip("/") or "/.")
        self._open_files = ExitStack()
        with ExitStack() as undo:
            undo.callback(self._open_files.close)
            self._parent = self._open(parent or ".", None)
            self._made = self._make()
            self.fd = self._open(self._name, self._parent)
            """Of the folder."""
            if self._made:
                os.fchmod(self.fd, MODE)
                give_to(self.fd, owner)
            elif not force and (old := self._old()):
                raise FileError(f"{self.path} holds a log already ({old[0]})", "use --force")
            undo.pop_all()

    def output(self, cpu: int) -> Output:
        """The file of a CPU. It has no name before begin(): see collector/writer/output_file.py."""
        path = os.path.join(self.path, f"{NAME}{cpu}")
        made = Output(path, self._force, owner=self._owner, folder=self.fd)
        self._outputs[cpu] = made
        return made

    def clear(self) -> None:
        """With `force`, remove all files of an earlier log."""
        if self._force:
            for name in self._old():
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.fd)

    def discard(self) -> None:
        """Remove what a log without begin() left, and close the folder. Files that began stay."""
        for output in self._outputs.values():
            output.discard()
        if self._made:
            with suppress(OSError):
                os.rmdir(self._name, dir_fd=self._parent)
        self._open_files.close()

    def _old(self) -> list[str]:
        return sorted(name for name in os.listdir(self.fd) if LOG_NAME.match(name))

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
            fd = os.open(name, flags if parent is None else flags | os.O_NOFOLLOW, dir_fd=parent)
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
        return FileError(f"{self.path} is not a folder", "a Klogger log is one: -o FOLDER")
