# SPDX-License-Identifier: Apache-2.0
"""What the flight recorder keeps, and when it writes a dump."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collector.plan.quantities import parse_duration, parse_size
from collector.plan.triggers import TriggerError
from formats.base.errors import UsageError
from formats.base.expressions import Mistake, parse

LEAST_BYTES = 1 << 20
MOST_TRIGGERS = 64
_TIME = re.compile(r"\s*[0-9.]+(ms|s|m|h|d)\s*")


@dataclass(frozen=True)
class Recorder:
    """It keeps the records of the last last_s seconds, and of them at most last_bytes.

    A trigger writes them, and those of after_s seconds more, to a file in a folder. dumps_per_hour:
    triggers write no more, nor does the control group; root may always ask for one.
    """

    last_s: float | None = 30.0
    last_bytes: int = 256 << 20
    after_s: float = 5.0
    triggers: tuple[str, ...] = ()
    dumps_per_hour: int = 12


def parse_last(text: str) -> tuple[float | None, int]:
    """Seconds and bytes of a text such as 30s, 256M or 5m,1G. UsageError."""
    last_s, last_bytes = None, None
    for word in text.split(","):
        if _TIME.fullmatch(word):
            last_s = parse_duration(word)
        else:
            last_bytes = parse_size(word)
    return last_s, Recorder.last_bytes if last_bytes is None else last_bytes


def make_recorder(given: Mapping[str, Any]) -> Recorder:
    """Of its fields by name; with a size alone no time limits what is kept."""
    without_time = {"last_s": None} if "last_bytes" in given else {}
    return Recorder(**{**without_time, **given})


def check_recorder(recorder: Recorder) -> None:
    """Raises UsageError for values that make no sense, and for mistakes in triggers' form."""
    if recorder.last_s is not None and not 0.1 <= recorder.last_s < math.inf:
        raise UsageError("--record-last: less than 0.1 s", "write 30s or 256M")
    if recorder.last_bytes < LEAST_BYTES:
        raise UsageError(f"--record-last: less than {LEAST_BYTES >> 20} MiB", "write 256M or 30s")
    if not 0 <= recorder.after_s <= 3600:
        raise UsageError("--after: not from 0 s to 1 h", "write 5s")
    if recorder.dumps_per_hour < 1:
        raise UsageError("--dumps-per-hour: less than 1", "write 12")
    if len(recorder.triggers) > MOST_TRIGGERS:
        raise UsageError(f"more than {MOST_TRIGGERS} triggers")
    mistakes = []
    for text in recorder.triggers:
        try:
            parse(text)
        except Mistake as mistake:
            mistakes.append((text, mistake))
    if mistakes:
        raise TriggerError(mistakes)
