# SPDX-License-Identifier: Apache-2.0
"""Records of Klogger logs as pyarrow tables: one for each event, with typed columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.arrow import encode, fixed, import_pyarrow, plain, with_texts
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.lines import CPU, SERIAL, TIME
from tcpkmon.formats.klogger.table import LogEvent, LogField, LogFormat, native


def make_tables(batch: LogBatch, times_ns: NDArray[np.int64], clock: str) -> dict[str, Any]:
    """A table for each event name in the batch.

    times_ns: (n,) of LogClock.times(). clock: as in --time.
    """
    pyarrow = import_pyarrow()
    tables = {}
    for event in batch.events():
        at = batch.where(event)
        rows = batch.rows(event, at)
        arrays = {
            TIME: _times(times_ns[at], clock),
            SERIAL: pyarrow.array(batch.serials[at]),
            CPU: pyarrow.array(batch.cpus[at]),
        }
        for field in event.fields:
            name = f"field.{field.name}" if field.name in arrays else field.name
            arrays[name] = _column(batch.format, field, rows[field.name])
        tables[event.name] = pyarrow.table(arrays, metadata=_metadata(batch.format, event))
    return tables


def _times(times_ns: NDArray[np.int64], clock: str) -> Any:
    pyarrow = import_pyarrow()
    kinds = {"mono": pyarrow.int64(), "rel": pyarrow.duration("ns")}
    kind = kinds.get(clock, pyarrow.timestamp("ns", "UTC"))
    return pyarrow.array(times_ns).cast(kind, safe=False)


def _column(log: LogFormat, field: LogField, values: NDArray[Any]) -> Any:
    """An Arrow array: numbers and bytes as they are, enums by name, addresses as text."""
    text = log.converter(field)
    if text is None:
        return fixed(native(values), field.none)
    encoded = encode(native(values) if field.kind == "enum" else values)
    return plain(encoded if field.kind == "bytes" else with_texts(encoded, text))


def _metadata(log: LogFormat, event: LogEvent) -> dict[str, str]:
    """The event's name and the log's header, without what belongs to other events and CPUs."""
    header = {key: value for key, value in log.header.items() if key not in ("events", "cpu")}
    return {"klogger.event": event.name, "klogger.header": json.dumps(header)}
