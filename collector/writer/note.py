# SPDX-License-Identifier: Apache-2.0
"""A base event of a Klogger log, which the collector makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERY_CPU = -1
FIRST_CPU = -2


@dataclass(frozen=True)
class Note:
    """A base event to be written into a CPU's file. mono_ns: when it happened, 0 for now."""

    name: str
    values: Mapping[str, int | str | bytes]
    cpu: int = EVERY_CPU
    mono_ns: int = 0
