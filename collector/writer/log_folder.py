# SPDX-License-Identifier: Apache-2.0
"""The folder of a Klogger log: one file a CPU, kernlog.dump.cpuN, as Klogger named them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from collector.writer.output_file import STDOUT, Output
from formats.base.errors import FileError, UsageError
from formats.klogger.logs import LOG_NAME

MODE = 0o750
NAME = "kernlog.dump.cpu"


class LogFolder:
    """Makes the folder if it does not exist; its parent must exist. FileError if it cannot.

    It follows no symbolic links. Only with `force` it replaces the files of an earlier log.
    """

    def __init__(self, path: str | Path, force: bool = False) -> None:
        self.path = str(path)
        self._force = force
        self._made = False
        self._outputs: dict[int, Output] = {}
        if self.path == STDOUT:
            raise UsageError("a Klogger log is a folder of files, not standard output", "name one")
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            self._make()
            return
        except OSError as error:
            raise FileError(f"cannot use {self.path}: {error.strerror}") from error
        if stat.S_ISLNK(status.st_mode):
            raise FileError(f"{self.path} is a symbolic link", "name the folder itself")
        if not stat.S_ISDIR(status.st_mode):
            raise FileError(f"{self.path} is not a folder", "a Klogger log is one: -o FOLDER")
        if not force and (old := self._old()):
            raise FileError(f"{self.path} holds a log already ({old[0]})", "use --force")

    def output(self, cpu: int) -> Output:
        """The file of a CPU. It has no name before begin(): see collector/writer/output_file.py."""
        made = Output(os.path.join(self.path, f"{NAME}{cpu}"), self._force)
        self._outputs[cpu] = made
        return made

    def clear(self) -> None:
        """With `force`, remove all files of an earlier log."""
        if self._force:
            for name in self._old():
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.path, name))

    def discard(self) -> None:
        """Remove what a log without begin() left. Files that began stay."""
        for output in self._outputs.values():
            output.discard()
        if self._made:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)

    def _old(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if LOG_NAME.match(name))

    def _make(self) -> None:
        try:
            os.mkdir(self.path, MODE)
        except FileNotFoundError:
            parent = os.path.dirname(self.path.rstrip("/")) or "."
            raise FileError(f"no such directory: {parent}", "make it first") from None
        except OSError as error:
            raise FileError(f"cannot make {self.path}: {error.strerror}") from error
        os.chmod(self.path, MODE)
        self._made = True
