# SPDX-License-Identifier: Apache-2.0
"""Percentiles of the parts of exchanges, and which part is the largest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.exchanges.columns import PARTS
from tcpkmon.formats.analysis.exchanges.cutting import UNSURE
from tcpkmon.formats.analysis.why import Table

SHARES = (50, 95, 99)
LEAST = 3
"""Of fewer exchanges a percentile says nothing."""
SHOWN = (*PARTS, "total")
_OF_TOTAL = PARTS[1:]


@dataclass(frozen=True)
class Part:
    """One part [ns] of exchanges: percentiles of SHARES (none of fewer than LEAST exchanges), the
    largest, and the sum."""

    percentiles: tuple[float, ...]
    most: float
    sum: float


@dataclass(frozen=True)
class Summary:
    """Exchanges of one side together. parts: by name of SHOWN, those that have values, all of the
    same exchanges: `measured` of them, of which all these parts are known.

    unanswered (without goodbyes), goodbyes, inexact, uncertain, pipelined: how many of them.
    share: by name, 0 to 1, of the time from request to end that a part took; largest: the name of
    the largest one, "" without any and where the bounds of the times leave it open.
    """

    count: int
    measured: int
    parts: dict[str, Part]
    share: dict[str, float]
    unanswered: int
    goodbyes: int
    inexact: int
    uncertain: int
    pipelined: int
    uncertain_ns: int

    @property
    def largest(self) -> str:
        """The part that took most of the time. A bound may be taken from it for another part."""
        sums = sorted((self.parts[name].sum for name in self.share), reverse=True)
        if len(sums) > 1 and sums[0] - sums[1] < 2 * self.uncertain_ns:
            return ""
        return max(self.share, key=lambda name: self.share[name], default="")


def as_known(table: Table) -> Table:
    """The exchanges for people: read_ns is null where its bounds are as long as all the rest, as
    then the other times are known without it; and uncertain_ns is of total_ns."""
    total = table["total_ns"].astype(np.float64)
    unsure = table["read_uncertain_ns"]
    unknown = (unsure > 0) & (unsure >= UNSURE * np.nan_to_num(total))
    read = np.where(unknown, np.nan_to_num(table["read_ns"].astype(np.float64)), 0)
    rest = table["uncertain_ns"] - table["wait_uncertain_ns"] - unsure * unknown
    found = {"total_ns": total - read, "uncertain_ns": rest}
    return {**table, **found, "read_ns": np.where(unknown, np.nan, table["read_ns"])}


def summarize(table: Table, at: Array) -> Summary:
    """The exchanges in these rows."""
    columns = {name: table[f"{name}_ns"][at].astype(np.float64) for name in SHOWN}
    columns = {name: values for name, values in columns.items() if not np.isnan(values).all()}
    same = _known(columns, len(at))
    if "wait" in columns and not same.any():  # the pause before the first one is not known
        del columns["wait"]
        same = _known(columns, len(at))
    rest = {name: values for name, values in columns.items() if name != "read"}
    if 2 * same.sum() < (others := _known(rest, len(at))).sum():  # most readings are not known
        columns, same = rest, others
    if "total" not in columns:
        same[:] = False
    parts = {}
    for name in columns if same.any() else ():
        values = columns[name][same]
        few = len(values) < LEAST
        found = () if few else tuple(np.percentile(values, SHARES).tolist())
        parts[name] = Part(found, float(values.max()), float(values.sum()))
    whole = sum(parts[name].sum for name in _OF_TOTAL if name in parts)
    share = {name: parts[name].sum / whole for name in _OF_TOTAL if name in parts and whole}
    return Summary(
        len(at), int(same.sum()), parts, share,
        unanswered=int(((table["response_bytes"][at] == 0) & ~table["goodbye"][at]).sum()),
        goodbyes=int(table["goodbye"][at].sum()),
        inexact=int((~table["exact"][at]).sum()),
        uncertain=int((~table["certain"][at]).sum()),
        pipelined=int(table["pipelined"][at].sum()),
        uncertain_ns=int(table["uncertain_ns"][at][same].sum()),
    )  # fmt: skip


def _known(columns: dict[str, Array], count: int) -> Array:
    """(n,) whether all of them have a value."""
    found = np.ones(count, np.bool_)
    for values in columns.values():
        found &= ~np.isnan(values)
    return found


def slowest(table: Table, most: int) -> Array:
    """The rows of those that took longest, the longest first."""
    total = np.nan_to_num(table["total_ns"].astype(np.float64), nan=-1.0)
    order = np.argsort(-total, kind="stable")
    return order[total[order] >= 0][:most]
