# SPDX-License-Identifier: Apache-2.0
"""Tables that analyses make of an open capture, as methods of its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tcpkmon.formats.base.errors import UsageError


class Analysed:
    """A reader whose captures have tables. tcpkmon.open() sets `frame`: analyses are above readers.

    frame(reader, name of the table): the table as a pandas.DataFrame.
    """

    frame: Callable[[Any, str], Any] | None = None

    def connections(self) -> Any:
        """A row for each connection, as a pandas.DataFrame; docs/connections.md has the columns.

        Raises UsageError where pandas or columns are missing, FileError, DamagedError.
        """
        return self._table("connections")

    def intervals(self) -> Any:
        """A row for each run of one limit of a connection; as connections()."""
        return self._table("intervals")

    def _table(self, name: str) -> Any:
        if self.frame is None:
            raise UsageError(f"{name}() needs a capture of tcpkmon.open()", "import tcpkmon")
        return self.frame(self, name)
