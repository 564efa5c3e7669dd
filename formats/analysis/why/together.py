# SPDX-License-Identifier: Apache-2.0
"""A line on many connections at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcpkmon.formats.analysis.why.ending import count_ends
from tcpkmon.formats.analysis.why.limits import LIMITS
from tcpkmon.formats.analysis.why.naming import count_gone
from tcpkmon.formats.analysis.why.verdict import LEAST_SHARE, PART_OF
from tcpkmon.formats.analysis.why.words import human_bytes

_MANY = 10


def together(table: Mapping[str, Any], left_out: int) -> str:
    """A line on the connections of which no verdict was told; where they are many, or one did not
    end as it should, on all."""
    more = f"{left_out} more connection{'s' * (left_out > 1)} with fewer bytes: -n shows more"
    ends = count_ends(table["end_reason"], table["errno"])
    if gone := count_gone(table):
        ends += f"{', ' * bool(ends)}{gone} without any answer of the peer since a timeout"
    count = len(table["conn_id"])
    if left_out < _MANY:
        return f"{more}; of all {count}: {ends}" if ends else more
    sums: dict[str, float] = {}
    for name in LIMITS:
        said = PART_OF.get(name, name)
        sums[said] = sums.get(said, 0.0) + float(table[f"us_{name}"].sum())
    total = max(sum(sums.values()), 1e-9)
    most = sorted(sums.items(), key=lambda item: -item[1])
    parts = [f"{100 * us / total:.0f} % {name}" for name, us in most if us >= LEAST_SHARE * total]
    nbytes = float((table["bytes_acked"] + table["bytes_received"]).sum())
    return (
        f"{more}; all {count} together: {human_bytes(nbytes)} both ways, of their "
        f"time {', '.join(parts) or 'nothing is known'}{f'; {ends}' * bool(ends)}"
    )
