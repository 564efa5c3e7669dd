# SPDX-License-Identifier: Apache-2.0
"""Times in nanoseconds as text, as formats/lines/numbers.h writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_BILLION = 1_000_000_000


def format_ns(times_ns: npt.NDArray[Any], digits: int = 6) -> list[str]:
    """Times in ns (int64) as seconds with 6 or 9 decimals, not rounded."""
    parts = ((time_ns < 0, *divmod(abs(time_ns), _BILLION)) for time_ns in times_ns.tolist())
    return [f"{'-' * sign}{seconds}.{f'{rest:09d}'[:digits]}" for sign, seconds, rest in parts]


def format_utc(times_ns: npt.NDArray[Any], between: str = "T", digits: int = 6) -> list[str]:
    """Times in ns since the epoch (int64) as UTC date and time with 6 or 9 decimals and Z."""
    seconds, rest = np.divmod(times_ns, _BILLION)
    dates = np.datetime_as_string(seconds.astype("datetime64[s]"), unit="s").tolist()
    return [
        f"{date.replace('T', between)}.{f'{part:09d}'[:digits]}Z"
        for date, part in zip(dates, rest.tolist(), strict=True)
    ]
