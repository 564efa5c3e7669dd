# SPDX-License-Identifier: Apache-2.0
"""Durations, sizes, rates and limits as people write them, on the command line and in files."""

from __future__ import annotations

import math
import re

from formats.base.errors import UsageError

_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_duration(text: str) -> float:
    """Seconds of a text such as 10, 10s, 250ms, 2m, 1h, 7d. UsageError."""
    match = re.fullmatch(rf"({_NUMBER})(ms|s|m|h|d|)", text.strip())
    if not match or float(match[1]) == 0:
        raise UsageError(f"not a duration: {text!r}", "write 10s, 250ms, 2m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(text: str) -> int:
    """Bytes of a text such as 4096, 512K, 256M, 1.5G; the prefixes are powers of 1024. UsageError.
    """
    match = re.fullmatch(rf"({_NUMBER})\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not (found := int(float(match[1]) * _BYTES[match[2].upper()])):
        raise UsageError(f"not a size: {text!r}", "write 512K, 100M or 2G")
    return found


def parse_megabytes(number: float) -> int:
    """Megabytes as bytes. UsageError for nan."""
    if math.isnan(number):
        raise UsageError("--buffer-size: nan is no size", "write 4 or 0.5")
    return int(number * (1 << 20))


def parse_limit(text: str) -> tuple[str, int]:
    """The event and the number of a text EVENT=N. UsageError."""
    name, _, number = text.partition("=")
    if not name or not re.fullmatch("[0-9]{1,10}", number) or not 0 < int(number) < 1 << 32:
        raise UsageError(f"not a limit: {text!r}", "write EVENT=N, N records a second")
    return name, int(number)
