# SPDX-License-Identifier: Apache-2.0
"""One event of a Klogger log, for analysis scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Event:
    """One event: the name of its type, the serial in the log of its CPU, time, CPU and fields.

    timestamp: CLOCK_MONOTONIC in ns. event["pid"] is a field: an int, the name of an enumerated
    value (the int if the enum has no name for it), or text.
    """

    type: str
    serial: int
    timestamp: int
    cpu: int
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` if the event has no such field."""
        return self.fields.get(name, default)
