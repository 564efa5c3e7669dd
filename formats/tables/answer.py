# SPDX-License-Identifier: Apache-2.0
"""Writes the answer of a query, batch by batch: a table for people, CSV, JSON lines, a file."""

from __future__ import annotations

import datetime
import itertools
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.table_file import write_tables
from tcpkmon.formats.base.table_text import BINARY, Rows

_SHOWN = 1000
"""Rows of a table for people."""


def write_answer(reader: Any, form: str, output: Path | None, force: bool = False) -> None:
    """Write what Query.run() returned. form: table, csv, json, parquet or arrow.

    Without an output file it goes to stdout. FileError, and what run() raises.
    """
    if form in BINARY:
        assert output is not None
        table = import_pyarrow().Table.from_batches
        first = table([], reader.schema)  # of an answer without rows
        with create_file(output, force) as out:
            batches = (table([batch]) for batch in reader)
            write_tables(form, itertools.chain([first], batches), out)
        return
    types = import_pyarrow().types
    is_number = [types.is_integer(one.type) or types.is_floating(one.type) for one in reader.schema]
    names, rows = reader.schema.names, _rows(reader)
    if form != "table" or output is not None:
        Rows(names, is_number, rows).write(form, output, force)
        return
    shown = Rows(names, is_number, [*itertools.islice(rows, _SHOWN)])
    lines = [*shown.table()]
    if sys.stdout.isatty() and max(map(len, lines)) > shutil.get_terminal_size().columns:
        lines = [*_line_by_line(shown)]
    click.echo("\n".join(lines))
    if next(rows, None) is not None:
        say(f"there are more than {_SHOWN:,} rows; --format csv writes all")


def _line_by_line(shown: Rows) -> Iterator[str]:
    """Where there is no room for the columns beside one another."""
    names = [for_terminal(name) for name in shown.names]
    width = max(map(len, names))
    for number, row in enumerate(shown.rows, 1):
        yield f"row {number}"
        for name, value in zip(names, row, strict=True):
            yield f"  {name:{width}}  {shown.cell(value) or '-'}"


def _rows(reader: Any) -> Iterator[tuple[Any, ...]]:
    """The rows, of values that _value() makes of them. Columns may have one name."""
    for batch in reader:
        columns = [map(_value, column.to_pylist()) for column in batch.columns]
        yield from zip(*columns, strict=True)


def _value(value: Any) -> Any:
    """A value as JSON has it: times as text, no number that is none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and type(value).__name__ != "MonthDayNano":
        return [_value(one) for one in value]
    return str(value)
