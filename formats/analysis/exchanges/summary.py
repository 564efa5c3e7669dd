# SPDX-License-Identifier: Apache-2.0
"""Percentiles of the parts of exchanges, and which part is the largest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.exchanges.columns import PARTS
from tcpkmon.formats.analysis.why import Table

SHARES = (50, 95, 99)
SHOWN = (*PARTS, "total")
_OF_TOTAL = PARTS[1:]


@dataclass(frozen=True)
class Part:
    """n values of one part [ns]: percentiles of SHARES, the largest, and their sum."""

    count: int
    percentiles: tuple[float, ...]
    most: float
    sum: float


@dataclass(frozen=True)
class Summary:
    """Exchanges of one side together. parts: by name of SHOWN, those that have values.

    unanswered, inexact, uncertain, pipelined: how many of them. share: by name, 0 to 1, of the time
    from request to end that a part took; largest: the name of the largest one, "" without any and
    where the bounds of the times leave it open. streams: on how many ends of connections single
    requests cannot be told apart.
    """

    count: int
    parts: dict[str, Part]
    share: dict[str, float]
    unanswered: int
    inexact: int
    uncertain: int
    pipelined: int
    streams: int
    uncertain_ns: int

    @property
    def largest(self) -> str:
        """The part that took most of the time. A bound may be taken from it for another part."""
        sums = sorted((self.parts[name].sum for name in self.share), reverse=True)
        if len(sums) > 1 and sums[0] - sums[1] < 2 * self.uncertain_ns:
            return ""
        return max(self.share, key=lambda name: self.share[name], default="")


def summarize(table: Table, at: Array) -> Summary:
    """The exchanges in these rows."""
    parts = {}
    for name in SHOWN:
        values = table[f"{name}_ns"][at].astype(np.float64)
        values = values[~np.isnan(values)]
        if len(values):
            found = tuple(np.percentile(values, SHARES).tolist())
            parts[name] = Part(len(values), found, float(values.max()), float(values.sum()))
    whole = sum(parts[name].sum for name in _OF_TOTAL if name in parts)
    share = {name: parts[name].sum / whole for name in _OF_TOTAL if name in parts and whole}
    return Summary(
        len(at), parts, share,
        unanswered=int((table["response_bytes"][at] == 0).sum()),
        inexact=int((~table["exact"][at]).sum()),
        uncertain=int((~table["certain"][at]).sum()),
        pipelined=int(table["pipelined"][at].sum()),
        streams=len(np.unique(table["conn_id"][at][table["pipelined"][at]])),
        uncertain_ns=int(table["uncertain_ns"][at].sum()),
    )  # fmt: skip


def slowest(table: Table, most: int) -> Array:
    """The rows of those that took longest, the longest first; of both ends of one connection both
    are there."""
    total = np.nan_to_num(table["total_ns"].astype(np.float64), nan=-1.0)
    order = np.argsort(-total, kind="stable")
    return order[total[order] >= 0][:most]
