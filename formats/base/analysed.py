# SPDX-License-Identifier: Apache-2.0
"""Tables that analyses make of an open capture, as methods of its reader."""

from __future__ import annotations

from typing import Any, Protocol

from tcpkmon.formats.base.errors import UsageError


class Above(Protocol):
    """What is made of an open capture by the rooms above readers."""

    def frame(self, reader: Any, name: str) -> Any:
        """A table as a pandas.DataFrame."""

    def arrow(self, reader: Any, name: str) -> Any:
        """A table as a pyarrow.Table."""

    def html(self, reader: Any) -> str:
        """For notebooks."""


class Analysed:
    """A reader whose captures have tables. tcpkmon.open() sets `above`."""

    above: Above | None = None

    def connections(self) -> Any:
        """A row for each connection, as a pandas.DataFrame; docs/connections.md has the columns.

        Raises UsageError where pandas or columns are missing, FileError, DamagedError.
        """
        return self._above("connections()").frame(self, "connections")

    def intervals(self) -> Any:
        """A row for each run of one limit of a connection; as connections()."""
        return self._above("intervals()").frame(self, "intervals")

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
