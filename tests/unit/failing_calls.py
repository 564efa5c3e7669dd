# SPDX-License-Identifier: Apache-2.0
"""System calls that fail when told to, for the tests of sinks, writer, spool and output."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from tcpkmon.collector.writer.file_sink import Calls

SHORT = -1
"""Instead of an errno: the write takes only a part."""


class FaultyCalls(Calls):
    """Real calls, but for the k-th of a name (from 1), which fails with an errno, once or from
    then on. Counts all calls; `limit_bytes` makes the disk full at that size of the file."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: dict[tuple[str, int], int] = {}
        self.always: dict[str, int] = {}
        self.limit_bytes: int | None = None
        for name in ("open", "write", "fsync", "ftruncate", "lseek", "fchmod", "link", "rename",
                     "unlink", "close", "fallocate"):  # fmt: skip
            setattr(self, name, self._wrapped(name, getattr(Calls, name)))

    def fail(self, name: str, code: int, at: int | None = None) -> None:
        """Have a call fail: the at-th from now on, or all."""
        if at is None:
            self.always[name] = code
        else:
            self.faults[name, self.counts[name] + at] = code

    def heal(self) -> None:
        self.always.clear()
        self.faults.clear()
        self.limit_bytes = None

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.counts[name] += 1
            code = self.faults.get((name, self.counts[name]), self.always.get(name, 0))
            if code > 0:
                raise OSError(code, os.strerror(code))
            if name == "write":
                fd, data = arguments
                size = len(data)
                if code == SHORT:
                    size = max(1, size // 2 - 7)
                if self.limit_bytes is not None:
                    size = min(size, self.limit_bytes - os.fstat(fd).st_size)
                    if size <= 0:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(fd, data[:size])
            return real(*arguments, **named)

        return call
