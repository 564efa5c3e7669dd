# SPDX-License-Identifier: Apache-2.0
"""Whom a capture tells that it is attached, and that it goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tcpkmon.collector.loader.parked import Parked


class Overseer:
    """Who started a capture. This one wants to know only when it is attached; see collect's option
    --ready-fd. The daemon's wants to know more."""

    holds = False
    """Whether it keeps what park() hands over, for the next process if this one is killed."""
    parked: Parked | None = None
    """What the process before this one handed over."""

    def __init__(self, ready_fd: int | None = None) -> None:
        self._ready_fd = ready_fd

    def park(self, state: Mapping[str, Any], fds: Mapping[str, int]) -> None:
        """Hold these descriptors, by name, beside those before. state: empty: as before."""

    def went_on(self, killed: int) -> None:
        """It goes on with what was parked; so many records were lost by that."""

    def anew(self, why: str) -> None:
        """The capture begins anew: nobody goes on with what was parked."""

    def ready(self) -> None:
        """The capture is attached, and records."""
        if self._ready_fd is not None:
            with suppress(OSError):  # its reader is gone
                os.write(self._ready_fd, b"!")

    def is_there(self, records: int, lost: Mapping[str, int]) -> bool:
        """Told about once a second, after the rings were drained. False ends the capture."""
        return True
