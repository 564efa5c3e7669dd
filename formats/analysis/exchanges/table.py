# SPDX-License-Identifier: Apache-2.0
"""The table of exchanges of a capture."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.exchanges.columns import EXCHANGES
from tcpkmon.formats.analysis.exchanges.cutting import EXCHANGE, NULL, Exchanges, cut
from tcpkmon.formats.analysis.exchanges.overlap import spread
from tcpkmon.formats.analysis.exchanges.streams import NEEDED, OPTIONAL, Streams, calls_of
from tcpkmon.formats.analysis.why import Source, Table
from tcpkmon.formats.analysis.why.assemble import times_of_day
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.base.text import address_of, text_of

Array = NDArray[Any]
Capture = str | os.PathLike[str] | Reader | Source
_TEXTS = {"laddr": address_of, "raddr": address_of, "comm": lambda data: text_of(data) or None}
_OF_ROWS = frozenset(EXCHANGE.names or ())
_NONE = {"pid": 0, "netns": 0}
"""The value of a snapshot that stands for null."""


def exchanges(capture: Capture) -> Table:
    """A row for each exchange of each recorded end of a connection, by connection and number.

    columns.EXCHANGES says what each column is. UsageError where the capture lacks what is needed;
    else as why.Source.
    """
    opened: AbstractContextManager[Source] = (
        nullcontext(capture) if isinstance(capture, Source) else Source(capture)
    )
    with opened as source:
        if (cutter := make_cutter(source)) is None:
            raise UsageError(
                f"{source.reader.path} lacks what tells requests: {', '.join(_missing(source))}",
                "capture the schema tcp with --requests, or with --columns default",
            )
        source.names = [*NEEDED, *(name for name in OPTIONAL if name in source.known)]
        parts = [rows for rows in cut(source.read(), cutter) if len(rows)]
        ahead_ns = source.about().get("ahead_ns")
    rows = np.concatenate(parts) if parts else np.zeros(0, EXCHANGE)
    parts.clear()
    rows = rows[np.argsort(rows["place"], kind="stable")]
    table = _table(rows, cutter.streams, ahead_ns)
    table["pipelined"] = spread(table)
    return table


def make_cutter(source: Source) -> Exchanges | None:
    """What cuts its snapshots; None where it lacks a column that this needs."""
    return None if _missing(source) else Exchanges(*_calls(source))


def _missing(source: Source) -> list[str]:
    return [name for name in NEEDED if name not in source.known]


def _calls(source: Source) -> tuple[bool, bool]:
    """Whether calls were recorded, both to send and to receive; and whether as they began."""
    return calls_of(source.locations())


def _table(rows: Array, streams: Streams, ahead_ns: int | None) -> Table:
    place = rows["place"]
    found: Table = {}
    for column in EXCHANGES:
        name = column.name
        if name in _TEXTS:
            found[name] = _texts(streams.latest.get(name), _TEXTS[name], place)
        elif name == "start":
            found[name] = (np.full(len(rows), None) if ahead_ns is None
                           else times_of_day(rows["start_ns"] + np.int64(ahead_ns)))  # fmt: skip
        elif name == "side":
            found[name] = np.array(["server", "client"], object)[rows["is_client"].astype(int)]
        elif name not in _OF_ROWS:
            values = streams.latest.get(name)
            whole = np.zeros(len(rows)) if values is None else values[place]
            if column.null:
                whole = whole.astype(np.float64)
                whole[whole == _NONE[name]] = np.nan
                found[name] = whole
            else:
                found[name] = whole.astype(np.int64)
        elif column.null:
            values = rows[name].astype(np.float64)
            values[rows[name] == NULL] = np.nan
            found[name] = values
        else:
            found[name] = np.ascontiguousarray(rows[name])
    return found


def _texts(raw: Array | None, text: Any, place: Array) -> Array:
    """A text for each row; each distinct value is decoded once."""
    if raw is None or not len(place):
        return np.full(len(place), None)
    some, which = np.unique(place, return_inverse=True)
    distinct, of = np.unique(raw[some], return_inverse=True)
    width = raw.dtype.itemsize  # of bytes, numpy leaves out zeros at the end
    told = np.array([text(one.tobytes().ljust(width, b"\0")) for one in distinct], object)
    found: Array = told[of][which]
    return found


def as_arrow(table: Table, _: str = "") -> Any:
    """A pyarrow.Table: null is null, a number int64. UsageError without pyarrow."""
    pyarrow = import_pyarrow()
    arrays = []
    for column in EXCHANGES:
        values = table[column.name]
        if values.dtype == object:
            arrays.append(pyarrow.array(values, pyarrow.string()))
        elif column.kind == "int" and column.null:
            void = np.isnan(values)
            arrays.append(pyarrow.array(np.where(void, 0, values).astype(np.int64), mask=void))
        else:
            arrays.append(pyarrow.array(values))
    return pyarrow.table(arrays, [column.name for column in EXCHANGES])
