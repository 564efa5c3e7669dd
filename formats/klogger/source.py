# SPDX-License-Identifier: Apache-2.0
"""What Logs and the commands over it need of an open file of records: the protocol of LogReader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_DAMAGE
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import LogFormat


class Missing(Protocol):
    """What is missing from the records that were read so far; see formats.klogger.losses."""

    records: int

    @property
    def lost(self) -> int: ...

    @property
    def counted(self) -> tuple[int, int]: ...

    @property
    def missed(self) -> int: ...

    @property
    def complete(self) -> bool: ...

    @property
    def goes_on(self) -> bool: ...

    def describe(self) -> str: ...


class Damage:
    """Of what is read: `problems` are the first MOST_DAMAGE."""

    problems: list[DamagedError]
    _more = 0

    def _forget(self) -> None:
        """It is read anew."""
        self.problems, self._more = [], 0

    def _note(self, problem: DamagedError) -> None:
        if len(self.problems) < MOST_DAMAGE:
            self.problems.append(problem)
        else:
            self._more += 1

    @property
    def damage(self) -> str:
        """The damage found so far, in one line; empty if there is none."""
        more = [f"and {self._more} more"] if self._more else []
        return "; ".join([*map(str, self.problems), *more])


class Source(AbstractContextManager["Source"], Protocol):
    """An open file whose records are events; see LogReader, which it describes."""

    @property
    def path(self) -> Path: ...

    @property
    def format(self) -> LogFormat: ...

    @property
    def header(self) -> Mapping[str, Any]: ...

    @property
    def problems(self) -> Sequence[DamagedError]: ...

    @property
    def losses(self) -> Missing: ...

    @property
    def damage(self) -> str: ...

    @property
    def tail(self) -> str: ...

    def present(self) -> frozenset[int]: ...

    def batches(self, records: int = ...) -> Iterator[LogBatch]: ...

    def close(self) -> None: ...
