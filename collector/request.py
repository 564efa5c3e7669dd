# SPDX-License-Identifier: Apache-2.0
"""What a capture is asked for: made by the command line, read by the session."""

from __future__ import annotations

from dataclasses import dataclass

from collector.filters import Filters


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    filters: Filters
    output: str
    force: bool = False
    duration_s: float | None = None
    stop_after: int | None = None
    columns: str = "default"
    locations: str | None = None
    when_changed: tuple[str, ...] = ()
    buffer_bytes: int = 4 << 20
    low_water_percent: int = 75
    show: bool = False
    fail_on_loss: bool = False
    existing: bool = True
    as_root: bool = False
    ready_fd: int | None = None
    quiet: bool = False
    verbose: bool = False
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = None
