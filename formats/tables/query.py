# SPDX-License-Identifier: Apache-2.0
"""SQL over the tables of captures, by DuckDB: it reads the tables that a query names, and no file.

DuckDB asks each table for the columns that it needs, and reads it as a stream; what it sorts or
joins and has no room for in _MEMORY goes to a folder of its own, which goes with the query.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.installing import needed
from tcpkmon.formats.base.table_file import write_tables
from tcpkmon.formats.base.table_text import BINARY, Rows
from tcpkmon.formats.base.text import quote_word, suggest
from tcpkmon.formats.registry import group
from tcpkmon.formats.tables.column import FILE, Column, schema_of
from tcpkmon.formats.tables.views import Opened, View, find_view, views_of

# Writes the answer of a query, batch by batch: a table for people, CSV, JSON lines, a file.

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


_MEMORY = "1GB"
_ROWS = 1 << 16
_LISTED = 12
_SETTINGS = {
    "memory_limit": _MEMORY, "TimeZone": "UTC", "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false", "allow_persistent_secrets": "false",
    "enable_external_access": "false", "lock_configuration": "true",
}  # fmt: skip
"""In this order: the last one locks them."""
Filter = Any


class Query:
    """Asks several captures; segments of one are read together. Use `with`.

    views: the tables, by name; each has the columns of all captures that have it, `file` first.
    FileError, DamagedError; UsageError if DuckDB is not installed.
    """

    of = "the capture"
    """What has the tables, for people."""

    def __init__(self, paths: Sequence[Path]) -> None:
        import_pyarrow("sql")
        self._captures = group(paths)
        self.views: dict[str, View] = {}
        self._found: list[dict[str, View]] = []
        for some in self._captures:
            opened = Opened.of(some)
            with opened.reader:
                self._found.append(views_of(opened))
        self._merge()
        self._start({name: _Asked(self, view) for name, view in self.views.items()})

    def _start(self, sets: dict[str, _Asked]) -> None:
        """Open DuckDB, register the tables, and lock what a query may do."""
        duckdb = _import_duckdb()
        self._error: type[Exception] = duckdb.Error
        self._sets = sets
        self._folder = tempfile.mkdtemp(prefix="tcpkmon-sql-")
        self._base = duckdb.connect(config={"python_enable_replacements": "false"})
        try:
            self._register(self._base)
            self._base.execute(f"SET temp_directory = '{self._folder}'")
            for name, value in _SETTINGS.items():
                self._base.execute(f"SET {name} = '{value}'")
        except BaseException:
            self.__exit__()
            raise

    def _register(self, base: Any) -> None:
        for name, asked in self._sets.items():
            base.register(name, asked.dataset())

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def asked(self) -> set[str]:
        """The tables that queries read so far."""
        return {name for name, one in self._sets.items() if one.count}

    def opened(self) -> Iterator[Opened]:
        """Each capture, open."""
        for paths in self._captures:
            yield Opened.of(paths)

    def run(self, query: str) -> Any:
        """What a query says, as a pyarrow.RecordBatchReader that reads as it is asked.

        Whole numbers of 128 bits (sums) have 64 bits in it. UsageError, DamagedError, FileError.
        """
        pyarrow = import_pyarrow()
        for one in self._sets.values():
            one.error = None
        with self._told(query):
            found = self._base.sql(query)
            if found is None:
                raise UsageError("the query has no answer", "begin it with select")
            read = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
            reader = read(_ROWS)
        schema = pyarrow.schema([_narrow(field) for field in reader.schema])
        return pyarrow.RecordBatchReader.from_batches(schema, self._rows(reader, schema, query))

    def _rows(self, reader: Any, schema: Any, query: str) -> Iterator[Any]:
        pyarrow = import_pyarrow()
        while True:
            with self._told(query):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                table = pyarrow.Table.from_batches([batch])
                try:
                    table = table.cast(schema)
                except pyarrow.ArrowInvalid as error:
                    raise UsageError("a whole number of the answer has no room in 64 bits",
                                     "cast it to double in the query") from error  # fmt: skip
            yield from table.to_batches()

    def _merge(self) -> None:
        for views in self._found:
            for name, view in views.items():
                known = next((one for one in self.views if one.lower() == name.lower()), name)
                there = self.views.get(known)
                columns = {one.name: one for one in (there.columns if there else (FILE,))}
                for one in view.columns:
                    if one.name.lower() != FILE.name:
                        columns.setdefault(one.name, one)
                self.views[known] = View(known, view.text, tuple(columns.values()), view.read)

    def tables(self, name: str, names: Sequence[str]) -> Iterator[Any]:
        """A table of all captures that have it, in pieces, with these columns."""
        pyarrow = import_pyarrow()
        columns = {one.name: one for one in self.views[name].columns}
        schema = schema_of(columns[one] for one in names)
        for paths, views in zip(self._captures, self._found, strict=True):
            view = next((one for key, one in views.items() if key.lower() == name.lower()), None)
            if view is None:
                continue
            known = {one.name for one in view.columns}
            mine = [one for one in names if one in known and one != FILE.name]
            opened = Opened.of(paths)  # anew: a table may be read twice at once
            with opened.reader:
                for table in view.tables(opened, mine or [view.columns[0].name]):
                    count = table.num_rows
                    told = pyarrow.repeat(str(paths[0]), count) if FILE.name in names else None
                    yield pyarrow.Table.from_arrays([
                        told if one == FILE.name
                        else table[one].cast(columns[one].arrow, safe=False) if one in mine
                        else pyarrow.nulls(count, columns[one].arrow)
                        for one in names
                    ], schema=schema)  # fmt: skip

    @contextmanager
    def _told(self, query: str) -> Iterator[None]:
        """Turns DuckDB's errors into ours."""
        try:
            yield
        except (self._error, OSError, ValueError) as error:
            raise self._translate(error, query) from error

    def _translate(self, error: BaseException, query: str) -> TcpkmonError:
        """An error of DuckDB, for people: in one line, with what there is instead."""
        for one in self._sets.values():
            if one.error is not None:
                return one.error
        text = str(error)
        if match := re.search(r"Table with name (.*) does not exist", text):
            try:
                find_view(self.views, match[1], self.of)
            except UsageError as found:
                return found
        first, _, rest = text.partition("\n\nLINE ")
        first = " ".join(first.split())
        first = re.sub(r"^[A-Z][\w ]* Error: ", "", first)
        first = re.sub(r" ?(Did you mean|Candidate bindings:) .*$", "", first).rstrip("!. ")
        line = rest.partition(": ")[2].partition("\n")[0].strip()
        place = f" (at {quote_word(line)})" if line and line != " ".join(query.split()) else ""
        if "configuration has been locked" in text:
            return UsageError(f"{first}: tcpkmon sets what a query may do", "leave that out")
        if "disabled by configuration" in text:
            return UsageError(f"{first}: a query reads the tables of {self.of} and nothing else",
                              "-o writes its answer")  # fmt: skip
        return UsageError(for_terminal(first + place), self._hint(first, query))

    def _hint(self, text: str, query: str) -> str:
        match = re.search(r'[Cc]olumn "?([^" ]+)"? ', text)
        named = [view for name, view in self.views.items()
                 if re.search(rf"\b{re.escape(name)}\b", query, re.IGNORECASE)]  # fmt: skip
        if match is None or not named:
            return "tcpkmon sql FILE --tables lists tables and columns"
        known = [one.name for view in named for one in view.columns]
        more = suggest(match[1], known).strip(" ()")
        listed = ", ".join(for_terminal(one) for one in known[:_LISTED])
        of = ", ".join(for_terminal(view.name) for view in named)
        dots = " ..., which tcpkmon sql FILE --tables lists" if len(known) > _LISTED else ""
        return more or f"{of} has {listed}{dots}"


