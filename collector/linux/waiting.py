# SPDX-License-Identifier: Apache-2.0
"""Waits for descriptors, of any number: select() takes none above 1023."""

from __future__ import annotations

import select
from collections.abc import Iterable


def readable(fds: Iterable[int], timeout_s: float | None) -> set[int]:
    """Those that can be read, or are at their end; empty after the time. None: wait for ever."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
