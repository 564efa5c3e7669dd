# SPDX-License-Identifier: Apache-2.0
"""One event of a Klogger log, as analysis scripts see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Event:
    """One event: its type's name, serial in its CPU's log, time and fields; event["pid"] is one.

    timestamp: CLOCK_MONOTONIC, ns. Fields are ints, names for enumerated values (the int where the
    enum has no name for it), and text.
    """

    type: str
    serial: int
    timestamp: int
    cpu: int
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where the event has none of that name."""
        return self.fields.get(name, default)
