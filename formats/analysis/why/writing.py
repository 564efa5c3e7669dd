# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of why as text for people, CSV, JSON, Parquet or an Arrow file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.tables import as_arrow, renamed
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.table_file import write_tables
from tcpkmon.formats.base.table_text import BINARY, Rows

_DIGITS = 4
_AT_ONCE = 4096


def write(
    name: str, table: Table, form: str, output: Path | None, force: bool = False, names: str = "",
    make: Callable[[Table, str], Any] = as_arrow,
) -> None:  # fmt: skip
    """Write a table. name: of the table, the key in JSON. names: whose names the columns get.
    make: makes an Arrow table of it, as as_arrow() does.

    Without an output file it goes to stdout. UsageError, FileError.
    """
    if form in BINARY:
        assert output is not None
        made = make(table, names)
        with create_file(output, force) as out:
            write_tables(form, [made], out)
        return
    rows = ([*row.values()] for row in rows_of(table))
    is_number = [values.dtype != object for values in table.values()]
    labels = [renamed(one, names) for one in table]
    Rows(labels, is_number, rows, name, _DIGITS).write(form, output, force)


def rows_of(table: Table, order: Array | None = None) -> Iterator[dict[str, Any]]:
    """The rows, or these, as dictionaries of Python values: null is None, a whole number an int.
    Some are made at once, since one takes 4 kB."""
    names = list(table)
    count = max((len(values) for values in table.values()), default=0)
    for low in range(0, count if order is None else len(order), _AT_ONCE):
        some = slice(low, low + _AT_ONCE)
        chosen = some if order is None else order[some]
        columns = [_plain(values[chosen]) for values in table.values()]
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))


def row_of(table: Table, at: int) -> dict[str, Any]:
    """One row as rows_of() gives it."""
    return next(rows_of({name: values[at : at + 1] for name, values in table.items()}))


def _plain(values: Array) -> list[Any]:
    """plain() of each."""
    if values.dtype.kind in "iub":
        return values.tolist()  # type: ignore[no-any-return]
    if values.dtype.kind == "f":
        if np.isnan(values).all():
            return [None] * len(values)
        if (np.abs(values) < 1 << 53).all() and (values == np.trunc(values)).all():
            return values.astype(np.int64).tolist()  # type: ignore[no-any-return]
    return [plain(value) for value in values.tolist()]


def plain(value: Any) -> Any:
    """A value of a table for JSON: neither NaN nor infinite."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value
