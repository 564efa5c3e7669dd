# SPDX-License-Identifier: Apache-2.0
"""Writes tables of several kinds as Parquet or Arrow files: one file for each kind, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from formats.base.arrow import import_pyarrow
from formats.base.closing import Closing
from formats.base.errors import FileError, UsageError
from formats.base.files import already_there
from formats.base.reader import Records
from formats.export.table_file import encodings

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
    if not is_file:
        try:
            to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make {to}: {error.strerror}") from error
    with _Files(form, to, is_file, force) as files:
        for tables in records.tables():
            files.add(tables)
        files.flush()


class _Files(Closing):
    """The files of write_folder(). Tables are buffered until they fill a row group."""

    def __init__(self, form: str, to: Path, is_file: bool, force: bool) -> None:
        self._form = form
        self._to = to
        self._is_file = is_file
        self._force = force
        self._writers: dict[str, Any] = {}
        self._buffered: dict[str, list[Any]] = {}

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

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
        path = self._to if self._is_file else self._to / f"{kind}.{self._form}"
        try:
            if kind not in self._writers:
                self._writers[kind] = self._open(kind, path, table)
            self._writers[kind].write_table(table)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error}") from error

    def _open(self, kind: str, path: Path, table: Any) -> Any:
        if not (kind.isascii() and kind.isidentifier()):
            raise UsageError(f"the event {kind!r} cannot name a file", "choose others by --event")
        if path.is_symlink() or (path.exists() and not self._force):
            raise already_there(path)
        if self._form == "arrow":
            return import_pyarrow().ipc.new_file(str(path), table.schema)
        from pyarrow import parquet

        return parquet.ParquetWriter(path, table.schema, **encodings(table))
