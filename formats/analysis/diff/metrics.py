# SPDX-License-Identifier: Apache-2.0
"""What is compared: the metrics, and which direction of each is worse."""

from __future__ import annotations

from dataclasses import dataclass

from tcpkmon.formats.analysis.latency.stages import PARTS
from tcpkmon.formats.analysis.why.limits import FAMILY, LIMITS
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import suggest

RATE, TIME, RATIO, SHARE = "rate", "time", "ratio", "share"


@dataclass(frozen=True)
class Metric:
    """kind: RATE [bytes/s], TIME [us], RATIO or SHARE (numbers from 0, shown in %). The change of a
    SHARE is a difference in points, that of the others is relative.

    worse: 1 if more is worse, -1 if less is, 0: neither. of_sender: null for the end that receives.
    """

    name: str
    kind: str
    worse: int
    text: str
    of_sender: bool = False


SHARED = tuple(name for name in LIMITS if name not in FAMILY and name != "closing")
"""The limits whose shares are compared, with their parts."""
METRICS = (
    Metric("goodput_mean", RATE, -1, "bytes of data by the connection's time"),
    Metric("goodput_p50", RATE, -1, "of its times of 100 ms the middle one"),
    Metric("duration_us", TIME, 1, "from its first record to its last"),
    Metric("handshake_us", TIME, 1, "from SYN_SENT to ESTABLISHED"),
    Metric("min_rtt_us", TIME, 1, "least round-trip time"),
    Metric("srtt_p50_us", TIME, 1, "smoothed round-trip time, the middle of its records", True),
    Metric("srtt_p95_us", TIME, 1, "and their 95 %", True),
    Metric("queue_p95_us", TIME, 1, "of round trips, what is beyond the least, 95 %", True),
    Metric("retrans_ratio", RATIO, 1, "bytes sent again by bytes sent", True),
    *(
        Metric(f"share_{name}", SHARE, int(name in ("recovery", "rto_wait")),
               f"of its time, in which the limit was {name}", True)
        for name in SHARED
    ),
    *(
        Metric(f"latency_{part}_us", TIME, 1, f"of a byte's time, in {part} (mean)")
        for part in PARTS
    ),
    Metric("latency_whole_us", TIME, 1, "a byte's time from write to read, or to ACK (mean)"),
    Metric("latency_whole_p95_us", TIME, 1, "and the 95 % of its bytes"),
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}


def parse_metrics(text: str | None) -> list[str]:
    """The names of NAME,... UsageError for an unknown one."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    unknown = [f"{name}{suggest(name, BY_NAME)}" for name in names if name not in BY_NAME]
    if unknown:
        hint = "tcpkmon diff --metrics help lists them"
        raise UsageError(f"no metric {', '.join(unknown)}", hint)
    return names
