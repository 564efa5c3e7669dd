# SPDX-License-Identifier: Apache-2.0
"""The table of exchanges of a capture."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.analysis.arrays import Array, each_once
from tcpkmon.formats.analysis.exchanges.columns import EXCHANGES
from tcpkmon.formats.analysis.exchanges.cutting import EXCHANGE, NULL, Exchanges, cut
from tcpkmon.formats.analysis.exchanges.overlap import spread
from tcpkmon.formats.analysis.exchanges.streams import NEEDED, OPTIONAL, Streams, calls_of
from tcpkmon.formats.analysis.why import Source, Table
from tcpkmon.formats.analysis.why.assemble import address, times_of_day
from tcpkmon.formats.analysis.why.tables import Capture, opened
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import text_of

_TEXTS = {"laddr": address, "raddr": address, "comm": lambda data: text_of(data) or None}
_WHOLE = {column.name for column in EXCHANGES if column.kind == "int"}
_OF_ROWS = frozenset(EXCHANGE.names or ())
_NONE = {"pid": 0, "netns": 0}
"""The value of a snapshot that stands for null."""


def exchanges(capture: Capture) -> Table:
    """A row for each exchange of each recorded end of a connection, by connection and number.

    columns.EXCHANGES says what each column is. UsageError where the capture lacks what is needed;
    else as why.Source.
    """
    with opened(capture) as source:
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
    return None if _missing(source) else Exchanges(*calls_of(source.locations()))


def _missing(source: Source) -> list[str]:
    return [name for name in NEEDED if name not in source.known]


def _table(rows: Array, streams: Streams, ahead_ns: int | None) -> Table:
    place = rows["place"]
    ends, of_row = np.unique(place, return_inverse=True)
    peers = streams.peers(ends)[of_row].astype(np.float64)
    found: Table = {}
    for column in EXCHANGES:
        name = column.name
        if name in _TEXTS:
            raw = streams.latest.get(name)
            told = np.full(len(streams.places), None) if raw is None else (
                each_once(raw[: len(streams.places)], _TEXTS[name]))  # fmt: skip
            found[name] = told[place]
        elif name == "start":
            found[name] = (np.full(len(rows), None) if ahead_ns is None
                           else times_of_day(rows["start_ns"] + np.int64(ahead_ns)))  # fmt: skip
        elif name == "side":
            found[name] = np.array(["server", "client"], object)[rows["is_client"].astype(int)]
        elif name == "peer_conn_id":
            found[name] = np.where(peers > 0, peers, np.nan)
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


def as_arrow(table: Table, _: str = "") -> Any:
    """A pyarrow.Table: null is null, a number int64. UsageError without pyarrow."""
    return why.as_arrow(table, whole=_WHOLE)
