# SPDX-License-Identifier: Apache-2.0
"""The protocol of readers: exports and scripts use nothing else of a file format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tcpkmon.formats.base.errors import DamagedError, LossError
from tcpkmon.formats.base.text import were_lost

TIMELINE = "perfetto"
"""The form of exports that is made of a whole capture, not of its tables."""


class Records(Protocol):
    """Some or all records of one or more files, read in bounded memory."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of tables, each of which needs its own file; empty: there is one kind only."""

    def tables(self, reuse: bool = False) -> Iterator[dict[str, Any]]:
        """The records as pyarrow.Tables: for each piece of the file, the tables by kind.

        reuse: faster, but the memory of a table is overwritten by the table two pieces later.
        Raises UsageError if pyarrow is not installed.
        """

    def write_text(self, form: str, out: BinaryIO) -> None:
        """Write the records as "csv", "json" or another form; UsageError if it lacks the form."""


class Told(Protocol):
    """What decides the exit code of who read it; see Reader."""

    @property
    def damaged(self) -> bool: ...

    @property
    def lost(self) -> int: ...

    @property
    def complete(self) -> bool: ...


def exit_code_of(read: Told) -> int:
    """That of a command that read a file or folder to its end: 5, 3 or 0."""
    if read.damaged:
        return DamagedError.exit_code
    return LossError.exit_code if read.lost or not read.complete else 0


def complaints_of(reader: Reader) -> list[str]:
    """What a command says of what it read: nothing that exit_code_of() tells is without a word."""
    found = list(reader.warnings)
    if reader.lost:
        found.append(were_lost(reader.lost))
    if not reader.complete:
        found.append("the end is missing; what was lost there is unknown")
    return found


class Reader(Records, AbstractContextManager["Reader"], Protocol):
    """An open file of records, or a folder of such files: the result of tcpkmon.open().

    Text from the file can hold any character: escape it before you print it. warnings, damaged,
    lost and complete need all records: if none was read yet, they read the file.
    """

    @property
    def path(self) -> Path:
        """The path that was opened."""

    @property
    def warnings(self) -> Sequence[str]:
        """Messages for the user."""

    @property
    def damaged(self) -> bool:
        """Whether the file is damaged, so that records may be missing."""

    @property
    def lost(self) -> int:
        """How many records are known to be missing."""

    @property
    def complete(self) -> bool:
        """Whether the file ended in order. Otherwise the losses at its end are unknown."""

    def for_export(
        self, form: str, columns: Sequence[str] | None = None, sort: str | None = None
    ) -> Records:
        """The records for an export in this form, with the options of `tcpkmon export`.

        columns: names, None for all. sort: "connection" or "seq", None for the form's default.
        Raises UsageError for an option that the format lacks.
        """

    def table(self, names: str) -> Any:
        """A table by its name ("connections") as a pyarrow.Table; docs/tables.md has them.

        Raises UsageError where pyarrow or the table is missing.
        """

    def close(self) -> None:
        """Close the file."""
