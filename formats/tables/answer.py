# SPDX-License-Identifier: Apache-2.0
"""Writes the answer of a query, batch by batch: a table for people, CSV, JSON lines, a file."""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.cli import say, use_colours
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file, file_or_stdout
from tcpkmon.formats.base.text import quote_csv

_SHOWN = 1000
"""Rows of a table for people."""
_WIDEST = 10_000


def write_answer(reader: Any, form: str, output: Path | None, force: bool = False) -> None:
    """Write what Query.run() returned. form: table, csv, json, parquet or arrow.

    Without an output file it goes to stdout. FileError, and what run() raises.
    """
    if form in ("parquet", "arrow"):
        assert output is not None
        _write_binary(reader, form, output, force)
        return
    if form == "table" and output is None:
        _print_table(reader)
        return
    with file_or_stdout(output, force) as out:
        lines = {"csv": _csv, "json": _json, "table": _plain}[form](reader)
        for line in lines:
            out.write(line.encode("utf-8", "backslashreplace") + b"\n")


def _write_binary(reader: Any, form: str, output: Path, force: bool) -> None:
    pyarrow = import_pyarrow()
    from pyarrow import parquet

    with create_file(output, force) as out:
        if form == "parquet":
            writer = parquet.ParquetWriter(out, reader.schema, compression="zstd")
        else:
            writer = pyarrow.ipc.new_file(out, reader.schema)
        with writer:
            for batch in reader:
                writer.write(batch)


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


def _cell(value: Any, void: str = "") -> str:
    if value is None:
        return void
    if isinstance(value, (bool, dict, list)):
        return for_terminal(json.dumps(value))
    return for_terminal(str(value))


def _csv(reader: Any) -> Iterator[str]:
    yield ",".join(quote_csv(for_terminal(name)) for name in reader.schema.names)
    for row in _rows(reader):
        yield ",".join(quote_csv(_cell(value)) for value in row)


def _json(reader: Any) -> Iterator[str]:
    names = reader.schema.names
    for row in _rows(reader):
        yield json.dumps(dict(zip(names, row, strict=True)))


def _plain(reader: Any) -> Iterator[str]:
    """A table in a file: columns of equal width."""
    from rich.console import Console

    console = Console(width=_WIDEST, color_system=None)
    with console.capture() as captured:
        console.print(_table(reader.schema, [*_rows(reader)]))
    yield from (line.rstrip() for line in captured.get().splitlines())


def _print_table(reader: Any) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, no_color=not use_colours())
    rows = [*itertools.islice(_rows(reader), _SHOWN + 1)]
    table = _table(reader.schema, rows[:_SHOWN])
    wide = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    if not console.is_terminal:
        console.width = _WIDEST
    if wide <= console.width:
        console.print(table)
    else:  # line by line, as there is no room for the columns beside one another
        names = [for_terminal(name) for name in reader.schema.names]
        width = max(map(len, names))
        for number, row in enumerate(rows[:_SHOWN], 1):
            console.print(Text(f"row {number}", "bold"))
            for name, value in zip(names, row, strict=True):
                console.print(Text(f"  {name:{width}}  {_cell(value, '-')}"), soft_wrap=True)
    if len(rows) > _SHOWN:
        say(f"tcpkmon sql: there are more than {_SHOWN:,} rows; --format csv writes all")


def _table(schema: Any, rows: list[tuple[Any, ...]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    types = import_pyarrow().types
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for field in schema:
        is_number = types.is_integer(field.type) or types.is_floating(field.type)
        table.add_column(Text(for_terminal(field.name)), no_wrap=True,
                         justify="right" if is_number else "left")  # fmt: skip
    for row in rows:
        table.add_row(*(Text(_cell(value, "-")) for value in row))
    return table
