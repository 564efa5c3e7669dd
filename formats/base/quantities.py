# SPDX-License-Identifier: Apache-2.0
"""Durations, sizes, rates and limits as people write them, on the command line and in files."""

from __future__ import annotations

import re

from tcpkmon.formats.base.errors import UsageError

_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MOST_S, MOST_BYTES = 100 * 366 * 86400.0, 1 << 60
"""No duration and no size is larger."""


def parse_duration(text: str) -> float:
    """Seconds of a text such as 10, 10s, 250ms, 2m, 1h, 7d. UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", text.strip())
    found_s = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < found_s <= MOST_S:
        raise UsageError(f"not a duration: {text!r}", "write 10s, 250ms, 2m or 1h")
    return found_s


def parse_size(text: str) -> int:
    """Bytes of a text such as 4096, 512K, 256M, 1.5G; the prefixes are powers of 1024. UsageError.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    found = float(match[1]) * _BYTES[match[2].upper()] if match else 0.0
    if not 1 <= found <= MOST_BYTES:
        raise UsageError(f"not a size: {text!r}", "write 512K, 100M or 2G")
    return int(found)


def parse_megabytes(number: float) -> int:
    """Megabytes as bytes. UsageError for nan."""
    if not abs(number) <= MOST_BYTES >> 20:
        raise UsageError(f"--buffer-size: {number} is no size", "write 4 or 0.5")
    return int(number * (1 << 20))


def parse_limit(text: str) -> tuple[str, int]:
    """The event and the number of a text EVENT=N. UsageError."""
    name, _, number = text.partition("=")
    is_number = number.isascii() and number.isdigit() and len(number) < 11
    if not name or not is_number or not 0 < int(number) < 1 << 32:
        raise UsageError(f"not a limit: {text!r}", "write EVENT=N, N records a second")
    return name, int(number)
