# SPDX-License-Identifier: Apache-2.0
"""The tables connections and intervals of a capture, as numpy columns, Arrow and pandas."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.assemble import Table, connections_table, intervals_table
from tcpkmon.formats.analysis.why.columns import CONNECTIONS, INTERVALS, NAMES, WHOLES
from tcpkmon.formats.analysis.why.folding import Values, fold
from tcpkmon.formats.analysis.why.intervals import INTERVAL, cut
from tcpkmon.formats.analysis.why.snapshots import Snapshots, Source
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.installing import how_to_install
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.base.text import suggest

Capture = str | os.PathLike[str] | Reader | Source
"""A path, or what tcpkmon.open() returned."""
_COLUMNS = {column.name: column for column in (*WHOLES, *INTERVALS, *CONNECTIONS)}
_WHOLE = {name for name, column in _COLUMNS.items() if column.kind == "int"}


class Visitor(Protocol):
    """Who sees the blocks of a capture in the pass that makes its tables."""

    def add(self, block: Block) -> None:
        """The next block."""

    def add_drops(self, some: Snapshots) -> None:
        """Packets that were dropped and are of no connection: all come before the first block."""


def connections(capture: Capture) -> Table:
    """A row for each connection: its ends, bytes, times, losses, and how long each limit held.

    columns.CONNECTIONS says what each column is. Raises as Source does.
    """
    return tables(capture, with_intervals=False)[0]


def intervals(capture: Capture) -> Table:
    """A row for each run of one limit of a connection, those of a connection in time order.

    columns.INTERVALS says what each column is. Raises as Source does.
    """
    found = _Rows()
    with opened(capture) as source:
        for block in source.blocks():
            found.add(cut(block)[0], block)
    return found.table()


def interval_tables(source: Source) -> Iterator[Table]:
    """The table intervals in pieces, in bounded memory: those of some connections each."""
    for block in source.blocks():
        yield intervals_table(cut(block)[0].__getitem__)


def tables(
    capture: Capture, with_intervals: bool = True, visitor: Visitor | None = None
) -> tuple[Table, Table]:
    """Both tables, in one pass over the file. Without intervals, the second is empty. visitor:
    sees each block, and drops."""
    rows, found = _Rows(), list[Values]()
    with opened(capture) as source:
        for block in source.blocks(drops=None if visitor is None else visitor.add_drops):
            values, some = fold(block)
            found.append(values)
            if with_intervals:
                rows.add(some, block)
            if visitor is not None:
                visitor.add(block)
        about = source.about()
        reader = source.reader
        others = max(reader.lost - source.placed, 0)
        proven = not reader.damaged and not others
        told = connections_table(
            found, source.names, about, proven, reader.complete, source.records,
            (source.placed, others),
        )  # fmt: skip
    return told, rows.table()


def opened(capture: Capture) -> AbstractContextManager[Source]:
    """Closed at the end, unless it is the caller's."""
    return nullcontext(capture) if isinstance(capture, Source) else Source(capture)


class _Rows:
    """Rows of INTERVAL, kept column by column: each is freed when it is in the table."""

    def __init__(self) -> None:
        self._seen: list[Array] = []
        self._columns: dict[str, list[Array]] = {
            name: [] for name in INTERVAL.names or () if name not in ("paceable", "place")
        }

    def add(self, rows: Array, block: Block) -> None:
        """Those of a block."""
        self._seen.append(block.at[block.groups][rows["place"]])
        for name, parts in self._columns.items():
            parts.append(np.ascontiguousarray(rows[name]))

    def table(self) -> Table:
        """Those of a connection together, the first one in the file first. Afterwards this is
        empty."""
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *self._seen]), kind="stable")

        def column(name: str) -> Array:
            parts = self._columns.pop(name)
            return np.concatenate([np.zeros(0, INTERVAL[name]), *parts])[order]

        whole = {name: column(name) for name in list(self._columns)}
        return intervals_table(whole.__getitem__)


def as_arrow(table: Table, names: str = "", whole: Collection[str] = _WHOLE) -> Any:
    """A pyarrow.Table of any of these tables. names: "tcptrace" or "tstat" renames columns. whole:
    columns of whole numbers.

    A number that is null becomes null, a whole number int64. UsageError without pyarrow.
    """
    pyarrow = import_pyarrow()
    arrays = []
    for name, column in table.items():
        values, void = column, np.isnan(column) if column.dtype.kind == "f" else None
        if void is not None and name in whole:
            values = np.where(void, 0, column).astype(np.int64)
        kind = pyarrow.string() if values.dtype == object else None
        arrays.append(pyarrow.array(values, kind, mask=void))
    labels = [renamed(name, names) for name in table]
    return pyarrow.table(arrays, labels)


def as_frame(table: Table) -> Any:
    """A pandas.DataFrame. UsageError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("pandas is not installed", how_to_install("pandas")) from error
    return pandas.DataFrame(table, copy=False)


def renamed(name: str, names: str) -> str:
    """What tcptrace or tstat call a column; its own name where they have none."""
    if names and names not in NAMES:
        raise UsageError(f"no names of {names!r}", f"choose {' or '.join(NAMES)}")
    column = _COLUMNS.get(name)
    return (getattr(column, names) if column and names else "") or name


def choose(table: Table, columns: Sequence[str] = (), sort: str = "") -> Table:
    """Some columns of a table, its rows by one of them: ascending, with -NAME descending.

    Null comes last. UsageError for a column that it lacks; others' names work too.
    """
    by_name = {renamed(name, names): name for names in NAMES for name in table}
    by_name |= {name: name for name in table}

    def find(name: str) -> str:
        if name not in by_name:
            more = suggest(name, by_name)
            raise UsageError(f"no column {name!r}{more}", "--columns help lists them")
        return by_name[name]

    wanted = [find(name) for name in columns] or list(table)
    order: Any = slice(None)
    if sort:
        order = _order(table[find(sort.removeprefix("-"))], sort.startswith("-"))
    return {name: table[name][order] for name in wanted}


def _order(values: Array, descending: bool) -> Array:
    if values.dtype == object:
        void = np.array([value is None for value in values], np.bool_)
        keys = np.unique(np.where(void, "", values).astype(str), return_inverse=True)[1]
    else:
        keys = values.astype(np.float64)
        void = np.isnan(keys)
    return np.lexsort((-keys if descending else keys, void))
