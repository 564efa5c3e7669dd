# SPDX-License-Identifier: Apache-2.0
"""The forms of an export, each with the function that writes it for records of any file format."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.files import create_file, file_or_stdout
from tcpkmon.formats.base.reader import TIMELINE, Reader, Records


def _write_text(form: str, records: Records, output: Path | None, force: bool) -> None:
    with file_or_stdout(output, force) as out:
        records.write_text(form, out)


def _write_tables(form: str, records: Records, output: Path | None, force: bool) -> None:
    from tcpkmon.formats.base import table_file
    from tcpkmon.formats.export import table_folder

    if output is None:
        raise UsageError(f"{form} needs -o", "name a file")
    if not records.kinds:
        writers = {"parquet": table_file.write_parquet, "arrow": table_file.write_arrow}
        with create_file(output, force) as out:
            writers[form](records, out)
        return
    is_file = ENDINGS.get(output.suffix) == form
    if is_file and len(records.kinds) != 1:
        raise UsageError(
            f"{output} can hold one event only",
            "choose it with tcpkmon decode --event NAME, or give a folder to -o",
        )
    table_folder.write_folder(records, form, output, is_file, force)


def _write_timeline(_: str, records: Records, output: Path | None, force: bool) -> None:
    from tcpkmon.formats import timeline

    if output is None and sys.stdout.isatty():
        raise UsageError("a Perfetto trace is no text", "name a file with -o")
    with file_or_stdout(output, force) as out:
        timeline.write_perfetto(records, out)


def _write_pcapng(reader: Reader, output: Path | None, force: bool) -> None:
    from tcpkmon.formats.export import pcapng

    pcapng.write(reader, output, force)


def _write_magnet(reader: Reader, output: Path | None, force: bool) -> None:
    from tcpkmon.formats.export import magnet

    magnet.write(reader, output, force)


TABLES = ("parquet", "arrow")
"""The forms that pyarrow writes. They cannot go to stdout."""

FORMS: dict[str, Callable[[Records, Path | None, bool], None]] = {
    form: functools.partial(write, form)
    for write, forms in (
        (_write_tables, TABLES),
        (_write_text, ("csv", "spreadsheet", "json", "perl", "psc1")),
        (_write_timeline, (TIMELINE,)),
    )
    for form in forms
}
"""The function that writes each form: write(records, output file, force).

Without an output file it writes to stdout. With force it replaces a file. It raises UsageError and
FileError.
"""

WHOLE: dict[str, Callable[[Reader, Path | None, bool], None]] = {
    "pcapng": _write_pcapng, "magnet": _write_magnet,
}  # fmt: skip
"""The forms that are made of a whole capture, whose columns nobody chooses: as FORMS, with the
capture's reader."""

ENDINGS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".pcapng": "pcapng",
    ".magnet": "magnet",
}
"""The form for each ending of a file name."""
