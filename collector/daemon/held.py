# SPDX-License-Identifier: Apache-2.0
"""What a capture's process parked with the supervisor: collector/loader/parked.py says what it is.

The supervisor only holds it, for the next process if this one is killed. It knows names alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from formats.base.closing import Closing

MORE = "more/"


class Held(Closing):
    """Descriptors by name, and `state`, which is JSON."""

    def __init__(self) -> None:
        self.fds: dict[str, int] = {}
        self.state: dict[str, Any] = {}

    def add(
        self, state: Mapping[str, Any], names: Sequence[str], fds: Sequence[int], trusted: bool
    ) -> None:
        """Hold these instead of all before, as a process parks all of its own at its start.

        trusted: it has not given up its privileges yet. Then it adds links alone: MORE.
        """
        if trusted and state:
            self.close()
            self.state = dict(state)
        for index, fd in enumerate(fds):
            name = str(names[index]) if index < len(names) else ""
            if name in self.fds or not (trusted or name.startswith(MORE)):
                os.close(fd)
            else:
                self.fds[name] = fd

    def close(self) -> None:
        """Close all: what no other process holds ends."""
        while self.fds:
            os.close(self.fds.popitem()[1])
        self.state = {}
