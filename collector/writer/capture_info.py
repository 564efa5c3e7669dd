# SPDX-License-Identifier: Apache-2.0
"""What a stream knows of its capture, without knowing how it was planned and loaded.

The session makes a CaptureInfo when the programs are attached (collector/session/capture_info.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from collector.writer.base_events import Note
from formats.psc.columns import Column
from formats.schema import Event, Field, Schema


class Columns(Protocol):
    """The columns of a snapshot: collector/plan/columns.py, Layout."""

    @property
    def schema(self) -> Schema: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    @property
    def entry_size(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def field(self, name: str) -> Field: ...


class Current(Protocol):
    """What can change while a capture runs. The writing thread asks too."""

    buffer_bytes: int
    """Size of a CPU's ring."""
    low_water_percent: int

    def states(self) -> Mapping[str, tuple[int, int]]:
        """By location and event: its number, and 1 on, 0 off, -1 not on this kernel."""


@dataclass(frozen=True)
class CaptureInfo:
    """What a file says of its capture, and what is needed to write it; nothing of it changes."""

    version: str
    """Of this package."""
    kernel: str
    """Release, version and machine."""
    settings: Mapping[str, Any]
    """For the header, fit for JSON."""
    dtype: np.dtype[Any]
    """Of a record in the ring."""
    cpus: int
    """That this machine can have."""
    asked: int
    """Locations and events that were asked for."""
    recorded: int
    """Those of them that this kernel has."""
    programs: int
    buffer_bytes: int
    """As it was asked for; Current has what a ring got."""
    low_water_percent: int
    columns: Columns | None = None
    """None without the schema tcp. The next two belong to it."""
    schema_text: str = ""
    page_bytes: int = 0
    schema: Schema | None = None
    """The merged schemata, for formats that take events."""
    events: Sequence[tuple[int, Event]] = ()
    """All events of the schema, each with its number."""
    mixed: bool = False
    """Snapshots and other events share the rings."""
    sockets: Callable[[], Iterable[Note]] = tuple
    """Makes SOCKET_EXISTS of the sockets that are there now."""
