# SPDX-License-Identifier: Apache-2.0
"""The units of axes: the prefix that makes numbers short, and the name of the axis."""

from __future__ import annotations

_DECIMAL = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s"), (1e-9, "ns"))
_IN_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DIMENSIONS = {
    "bytes": "size", "bytes/s": "rate", "segments": "segments", "": "value",
    "s": "duration", "ms": "duration", "us": "duration", "ns": "duration",
}  # fmt: skip


def choose_scale(unit: str, largest: float) -> tuple[float, str]:
    """Factor and printed unit for values of `unit` up to `largest`.

    Values times the factor have few digits before the point. 1 kB is 1000 B.
    """
    largest = abs(largest)
    if unit in ("bytes", "bytes/s"):
        name = "B" + unit[len("bytes") :]
        for size, prefix in _DECIMAL:
            if largest >= size or size == 1.0:
                return 1 / size, prefix + name
    if unit in _IN_SECONDS:
        for size, name in _SECONDS:
            if largest * _IN_SECONDS[unit] >= size or name == unit.replace("us", "\u00b5s"):
                return _IN_SECONDS[unit] / size, name
    return 1.0, unit


def dimension_of(unit: str) -> str:
    """The name of an axis for several quantities of this unit."""
    return _DIMENSIONS.get(unit, unit)
