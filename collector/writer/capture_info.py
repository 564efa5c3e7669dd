# SPDX-License-Identifier: Apache-2.0
"""What a stream knows of its capture. The writer does not know how it was planned and loaded.

collector/session/capture_info.py makes a CaptureInfo when the programs are attached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tcpkmon.collector.writer.note import Note
from tcpkmon.formats.psc.columns import Column
from tcpkmon.formats.schema import Event, Schema


class Current(Protocol):
    """What can change during a capture. The writing thread reads it too."""

    buffer_bytes: int
    """Size of a CPU's ring."""
    low_water_percent: int

    def states(self) -> Mapping[str, tuple[int, int]]:
        """By location and event: its number, and 1 on, 0 off, -1 not on this kernel."""


@dataclass(frozen=True)
class CaptureInfo:
    """What does not change during a capture: for the header and for the writing."""

    version: str
    """Of this package."""
    kernel: str
    """Release, version and machine."""
    settings: Mapping[str, Any]
    """For the header, fit for JSON."""
    dtype: np.dtype[Any]
    """Of a record in the ring."""
    cpus: int
    """How many this machine can have."""
    requested: int
    """Locations and events."""
    recorded: int
    """Those of them that this kernel has."""
    programs: int
    buffer_bytes: int
    """As requested; Current has the size that a ring got."""
    low_water_percent: int
    tcp: Schema | None = None
    """None without the schema tcp. The next four are of its snapshots."""
    columns: Sequence[Column] = ()
    entry_size: int = 0
    """Bytes of a snapshot."""
    schema_text: str = ""
    page_bytes: int = 0
    schema: Schema | None = None
    """The merged schemata, for formats that can hold any schema."""
    events: Sequence[tuple[int, Event]] = ()
    """All events of the schema, each with its number."""
    mixed: bool = False
    """Snapshots and other events share the rings."""
    sockets: Callable[[], Iterable[Note]] = tuple
    """Makes SOCKET_EXISTS of the sockets that exist now."""
    remembered: int | None = None
    """Of how many connections a later file may repeat the last record; None: states.MOST."""
