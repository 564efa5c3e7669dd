# SPDX-License-Identifier: Apache-2.0
"""Tables that analyses make of an open capture, as methods of its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tcpkmon.formats.base.errors import UsageError


class Above(Protocol):
    """What is made of an open capture by the rooms above readers."""

    def blocks(self, reader: Any, columns: Sequence[str], memory: int | str | None) -> Any:
        """An iterator of blocks of whole connections."""

    def arrow(self, reader: Any, name: str) -> Any:
        """A table as a pyarrow.Table."""

    def html(self, reader: Any) -> str:
        """For notebooks."""


class Analysed:
    """A reader whose captures have tables. tcpkmon.open() sets `above`."""

    above: Above | None = None

    def connections(self, columns: Sequence[str], memory: int | str | None = None) -> Any:
        """The records of the schema tcp in one pass, in blocks of whole connections: an iterator of
        formats.analysis.blocks.Block.

        columns: their names. memory: about how much may be held, in bytes or as "512M"; by default
        a fourth of what is free, at least 512M. A capture for which that is too little is spread
        over temporary files (TMPDIR). A single connection is never cut: it needs about 1 kB for
        each of its records.

        Raises UsageError where columns are missing, FileError, DamagedError.
        """
        return self._above("connections()").blocks(self, columns, memory)

    def named_table(self, name: str) -> Any:
        """A table of the capture as a pyarrow.Table; docs/tables.md has those that there are.

        Raises UsageError where pyarrow or the table is missing, FileError, DamagedError.
        """
        return self._above("table()").arrow(self, name)

    def _repr_html_(self) -> str | None:
        """For notebooks: summary, proof and first connections. It reads the file."""
        return None if self.above is None else self.above.html(self)

    def _above(self, what: str) -> Above:
        if self.above is None:
            raise UsageError(f"{what} needs a capture of tcpkmon.open()", "import tcpkmon")
        return self.above
