# SPDX-License-Identifier: Apache-2.0
"""Whether a copy is like the capture: the same transfer with the same setting, by its values.

Times are those in which there was something to send, or to be acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.diff.metrics import SHARED
from tcpkmon.formats.analysis.diff.statistics import scipy_stats
from tcpkmon.formats.analysis.why import FAMILY, Connection

_NOT_BUSY = ("idle", "opening", "closing")
_DURATION, _TRIP, _RETRANS, _SHARES = 0.15, 0.2, 0.5, 0.25
"""How far a copy may be from the capture: relative, and of the shares of limits the sum of those
that are too large. Or as far as the copies are from each other, by chance."""
_TRIP_US, _RETRANS_RATIO = 1000.0, 0.01
"""And what it may differ by in any case."""


def values_of(one: Connection) -> dict[str, float]:
    """What is compared, by the names of `tcpkmon diff`."""
    busy = {name: ns for name, ns in one.limit_ns.items() if name not in _NOT_BUSY}
    total = max(sum(busy.values()), 1)
    found = {
        "duration_us": total / 1000,
        "goodput_mean": one.bytes_acked * 1e9 / total,
        "retrans_ratio": one.segments_retransmitted * one.mss / max(one.bytes_sent, 1),
    }
    for name in ("srtt_p50_us", "srtt_p95_us", "queue_p95_us"):
        value = getattr(one, name)
        if value is not None:
            found[name] = float(value)
    for limit in SHARED:
        if limit not in _NOT_BUSY:
            held = sum(ns for name, ns in busy.items() if limit in (name, FAMILY.get(name)))
            found[f"share_{limit}"] = held / total
    return found


@dataclass(frozen=True)
class Likeness:
    """A value of the capture and of the copies: the middle, least and largest. off: how far the
    middle is from the capture's, relative, of shares the difference. may: how far it may be."""

    name: str
    capture: float
    copy: float
    least: float
    most: float
    off: float
    may: float

    @property
    def is_alike(self) -> bool:
        """Near enough, or among the copies' own values."""
        return abs(self.off) <= self.may or self.least <= self.capture <= self.most


def look_alike(
    capture: Mapping[str, float], copies: Sequence[Mapping[str, float]]
) -> list[Likeness]:
    """The values by which it is judged. `limits`: the share of time limited otherwise."""
    found = []
    for name, share, least_off in (
        ("duration_us", _DURATION, 0.0), ("srtt_p50_us", _TRIP, _TRIP_US),
        ("retrans_ratio", _RETRANS, _RETRANS_RATIO),
    ):  # fmt: skip
        values = [one[name] for one in copies if name in one]
        if name not in capture or not values:
            continue
        goal, middle = capture[name], float(np.median(values))
        off, may = 0.0, max(share, _by_chance(values))
        if scale := 1.0 if name == "retrans_ratio" else goal:
            off = (middle - goal) / scale
            may = max(share * goal, least_off, _by_chance(values)) / scale
        found.append(Likeness(name, goal, middle, min(values), max(values), off, may))
    shares = _shares(capture)
    apart = [0.5 * sum(abs(_shares(one)[name] - shares[name]) for name in shares) for one in copies]
    middle = float(np.median(apart))
    found.append(Likeness("limits", 0.0, middle, min(apart), max(apart), middle, _SHARES))
    return found


def _by_chance(values: Sequence[float]) -> float:
    """How far one more play may be from the middle of these, in 95 of 100 cases."""
    count = len(values)
    if count < 2:
        return 0.0
    often = float(scipy_stats().t.ppf(0.975, count - 1))
    return often * float(np.std(values, ddof=1)) * float(np.sqrt(1 + 1 / count))


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    """Of the limits that are no parts; the window's and its loss recovery's together, as which of
    them holds in a round trip is chance."""
    found = {name: values.get(f"share_{name}", 0.0) for name in SHARED}
    kept = {name: share for name, share in found.items() if name not in _NOT_BUSY}
    path = sum(kept.pop(name, 0.0) for name in ("cwnd", "recovery", "rto_wait"))
    return {**kept, "path": path}
