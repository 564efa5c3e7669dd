# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of why as text for people, CSV, JSON, Parquet or an Arrow file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.tables import as_arrow, renamed
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file, file_or_stdout
from tcpkmon.formats.base.text import quote_csv

BINARY = ("parquet", "arrow")
FORMS = ("table", "csv", "json", *BINARY)
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv",
           ".json": "json", ".txt": "table"}  # fmt: skip
_ROW_GROUP = 1 << 17


def form_of(form: str | None, output: Path | None) -> str:
    """The form that was asked for, else that of the file's ending. UsageError."""
    form = form or (ENDINGS.get(output.suffix.lower(), "") if output is not None else "table")
    if not form:
        raise UsageError(f"{output}: its ending is of no known format", "add --format parquet")
    if form in BINARY and output is None:
        raise UsageError(f"{form} needs -o", "name a file")
    return form


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
        _write_binary(make(table, names), form, output, force)
        return
    with file_or_stdout(output, force) as out:
        if form == "csv":
            lines = _csv(table, names)
        elif form == "json":
            lines = _json(name, table, names)
        else:
            lines = _table(table, names)
        for line in lines:
            out.write(line.encode("utf-8", "backslashreplace") + b"\n")


def _write_binary(table: Any, form: str, output: Path, force: bool) -> None:
    pyarrow = import_pyarrow()
    with create_file(output, force) as out:
        if form == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, out, compression="zstd", row_group_size=_ROW_GROUP)
            return
        with pyarrow.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)


def rows_of(table: Table) -> Iterator[dict[str, Any]]:
    """The rows as dictionaries of Python values: null is None, a whole number an int."""
    names = list(table)
    columns = [[plain(value) for value in values.tolist()] for values in table.values()]
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def row_of(table: Table, at: int) -> dict[str, Any]:
    """One row as rows_of() gives it."""
    return next(rows_of({name: values[at : at + 1] for name, values in table.items()}))


def plain(value: Any) -> Any:
    """A value of a table for JSON: neither NaN nor infinite."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value


def _json(name: str, table: Table, names: str) -> Iterator[str]:
    yield f'{{"{name}": ['
    before = None
    for row in rows_of({renamed(one, names): values for one, values in table.items()}):
        if before is not None:
            yield before + ","
        before = json.dumps(row)
    if before is not None:
        yield before
    yield "]}"


def _csv(table: Table, names: str) -> Iterator[str]:
    yield ",".join(renamed(one, names) for one in table)
    for row in rows_of(table):
        yield ",".join(_cell(value, quote=True) for value in row.values())


def _cell(value: Any, quote: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = for_terminal(value)
        return quote_csv(text) if quote else text
    if isinstance(value, float):
        return repr(value) if quote else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return str(value)


def _table(table: Table, names: str) -> Iterator[str]:
    """Columns of equal width; numbers are on the right, and null is "-"."""
    cells = [[renamed(one, names) for one in table]]
    cells += [[_cell(value) or "-" for value in row.values()] for row in rows_of(table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [values.dtype != object for values in table.values()]
    for row in cells:
        yield "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
