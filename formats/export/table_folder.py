# SPDX-License-Identifier: Apache-2.0
"""Parquet or Arrow files of tables of several kinds: a file for each kind, in a folder."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from formats.base.arrow import import_pyarrow
from formats.base.errors import FileError, UsageError
from formats.base.files import already_there
from formats.base.reader import Records
from formats.export.table_file import encodings

_BUFFERED_BYTES_MAX = 64 << 20
_ROW_GROUP_ROWS = 1 << 18


def write_folder(
    records: Records, form: str, to: Path, single: bool = False, force: bool = False
) -> None:
    """Write to/KIND.FORM for each kind of table that there is; `form` is parquet or arrow.

    single: `to` is the one file, for the one kind that there may be. Nothing that is there is
    overwritten without `force`. Raises FileError, UsageError.
    """
    import_pyarrow(form.capitalize())
    if not single:
        try:
            to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make {to}: {error.strerror}") from error
    with _Files(form, to, single, force) as files:
        for piece in records.tables():
            files.add(piece)


class _Files:
    """The files of write_folder(); a context manager."""

    def __init__(self, form: str, to: Path, single: bool, force: bool) -> None:
        self._form = form
        self._to = to
        self._single = single
        self._force = force
        self._writers: dict[str, Any] = {}
        self._waiting: dict[str, list[Any]] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                for name in list(self._waiting):
                    self._flush(name)
        finally:
            for writer in self._writers.values():
                writer.close()

    def add(self, tables: dict[str, Any]) -> None:
        """Take the tables of a piece; they are written once there are enough rows of a kind."""
        for name, table in tables.items():
            waiting = self._waiting.setdefault(name, [])
            waiting.append(table)
            if sum(len(one) for one in waiting) >= _ROW_GROUP_ROWS:
                self._flush(name)
        sizes = {
            name: sum(int(table.nbytes) for table in tables)
            for name, tables in self._waiting.items()
        }
        while sum(sizes.values()) > _BUFFERED_BYTES_MAX:
            largest = max(sizes, key=lambda name: sizes[name])
            del sizes[largest]
            self._flush(largest)

    def _flush(self, name: str) -> None:
        table = import_pyarrow().concat_tables(self._waiting.pop(name))
        try:
            if name not in self._writers:
                self._writers[name] = self._open(name, table)
            self._writers[name].write_table(table)
        except OSError as error:
            raise FileError(f"cannot write {self._path(name)}: {error}") from error

    def _path(self, name: str) -> Path:
        return self._to if self._single else self._to / f"{name}.{self._form}"

    def _open(self, name: str, table: Any) -> Any:
        if not (name.isascii() and name.isidentifier()):
            raise UsageError(f"the event {name!r} cannot name a file", "choose others by --event")
        path = self._path(name)
        if path.is_symlink() or (path.exists() and not self._force):
            raise already_there(path)
        if self._form == "arrow":
            return import_pyarrow().ipc.new_file(str(path), table.schema)
        from pyarrow import parquet

        return parquet.ParquetWriter(path, table.schema, **encodings(table))
