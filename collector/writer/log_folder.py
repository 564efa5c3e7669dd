# SPDX-License-Identifier: Apache-2.0
"""The folder of a Klogger log: one file a CPU, kernlog.dump.cpuN, as Klogger named them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tcpkmon.collector.writer.output_file import (
    CHECK,
    Output,
    Owner,
    check_name,
    unpack_check,
)
from tcpkmon.collector.writer.output_folder import OutputFolder
from tcpkmon.collector.writer.segment_folder import LOG_NAME
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.klogger.logs import LOG_NAME as KNOWN_NAME


class LogFolder(OutputFolder):
    """See collector/writer/output_folder.py. Only with `force` it replaces an earlier log's files.

    owner: to whom the files belong, too.
    """

    def __init__(
        self, path: str | Path, force: bool = False, owner: Owner | None = None
    ) -> None:
        self._force = force
        self._outputs: dict[int, Output] = {}
        super().__init__(path, owner, "a Klogger log")

    def check(self) -> None:
        if not self.made and not self._force and (old := self._old()):
            raise FileError(f"{self.path} holds a log already ({old[0]})", "use --force")

    def output(self, cpu: int) -> Output:
        """The file of a CPU. It has no name before begin(): see collector/writer/output_file.py."""
        path = os.path.join(self.path, f"{LOG_NAME}{cpu}")
        made = Output(path, self._force, owner=self._owner, folder=self.fd)
        self._outputs[cpu] = made
        return made

    def answer(self, request: int, data: bytes) -> int:
        """Make the file of a CPU with its first bytes; its descriptor. Or CHECK: of the file that
        has the name in what now has the folder's path."""
        if request == CHECK:
            name, known = unpack_check(data)
            return check_name(os.path.join(self.path, f"{LOG_NAME}{int(name)}"), known)
        output = self.output(request)
        output.begin(data)
        return output.fd

    def clear(self) -> None:
        """With `force`, remove all files of an earlier log."""
        if self._force:
            for name in self._old():
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.fd)

    def remove(self) -> None:
        """Remove its logs, and the folder if nothing else is in it."""
        self.clear()
        self.made = True
        self.discard()

    def discard(self) -> None:
        """Remove what a log without begin() left, and close the folder. Files that began stay."""
        for output in self._outputs.values():
            output.discard()
        super().discard()

    def _old(self) -> list[str]:
        return sorted(name for name in os.listdir(self.fd) if KNOWN_NAME.match(name))
