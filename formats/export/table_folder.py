# SPDX-License-Identifier: Apache-2.0
"""Writes tables of several kinds as Parquet or Arrow files: one file for each kind, in a folder."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.reader import Records
from tcpkmon.formats.base.table_file import encodings, new_writer

_BUFFERED_BYTES_MAX = 64 << 20
_ROW_GROUP_ROWS = 1 << 18


def write_folder(
    records: Records, form: str, to: Path, is_file: bool = False, force: bool = False
) -> None:
    """Write the file to/KIND.FORM for each kind of table; `form` is parquet or arrow.

    is_file: `to` is the file for the only kind. An existing file is replaced only with `force`.
    Raises FileError, UsageError.
    """
    import_pyarrow(form.capitalize())
    with ExitStack() as stack:
        folder = None
        if not is_file:
            folder = _open_folder(to)
            stack.callback(os.close, folder)
        files = _Files(form, to, folder, force, stack)
        for tables in records.tables():
            files.add(tables)
        files.flush()


def _open_folder(path: Path) -> int:
    """A descriptor of the folder, which is made if it does not exist. FileError.

    No link is followed: who owns the folder above could point it anywhere.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise FileError(f"{path} is a symbolic link", "name the folder itself") from error
        raise FileError(f"cannot make {path}: {error.strerror}") from error


class _Files:
    """The files of write_folder(). Tables are buffered until they fill a row group.

    folder: the descriptor of the folder `to`; None where `to` is the only file. stack: completes
    the files, or removes them after an error.
    """

    def __init__(
        self, form: str, to: Path, folder: int | None, force: bool, stack: ExitStack
    ) -> None:
        self._form = form
        self._to = to
        self._folder = folder
        self._force = force
        self._stack = stack
        self._writers: dict[str, Any] = {}
        self._buffered: dict[str, list[Any]] = {}

    def add(self, tables: dict[str, Any]) -> None:
        """Add one table for each kind. Memory stays below _BUFFERED_BYTES_MAX."""
        for kind, table in tables.items():
            buffered = self._buffered.setdefault(kind, [])
            buffered.append(table)
            if sum(map(len, buffered)) >= _ROW_GROUP_ROWS:
                self._write(kind)
        sizes = {
            kind: sum(int(table.nbytes) for table in buffered)
            for kind, buffered in self._buffered.items()
        }
        while sum(sizes.values()) > _BUFFERED_BYTES_MAX:
            largest = max(sizes, key=lambda kind: sizes[kind])
            del sizes[largest]
            self._write(largest)

    def flush(self) -> None:
        """Write all buffered tables."""
        for kind in list(self._buffered):
            self._write(kind)

    def _write(self, kind: str) -> None:
        """Write the buffered tables of a kind as one row group."""
        table = import_pyarrow().concat_tables(self._buffered.pop(kind))
        path = self._to if self._folder is None else self._to / f"{kind}.{self._form}"
        try:
            if kind not in self._writers:
                self._writers[kind] = self._open(kind, path, table)
            self._writers[kind].write_table(table)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error}") from error

    def _open(self, kind: str, path: Path, table: Any) -> Any:
        if not (kind.isascii() and kind.isidentifier()):
            raise UsageError(f"the event {kind!r} cannot name a file", "choose others by --event")
        out = self._stack.enter_context(create_file(path, self._force, folder=self._folder))
        sink = import_pyarrow().OSFile(f"/proc/self/fd/{out.fileno()}", "wb")
        self._stack.enter_context(sink)
        writer = new_writer(self._form, sink, table.schema, encodings(table))
        self._stack.callback(writer.close)
        return writer