class _Asked:
    """One table, as DuckDB asks for it. count: how often it was read. error: of the reader."""

    def __init__(self, query: Query, view: View) -> None:
        self._query, self._view = query, view
        self.count = 0
        self.error: TcpkmonError | None = None

    def dataset(self) -> Any:
        """What DuckDB takes for a pyarrow.dataset.Dataset, as others' datasets do."""
        from pyarrow import dataset

        asked = self

        class Lazy(dataset.Dataset):  # type: ignore[misc]
            def __init__(self) -> None:
                """There is no dataset of pyarrow behind it."""

            @property
            def schema(self) -> Any:
                return schema_of(asked._view.columns)

            def scanner(
                self, columns: Sequence[str] | None = None, filter: Filter = None, **_: object
            ) -> _Scanner:
                return _Scanner(asked._view.columns, columns, filter, asked.read)

        return Lazy()

    def read(self, names: Sequence[str]) -> Iterator[Any]:
        """Its pieces; what goes wrong is kept, as DuckDB tells of it in words of its own."""
        self.count += 1
        try:
            yield from self._query.tables(self._view.name, names)
        except TcpkmonError as error:
            self.error = error
            raise


class _Scanner:
    """Some columns of the rows that pass a filter. Nothing runs in another thread."""

    def __init__(
        self, known: Sequence[Column], names: Sequence[str] | None, filter_: Filter,
        read: Callable[[Sequence[str]], Iterator[Any]],
    ) -> None:  # fmt: skip
        self._columns = {one.name: one for one in known}
        self._names = list(self._columns if names is None else names)
        self._filter, self._read = filter_, read

    @property
    def projected_schema(self) -> Any:
        return schema_of(self._columns[name] for name in self._names)

    def to_reader(self) -> Any:
        """A pyarrow.RecordBatchReader."""
        pyarrow = import_pyarrow()
        return pyarrow.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        needed = [*self._names, *self._of_filter()]
        for table in self._read(needed):
            chosen = table if self._filter is None else table.filter(self._filter)
            yield from chosen.select(self._names).to_batches()

    def _of_filter(self) -> list[str]:
        """The columns that the filter names: without one of them it cannot be bound."""
        if self._filter is None or self._binds(self._names):
            return []
        return [
            name for name in self._columns
            if name not in self._names and not self._binds([*self._columns], name)
        ]  # fmt: skip

    def _binds(self, names: Sequence[str], without: str = "") -> bool:
        pyarrow = import_pyarrow()
        schema = schema_of(self._columns[name] for name in names if name != without)
        try:
            schema.empty_table().filter(self._filter)
        except pyarrow.ArrowInvalid:
            return False
        return True


def _import_duckdb() -> Any:
    with needed("sql needs duckdb, which", "duckdb"):
        import duckdb
    return duckdb


def _narrow(field: Any) -> Any:
    """A whole number of 128 bits as int64; others as they are."""
    pyarrow = import_pyarrow()
    if pyarrow.types.is_decimal(field.type) and field.type.scale == 0:
        return field.with_type(pyarrow.int64())
    return field
