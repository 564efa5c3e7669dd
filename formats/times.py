# SPDX-License-Identifier: Apache-2.0
"""Times in nanoseconds as text, whole columns at a time: for pmgraph and export."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BILLION = 1_000_000_000
_FOURS = np.array([f"{number:04d}".encode() for number in range(10_000)]).view(np.uint32)
_UNITS = np.array([f"{n // 100}.{n % 100:02d}".encode() for n in range(1000)]).view(np.uint32)
_WIDEST_SPAN_S = 100_000


def format_ns(times_ns: Array, digits: int = 6) -> Array:
    """Times in ns (int64) as seconds with `digits` (6 or 9) decimals, an array of bytes ('S')."""
    if not len(times_ns):
        return np.empty(0, "S1")
    low, high = (int(time_ns) // _BILLION for time_ns in (times_ns.min(), times_ns.max()))
    if low < 0 or len(str(low)) != len(str(high)) or high - low > _WIDEST_SPAN_S:
        return np.array([_format_one(value, digits) for value in times_ns.tolist()])
    heads = np.arange(low // 10, high // 10 + 1).astype(f"S{len(str(low)) - 1 or 1}")
    return _join(heads if low >= 10 else np.array([b""]), low // 10 * 10, times_ns, digits, b"")


def format_utc(times_ns: Array, between: str = "T") -> Array:
    """Times in ns since the epoch (int64) as date and time in UTC with six decimals and Z ('S')."""
    if not len(times_ns):
        return np.empty(0, "S1")
    low, high = (int(time_ns) // _BILLION for time_ns in (times_ns.min(), times_ns.max()))
    if low < 0 or high - low > _WIDEST_SPAN_S:
        texts = np.datetime_as_string(times_ns.astype("datetime64[ns]"), unit="us")
        return np.char.add(np.char.replace(texts.astype("S"), b"T", between.encode()), b"Z")
    tens = np.arange(low // 10, high // 10 + 1) * 10
    heads = np.datetime_as_string(tens.astype("datetime64[s]"), unit="s").astype("S")
    heads = np.char.replace(heads, b"T", between.encode()).astype("S18")
    return _join(heads, low // 10 * 10, times_ns, 6, b"Z")


def _join(heads: Array, first_s: int, times_ns: Array, digits: int, after: bytes) -> Array:
    """The text of the tens of seconds from first_s on, and of what is left of each time.

    179528386 5.67 8901 with 6 decimals, 179528386 5.67 890(1 1)234 with 9: four characters at
    a time, one of them twice.
    """
    since_ns = times_ns - first_s * _BILLION
    tens = since_ns // (10 * _BILLION)
    rest_ns = since_ns - tens * (10 * _BILLION)
    hundredths = rest_ns // 10_000_000
    rest = (rest_ns - hundredths * 10_000_000).astype(np.uint32)
    width = heads.dtype.itemsize if heads[0] else 0
    form: dict[str, tuple[Any, int]] = {
        "units": (np.uint32, width),
        "next": (np.uint32, width + 4),
    }
    if digits == 9:
        form["last"] = (np.uint32, width + 7)
    if width:
        form["head"] = (f"S{width}", 0)
    if after:
        form["after"] = (f"S{len(after)}", width + 2 + digits)
    kinds, offsets = zip(*form.values(), strict=True)
    size = width + 2 + digits + len(after)
    dtype = np.dtype(
        {"names": list(form), "formats": list(kinds), "offsets": list(offsets), "itemsize": size}
    )
    text = np.empty(len(times_ns), dtype)
    if width:
        text["head"] = heads[0] if len(heads) == 1 else heads[tens]
    text["units"] = _UNITS[hundredths]
    text["next"] = _FOURS[rest // np.uint32(1000)]
    if digits == 9:
        text["last"] = _FOURS[rest % np.uint32(10_000)]
    if after:
        text["after"] = after
    return text.view(f"S{size}")


def _format_one(value_ns: int, digits: int) -> bytes:
    seconds, rest = divmod(abs(value_ns), _BILLION)
    fraction = f"{rest:09d}"[:digits]
    return f"{'-' if value_ns < 0 else ''}{seconds}.{fraction}".encode()
