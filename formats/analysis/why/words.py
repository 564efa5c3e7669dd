# SPDX-License-Identifier: Apache-2.0
"""Bytes, rates, times and ends of connections for people."""

from __future__ import annotations


def human_bytes(number: float) -> str:
    """65.5 kB, 2.4 MB; decimal."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def human_rate(bytes_per_s: float) -> str:
    """94 Mbit/s."""
    bits = bytes_per_s * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 1000 or unit == "Gbit/s":
            break
        bits /= 1000
    return f"{bits:.0f} {unit}" if bits >= 100 else f"{bits:.1f} {unit}"


def human_time(us: float) -> str:
    """40 us, 4.7 ms, 1.2 s."""
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"
