# SPDX-License-Identifier: Apache-2.0
"""An open file of records, for Logs and the commands over it: of logs, of MAGNeT, of many files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_DAMAGE
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import LogFormat


class Missing(ABC):
    """What is missing from the records that were read so far, of which there are `records`.

    complete: logging ended in order. goes_on: another file follows.
    """

    records = 0
    complete = False
    goes_on = False

    @property
    @abstractmethod
    def counted(self) -> tuple[int, int]:
        """How many events are missing where the records are, and how many by the ledger."""

    @property
    @abstractmethod
    def missed(self) -> int:
        """Events that the programs never saw."""

    @property
    def lost(self) -> int:
        """How many events are known to be missing."""
        return max(self.counted) + self.missed

    @abstractmethod
    def describe(self) -> str:
        """The losses in a line of text; empty if there are none."""


class Source(Closing):
    """An open file whose records are events. batches() updates `problems` and `losses`.

    path: what it is called for people. header: as in the file. format: its events. problems: the
    damage, the first MOST_DAMAGE. Text from the file can hold any character: escape it before you
    print it.
    """

    path: Path
    format: LogFormat
    header: Mapping[str, Any]
    problems: list[DamagedError]
    losses: Missing
    missing = ""
    """What it says of files that are not there."""
    finish = "KLOGGER_FINISH"
    """With this ends a file that is complete."""
    _more = 0

    @abstractmethod
    def present(self) -> frozenset[int]:
        """The event numbers that occur; ignores damage."""

    @abstractmethod
    def batches(self, records: int = ...) -> Iterator[LogBatch]:
        """All valid records in file order; a batch has at most `records`."""

    @property
    def damage(self) -> str:
        """The damage found so far, in one line; empty if there is none."""
        more = [f"and {self._more} more"] if self._more else []
        return "; ".join([*map(str, self.problems), *more])

    @property
    def tail(self) -> str:
        """What is unknown: missing files, and the end; empty if nothing is."""
        return "; ".join(text for text in (self.missing, self._end()) if text)

    def _end(self) -> str:
        """Why the end is unknown."""
        if not self.losses.complete:
            return f"tail unknown: the file does not end with {self.finish}"
        return "tail unknown: the file is damaged" if self.problems else ""

    def _forget(self) -> None:
        """It is read anew."""
        self.problems, self._more = [], 0

    def _note(self, problem: DamagedError) -> None:
        if len(self.problems) < MOST_DAMAGE:
            self.problems.append(problem)
        else:
            self._more += 1
