# SPDX-License-Identifier: Apache-2.0
"""The forms of exports, and what writes each: for records of any file format."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from formats.base.errors import UsageError
from formats.base.files import create_file
from formats.base.reader import Records

Write = Callable[[Records, "Path | None", bool], None]
"""Writes records into a file (None: to stdout), which it replaces if told so."""


def write(records: Records, form: str, output: Path | None, force: bool) -> None:
    """Write the records in one of FORMS; raises UsageError and FileError."""
    FORMS[form](records, output, force)


def _text(form: str, records: Records, output: Path | None, force: bool) -> None:
    if output is None:
        records.write_text(form, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with create_file(output, force) as out:
        records.write_text(form, out)


def _tables(form: str, records: Records, output: Path | None, force: bool) -> None:
    from formats.export import table_file, table_folder

    if output is None:
        raise UsageError(f"{form} needs -o", "name a file")
    if records.kinds:
        single = ENDINGS.get(output.suffix) == form
        if single and len(records.kinds) != 1:
            raise UsageError(
                f"{output} can hold one event only",
                "choose it by --event NAME, or give a folder to -o",
            )
        table_folder.write_folder(records, form, output, single, force)
        return
    writers = {"parquet": table_file.write_parquet, "arrow": table_file.write_arrow}
    with create_file(output, force) as out:
        writers[form](records, out)


FORMS: dict[str, Write] = {
    "parquet": functools.partial(_tables, "parquet"),
    "arrow": functools.partial(_tables, "arrow"),
    "csv": functools.partial(_text, "csv"),
    "json": functools.partial(_text, "json"),
    "perl": functools.partial(_text, "perl"),
}
"""By a form's name, its writer. A new form is a line here."""

TABLES = ("parquet", "arrow")
"""The forms that pyarrow writes, and that stdout cannot take."""

ENDINGS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
"""By the ending of a file's name, the form in which it is written."""
