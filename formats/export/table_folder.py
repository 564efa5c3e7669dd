# SPDX-License-Identifier: Apache-2.0
"""Records of Klogger logs as Parquet: a file for each event, with typed columns and no holes."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import FileError, UsageError
from formats.klogger.batch import LogBatch
from formats.klogger.lines import CPU, SERIAL, TIME
from formats.klogger.table import LogEvent, LogField, LogFormat
from formats.klogger.values import describe_value, dictionary, import_pyarrow, mapped, native

_BUFFERED_BYTES_MAX = 64 << 20
_ROW_GROUP_ROWS = 1 << 18


class ParquetFiles:
    """Writes folder/EVENT.parquet for each event that occurs; a context manager.

    With `single` it is that one file, for the one event that there may be. clock: as in --time.
    Nothing that is there is overwritten without `force`. Raises FileError, UsageError.
    """

    def __init__(self, folder: Path, clock: str, single: bool = False, force: bool = False) -> None:
        import_pyarrow()
        self._folder = folder
        self._clock = clock
        self._single = single
        self._force = force
        self._writers: dict[str, Any] = {}
        self._waiting: dict[str, list[Any]] = {}
        if not single:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot make {folder}: {error.strerror}") from error

    def __enter__(self) -> ParquetFiles:
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

    def add(self, batch: LogBatch, times_ns: NDArray[np.int64]) -> None:
        """Take records; times_ns: (n,) of LogClock.times()."""
        pyarrow, _ = import_pyarrow()
        for event in batch.events():
            at = batch.where(event)
            rows = batch.rows(event, at)
            arrays = {
                TIME: self._times(times_ns[at]),
                SERIAL: pyarrow.array(batch.serials[at]),
                CPU: pyarrow.array(batch.cpus[at]),
            }
            for field in event.fields:
                name = f"field.{field.name}" if field.name in arrays else field.name
                arrays[name] = _column(batch.format, field, rows[field.name])
            table = pyarrow.table(arrays, metadata=_metadata(batch.format, event))
            waiting = self._waiting.setdefault(event.name, [])
            waiting.append(table)
            if sum(len(one) for one in waiting) >= _ROW_GROUP_ROWS:
                self._flush(event.name)
        sizes = {
            name: sum(int(table.nbytes) for table in tables)
            for name, tables in self._waiting.items()
        }
        while sum(sizes.values()) > _BUFFERED_BYTES_MAX:
            largest = max(sizes, key=lambda name: sizes[name])
            del sizes[largest]
            self._flush(largest)

    def _times(self, times_ns: NDArray[np.int64]) -> Any:
        pyarrow, _ = import_pyarrow()
        kinds = {"mono": pyarrow.int64(), "rel": pyarrow.duration("ns")}
        return pyarrow.array(times_ns).cast(
            kinds.get(self._clock, pyarrow.timestamp("ns", "UTC")), safe=False
        )

    def _flush(self, name: str) -> None:
        pyarrow, _ = import_pyarrow()
        table = pyarrow.concat_tables(self._waiting.pop(name))
        try:
            if name not in self._writers:
                self._writers[name] = self._open(name, table)
            self._writers[name].write_table(table)
        except OSError as error:
            raise FileError(f"cannot write {self._path(name)}: {error}") from error

    def _path(self, name: str) -> Path:
        return self._folder if self._single else self._folder / f"{name}.parquet"

    def _open(self, name: str, table: Any) -> Any:
        from pyarrow import parquet

        from formats.export.arrow_files import encodings
        from formats.pmgraph.output import already_there

        if not (name.isascii() and name.isidentifier()):
            raise UsageError(f"the event {name!r} cannot name a file", "choose others by --event")
        path = self._path(name)
        if path.is_symlink() or (path.exists() and not self._force):
            raise already_there(path)
        return parquet.ParquetWriter(path, table.schema, **encodings(table))


def _column(log: LogFormat, field: LogField, values: NDArray[Any]) -> Any:
    """Numbers as they are, enums by name, text and addresses as text, bytes as bytes."""
    pyarrow, _ = import_pyarrow()
    text = describe_value(log, field)
    if text is None:
        return pyarrow.array(native(values))
    encoded = dictionary(field, values)
    if field.kind == "bytes":
        return encoded.dictionary.take(encoded.indices)
    return mapped(encoded, text, pyarrow.string())


def _metadata(log: LogFormat, event: LogEvent) -> dict[str, str]:
    """What the log's header says, for the file of one event."""
    header = {key: value for key, value in log.header.items() if key not in ("events", "cpu")}
    return {"klogger.event": event.name, "klogger.header": json.dumps(header)}
