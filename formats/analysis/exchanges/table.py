# SPDX-License-Identifier: Apache-2.0
"""The table of exchanges of a capture."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.analysis.arrays import Array, each_once, join
from tcpkmon.formats.analysis.exchanges.columns import EXCHANGES
from tcpkmon.formats.analysis.exchanges.cutting import (
    EXCHANGE,
    NULL,
    choose,
    cut,
    servers_of,
)
from tcpkmon.formats.analysis.exchanges.overlap import spread
from tcpkmon.formats.analysis.exchanges.streams import NEEDED, OPTIONAL, calls_of
from tcpkmon.formats.analysis.why import Peers, Source, Table
from tcpkmon.formats.analysis.why.assemble import address, times_of_day
from tcpkmon.formats.analysis.why.tables import Capture, opened
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_CONNECTIONS
from tcpkmon.formats.base.text import text_of

_TEXTS = {"laddr": address, "raddr": address, "comm": lambda data: text_of(data) or None}
_WHOLE = {column.name for column in EXCHANGES if column.kind == "int"}
_OF_ROWS = frozenset(EXCHANGE.names or ())


def exchanges(capture: Capture) -> Table:
    """A row for each exchange of each recorded end of a connection, by connection and number.

    columns.EXCHANGES says what each column is. UsageError where the capture lacks what is needed;
    else as why.Source.
    """
    with opened(capture) as source:
        if lacks := missing(source):
            raise UsageError(
                f"{source.reader.path} lacks what tells requests: {', '.join(lacks)}",
                "capture the schema tcp with --requests, or with --columns default",
            )
        rows, ends = cut_all(source)
        ahead_ns = source.about().get("ahead_ns")
    table = _table(rows, ends, ahead_ns)
    table["pipelined"] = spread(table)
    return table


def cut_all(
    source: Source, ids: Array | None = None, servers: Array | None = None
) -> tuple[Array, Table]:
    """What cut() gives of all blocks of a source that lacks nothing, and choose() of that. ids:
    only those connections; servers: more ports."""
    source.names = [*NEEDED, *(name for name in OPTIONAL if name in source.known)]
    how, count = calls_of(source.locations()), 0
    found, tables = [np.zeros(0, EXCHANGE)], list[Table]()
    for block in source.blocks(ids=ids):
        rows, ends = cut(block, *how)
        rows["place"] += count
        count += len(ends["seen"])
        found.append(rows)
        tables.append(ends)
    if count > MOST_CONNECTIONS:
        raise UsageError(f"the capture has more than {MOST_CONNECTIONS} connections")
    rows = np.concatenate(found)
    if not len(rows):
        return rows, {}
    ends = join(tables)
    ports = servers_of(ends)
    return choose(rows, ends, ports if servers is None else np.union1d(ports, servers)), ends


def missing(source: Source) -> list[str]:
    """The columns that it lacks for that."""
    return [name for name in NEEDED if name not in source.known]


def _table(rows: Array, ends: Table, ahead_ns: int | None) -> Table:
    place = rows["place"]
    found: Table = {}
    for column in EXCHANGES:
        name = column.name
        if name in _TEXTS:
            found[name] = (each_once(ends[name], _TEXTS[name])[place] if name in ends
                           else np.full(len(rows), None))  # fmt: skip
        elif name == "start":
            found[name] = (np.full(len(rows), None) if ahead_ns is None
                           else times_of_day(rows["start_ns"] + np.int64(ahead_ns)))  # fmt: skip
        elif name == "side":
            found[name] = np.array(["server", "client"], object)[rows["is_client"].astype(int)]
        else:
            null: int | None = NULL if name in _OF_ROWS else 0
            if name == "peer_conn_id":
                values = _peers(ends, place)
            elif name in _OF_ROWS:
                values = rows[name]
            else:
                values = ends[name][place] if name in ends else np.zeros(len(rows), np.int64)
            if column.null:
                void, values = values == null, values.astype(np.float64)
                values[void] = np.nan
            found[name] = np.ascontiguousarray(values)
    return found


def _peers(ends: Table, place: Array) -> Array:
    """The conn_id of each one's other end; 0: it is not here."""
    if not len(place):
        return place
    of, mine, at = Peers(ends).of, *np.unique(place, return_inverse=True)
    others = [of(conn_id) for conn_id in ends["conn_id"][mine].tolist()]
    return np.array([0 if one is None else ends["conn_id"][one] for one in others])[at]


def as_arrow(table: Table, _: str = "") -> Any:
    """A pyarrow.Table: null is null, a number int64. UsageError without pyarrow."""
    return why.as_arrow(table, whole=_WHOLE)
