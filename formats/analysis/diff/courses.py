# SPDX-License-Identifier: Apache-2.0
"""The course of a capture over time: goodput and round-trip time of the connections that count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.analysis.diff.sides import Run
from formats.analysis.why.grouping import Grouped
from formats.analysis.why.intervals import Cutter
from formats.analysis.why.snapshots import Source

Floats = NDArray[np.float64]
_FIRST_BIN_NS = 20_000_000


@dataclass(frozen=True)
class Course:
    """bin_ns: length of a bin. goodput: (n,) bytes/s. srtt_us: (n,), NaN without a record."""

    bin_ns: int
    goodput: Floats
    srtt_us: Floats


def course_of(run: Run, most: int = 100) -> Course | None:
    """In at most so many bins, since its first connection began; None without connections."""
    table = run.connections
    if table is None or not len(table["conn_id"]):
        return None
    sends = table["bytes_acked"] >= table["bytes_received"]
    ids = {kind: np.sort(table["conn_id"][sends == (kind == "acked")].astype(np.uint64))
           for kind in ("acked", "received")}  # fmt: skip
    begin, end = int(table["start_ns"].min()), int(table["end_ns"].max())
    bin_ns = _FIRST_BIN_NS
    while (end - begin) // bin_ns >= most:
        bin_ns *= 2
    count = (end - begin) // bin_ns + 1
    sums, times, records = (np.zeros(count) for _ in range(3))
    cutter = Cutter()
    with Source(run.path) as source:
        for piece in source.read():
            if not len(piece):
                continue
            grouped = Grouped(piece, cutter.places)
            _, steps = cutter.add_grouped(grouped)
            mine = grouped.columns["conn_id"].astype(np.uint64)
            places = np.clip((steps.end_ns - begin) // bin_ns, 0, count - 1)
            for kind, moved in (("acked", steps.acked), ("received", steps.received)):
                rows = np.isin(mine, ids[kind])
                sums += np.bincount(places[rows], moved[rows], count)
                if kind == "acked":
                    srtt = grouped.columns["srtt_us"][rows].astype(np.float64)
                    times += np.bincount(places[rows], srtt, count)
                    records += np.bincount(places[rows], srtt > 0, count)
    with np.errstate(all="ignore"):
        srtt = np.where(records > 0, times / records, np.nan)
    return Course(bin_ns, sums * 1e9 / bin_ns, srtt)
