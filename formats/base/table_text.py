# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of a table as text for people, CSV or JSON; names the forms of all tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import file_or_stdout
from tcpkmon.formats.base.text import quote_csv, quote_spreadsheet

BINARY = ("parquet", "arrow")
"""What table_file writes."""
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv",
           ".json": "json", ".txt": "table"}  # fmt: skip


def form_of(form: str | None, output: Path | None) -> str:
    """The form that was asked for, else that of the file's ending. UsageError."""
    form = form or (ENDINGS.get(output.suffix.lower(), "") if output is not None else "table")
    if not form:
        raise UsageError(f"{output}: its ending is of no known format", "add --format parquet")
    if form in BINARY and output is None:
        raise UsageError(f"{form} needs -o", "name a file")
    return form


@dataclass(frozen=True)
class Rows:
    """is_number: of each column; numbers are on the right. rows: of values as JSON has them.

    key: JSON is one object with the rows under this name; "": an object for each line.
    digits: how many of a number people see, 0: all.
    """

    names: Sequence[str]
    is_number: Sequence[bool]
    rows: Iterable[Sequence[Any]]
    key: str = ""
    digits: int = 0

    def write(self, form: str, output: Path | None, force: bool = False) -> None:
        """Write them to a file, or stdout. form: table, csv, spreadsheet or json. FileError."""
        lines = {"csv": self.csv, "spreadsheet": self.spreadsheet, "json": self.json,
                 "table": self.table}[form]()  # fmt: skip
        with file_or_stdout(output, force) as out:
            for line in lines:
                out.write(line.encode("utf-8", "backslashreplace") + b"\n")

    def csv(self) -> Iterator[str]:
        """A line for the names, and one for each row."""
        for row in itertools.chain([self.names], self.rows):
            yield ",".join(quote_csv(self.cell(value)) for value in row)

    def spreadsheet(self) -> Iterator[str]:
        """CSV in which spreadsheet programs take no text for a formula."""
        for row in itertools.chain([self.names], self.rows):
            yield ",".join(
                (quote_spreadsheet if isinstance(value, str) else quote_csv)(self.cell(value))
                for value in row
            )

    def json(self) -> Iterator[str]:
        """A line for each row."""
        objects = (json.dumps(dict(zip(self.names, row, strict=True))) for row in self.rows)
        if not self.key:
            yield from objects
            return
        yield f'{{"{self.key}": ['
        before = next(objects, None)
        for line in objects:
            yield f"{before},"
            before = line
        yield from () if before is None else (before,)
        yield "]}"

    def table(self) -> Iterator[str]:
        """Columns of equal width; null is "-"."""
        cells = [[for_terminal(name) for name in self.names]]
        cells += [[self.cell(value, self.digits) or "-" for value in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(row, widths, self.is_number, strict=True)
            ).rstrip()

    @staticmethod
    def cell(value: Any, digits: int = 0) -> str:
        """A value as text, null as none."""
        if value is None:
            return ""
        if isinstance(value, float) and digits:
            return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
        if isinstance(value, (bool, dict, list)):
            value = json.dumps(value)
        return for_terminal(str(value))
