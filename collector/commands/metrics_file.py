# SPDX-License-Identifier: Apache-2.0
"""The file for node_exporter: written by who owns its folder, and by descriptor."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tcpkmon.collector.linux.deputy import Deputy
from tcpkmon.collector.linux.privileges import User, settle
from tcpkmon.collector.linux.trusted_files import open_folder
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.files import create_file

_MODE = 0o644


class TextFile(Closing):
    """A file that write() replaces in one step. Make it while there is one thread alone.

    As root, a process of its own writes it: it is the owner of the folder, without capabilities,
    and writes in that folder alone. So this process may become anybody. FileError where the folder
    is none, or another user's link leads to it.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self._folder = open_folder(str(self._path.parent))
        except OSError as error:
            raise FileError(f"{self._path.parent}: {error.strerror}", "make it first") from error
        self._deputy: Deputy | None = None
        if os.geteuid() == 0:
            status = os.fstat(self._folder)
            owner = User(status.st_uid, status.st_gid)
            self._deputy = Deputy(
                self._write,
                at_end=lambda: None,
                settle=partial(settle, user=owner, folders=[self._folder], forks=True),
                keep=[self._folder],
            )

    def write(self, text: bytes) -> None:
        """Replace the file, which all may read. FileError."""
        try:
            ask = self._deputy.open_file if self._deputy is not None else self._write
            os.close(ask(0, text))
        except FileError as error:
            hint = "the folder's owner must be able to write there"
            raise FileError(error.message, hint) from error

    def close(self) -> None:
        if self._deputy is not None:
            self._deputy.close()
        os.close(self._folder)

    def _write(self, _: int, text: bytes) -> int:
        with create_file(self._path, force=True, mode=_MODE, folder=self._folder) as out:
            out.write(text)
            return os.dup(out.fileno())
