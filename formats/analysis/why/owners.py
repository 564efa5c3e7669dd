# SPDX-License-Identifier: Apache-2.0
"""Sums of the table connections by unit, container, pod or user."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.assemble import OWNERS, Table
from tcpkmon.formats.analysis.why.limits import FAMILY, LIMITS
from tcpkmon.formats.base.errors import UsageError

BY = (*OWNERS, "uid")
"""Columns of connections by which sums are."""
_SUMS = ("bytes_sent", "bytes_received", "retransmissions", "lost_records")


def by_owner(table: Table, name: str) -> list[dict[str, Any]]:
    """For each owner, most bytes first: how many connections, sums, and the limit that held them
    longest, with its part of their time. Their owner is None where nobody knows it.

    name: one of BY. UsageError where the capture has no ids of control groups.
    """
    if name not in BY:
        raise UsageError(f"--by {name}: no such owner", f"say {', '.join(BY)}")
    needed = "uid" if name == "uid" else "cgroup"
    if not np.isfinite(table[needed].astype(np.float64)).any() and len(table[needed]):
        what = "the capture does not tell whose its connections are"
        raise UsageError(what, f"collect --columns default,{needed}")
    families = sorted({FAMILY.get(one, one) for one in LIMITS})
    times: NDArray[np.float64] = np.zeros((len(table["conn_id"]), len(families)))
    for one in LIMITS:
        times[:, families.index(FAMILY.get(one, one))] += table[f"us_{one}"]
    numbers: dict[Any, int] = {}
    of = np.array([numbers.setdefault(one, len(numbers)) for one in _names(table[name])], np.int64)
    order, counts = np.argsort(of, kind="stable"), np.bincount(of, minlength=len(numbers))
    rows = []
    for owner, mine in zip(numbers, np.split(order, np.cumsum(counts)[:-1]), strict=False):
        held = times[mine].sum(axis=0)
        longest = int(held.argmax())
        rows.append({
            name: owner, "connections": len(mine),
            **{one: int(table[one][mine].sum()) for one in _SUMS},
            "main_limit": families[longest] if held.any() else None,
            "main_share": float(held[longest] / held.sum()) if held.any() else None,
        })  # fmt: skip
    return sorted(rows, key=lambda row: -(row["bytes_sent"] + row["bytes_received"]))


def _names(values: Any) -> list[Any]:
    """Texts, or whole numbers; None where nobody knows."""
    if values.dtype == object:
        return list(values)
    return [None if np.isnan(one) else int(one) for one in values.tolist()]
