# SPDX-License-Identifier: Apache-2.0
"""Why sequence numbers are missing in a file, and why it ended."""

from __future__ import annotations

import enum


class LossCause(enum.IntEnum):
    """Why sequence numbers are missing."""

    KERNEL = 0
    LATE = 1
    QUEUE_FULL = 2
    DISK_FULL = 3
    WRITE_ERROR = 4
    DAMAGED = 5
    KILLED = 6  # the process that had read them was killed before it wrote them


class EndReason(enum.IntEnum):
    """Why a capture ended."""

    ASKED = 0
    DURATION = 1
    COUNT = 2
    COMMAND_ENDED = 3
    ERROR = 4
    ROTATED = 6  # the capture goes on in the next file; 5 is DISABLED in Klogger logs
    DUMPED = 7  # the flight recorder goes on; what follows is in no file, or in a later one
