# SPDX-License-Identifier: Apache-2.0
"""What the reader of every record format offers: exports and scripts ask for no more than this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol


class Records(Protocol):
    """Records of one file or of several, all or some, which are read in bounded memory."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of tables that there may be, each for its own file; empty: there is one."""

    def tables(self, reuse: bool = False) -> Iterator[dict[str, Any]]:
        """The records as pyarrow.Tables: of each piece of the file, one for each kind of record.

        reuse: the memory of a piece is used again for the second piece after it, which is faster.
        UsageError where pyarrow is not installed.
        """

    def write_text(self, form: str, out: BinaryIO) -> None:
        """Write the records as lines: "csv", "json", or what else the format has.

        UsageError for a form that it lacks.
        """


class Reader(Records, AbstractContextManager["Reader"], Protocol):
    """An open file of records, or a folder of such files: what formats.open() returns.

    Text from the file may hold anything: whoever prints it escapes it.
    """

    @property
    def path(self) -> Path:
        """As it was opened."""

    @property
    def warnings(self) -> Sequence[str]:
        """What a person should be told; this and what follows is complete after the records
        were read, and where none was read yet, they are read for it."""

    @property
    def damaged(self) -> bool:
        """Whether the file is damaged, so that records may be missing."""

    @property
    def lost(self) -> int:
        """How many records are known to be missing."""

    @property
    def complete(self) -> bool:
        """Whether the file ended in order; else what is missing at its end is unknown."""

    def for_export(
        self, form: str, columns: Sequence[str] | None = None, sort: str | None = None
    ) -> Records:
        """The records for an export in this form, with the options of `tcpkmon export`.

        columns: names, None for all. sort: "connection" or "seq", None as suits the form.
        UsageError for what the format lacks.
        """

    def close(self) -> None:
        """Close the file."""
