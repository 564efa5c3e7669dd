# SPDX-License-Identifier: Apache-2.0
"""What the flight recorder keeps, and when it writes a dump."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tcpkmon.collector.plan.options import EXPRESSIONS, JOINED, number, option, quantity
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.expressions import parse, read_all
from tcpkmon.formats.base.quantities import parse_duration, parse_size

LEAST_BYTES, _LAST_BYTES = 1 << 20, 256 << 20
STALL = "stall"
STALL_COLUMNS = ("snd_una", "seg_ack")
"""What a stall needs beside its own: a segment is recorded before its ACK counts, and the last one
of a quiet connection acknowledges all."""
MOST_TRIGGERS = 64
_TIME = re.compile(r"\s*[0-9.]+(ms|s|m|h|d)\s*")


def parse_last(text: str) -> tuple[float | None, int]:
    """Seconds and bytes of a text such as 30s, 256M or 5m,1G. UsageError."""
    last_s, last_bytes = None, None
    for word in text.split(","):
        if _TIME.fullmatch(word):
            last_s = parse_duration(word)
        else:
            last_bytes = parse_size(word)
    return last_s, _LAST_BYTES if last_bytes is None else last_bytes


_WINDOW = replace(
    JOINED, read=parse_last, toml=lambda value: parse_last(JOINED.toml(value)),
    spread=("last_s", "last_bytes"),
)  # fmt: skip


def _parse_after(text: str) -> float:
    return 0.0 if text in ("0", "0s") else parse_duration(text)


def columns_for(columns: str, texts: Sequence[str]) -> str:
    """--columns, with those that these triggers need and nobody thinks of."""
    stalls = any(re.search(rf"\b{STALL}\b", text) for text in texts)
    return ",".join((columns, *STALL_COLUMNS)) if stalls else columns


@dataclass(frozen=True)
class Recorder:
    """It keeps the records of the last last_s seconds, and of them at most last_bytes.

    A trigger writes them, and those of after_s seconds more, to a file in a folder. dumps_per_hour:
    triggers write no more, nor does the control group; root may always ask for one.
    """

    # fmt: off
    last_s: float | None = option(
        "--record-last TIME|SIZE", _WINDOW, "Flight recorder: keep this much in memory (30s, 256M, "
        "or 30s,1G), and write it to a file in the folder -o when a trigger fires.", "last",
        default=30.0)
    last_bytes: int = _LAST_BYTES
    after_s: float = option(
        "--after TIME", quantity(_parse_after), "Write so much after the trigger too. Default: 5s.",
        True, default=5.0)
    triggers: tuple[str, ...] = option(
        "--on EXPR", EXPRESSIONS, "A trigger: rto, rst, 'retrans_out > 3', 'srtt_us > 5 * "
        "min_rtt_us for 100ms', 'stall > 200ms'; tcpkmon triggers lists the names.", True)
    dumps_per_hour: int = option(
        "--dumps-per-hour N", number(1, 3600, checked=False),
        "Triggers write at most N files an hour. Default: 12.", True, default=12)
    # fmt: on

    def check(self) -> None:
        """Raises UsageError for values that make no sense, and for mistakes in triggers' form."""
        if self.last_s is not None and not 0.1 <= self.last_s < math.inf:
            raise UsageError("--record-last: less than 0.1 s", "write 30s or 256M")
        if self.last_bytes < LEAST_BYTES:
            what = f"--record-last: less than {LEAST_BYTES >> 20} MiB"
            raise UsageError(what, "write 256M or 30s")
        if not 0 <= self.after_s <= 3600:
            raise UsageError("--after: not from 0 s to 1 h", "write 5s")
        if self.dumps_per_hour < 1:
            raise UsageError("--dumps-per-hour: less than 1", "write 12")
        if len(self.triggers) > MOST_TRIGGERS:
            raise UsageError(f"more than {MOST_TRIGGERS} triggers")
        read_all(self.triggers, parse)
