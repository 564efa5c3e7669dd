# SPDX-License-Identifier: Apache-2.0
"""The packets that the kernel dropped: why, where, and of which connection."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.analysis.why import Snapshots, Source
from tcpkmon.formats.analysis.why.assemble import address
from tcpkmon.formats.base.drops import REASONS, Drop
from tcpkmon.formats.base.tcp import DROPS, STATES, Location

NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "seg_seq",
    "seg_len", "seg_flags",
)  # fmt: skip
WHAT = "what says which packets were dropped"
_ENDS = ("lport", "rport", "laddr", "raddr")
Row = dict[str, Any]


def records_drops(source: Source) -> bool:
    """Whether the capture's version records drops: earlier ones know RCVQ_FULL alone."""
    return source.known.issuperset(NEEDED) and bool(source.constants(REASONS))


def drops(source: Source) -> list[Row]:
    """A row for each dropped packet, in the capture's order; see DROPS of formats/tables.

    A packet that found no socket is of the last connection that had its ends before.
    """
    reasons, found = source.constants(REASONS), list[Row]()
    ahead_ns = source.about().get("ahead_ns")
    last: dict[tuple[Any, ...], int] = {}
    for piece in source.read(all_records=True):
        is_drop = np.isin(piece["location"], DROPS)
        at = np.flatnonzero(is_drop)
        before = 0
        for row in at.tolist():
            if not piece["conn_id"][row]:
                _remember(last, piece, before, row)
                before = row
            found.append(_row(piece, row, last, reasons, ahead_ns))
        _remember(last, piece, before, len(piece))
    for one in found:  # their names come after them
        one["function"] = source.places.get(one["function"])
    return found


def _remember(last: dict[tuple[Any, ...], int], piece: Snapshots, start: int, stop: int) -> None:
    """The last connection of each pair of ends in these rows."""
    ids = piece["conn_id"][start:stop]
    _, at = np.unique(ids[::-1], return_index=True)
    for row in (stop - 1 - at[np.argsort(-at)]).tolist():
        if piece["conn_id"][row] and piece["rport"][row]:
            last[_ends(piece, row)] = int(piece["conn_id"][row])


def _ends(piece: Snapshots, row: int) -> tuple[Any, ...]:
    netns = int(piece["netns"][row]) if "netns" in piece.columns else 0
    return netns, *(piece[name][row].item() for name in _ENDS)


def _row(
    piece: Snapshots, row: int, last: dict[tuple[Any, ...], int], reasons: dict[int, str],
    ahead_ns: int | None,
) -> Row:  # fmt: skip
    callvalue = int(piece["callvalue"][row])
    is_memory = piece["location"][row] == Location.RCVQ_FULL
    drop = Drop(callvalue, 0, False) if is_memory else Drop.of(callvalue)
    time_ns, state = int(piece.times_ns[row]), int(piece["state"][row])
    return {
        "time": None if ahead_ns is None else time_ns + ahead_ns,
        "time_ns": time_ns,
        "conn_id": int(piece["conn_id"][row]) or last.get(_ends(piece, row)),
        "netns": int(piece["netns"][row]) if "netns" in piece.columns else None,
        "laddr": address(bytes(piece["laddr"][row])),
        "lport": int(piece["lport"][row]),
        "raddr": address(bytes(piece["raddr"][row])),
        "rport": int(piece["rport"][row]),
        "state": STATES[state] if 0 < state < len(STATES) else None,
        "reason": reasons.get(drop.reason, str(drop.reason)),
        "function": drop.place,
        "dir": "out" if drop.sent else "in",
        "seq": int(piece["seg_seq"][row]),
        "len": int(piece["seg_len"][row]),
        "flags": int(piece["seg_flags"][row]),
    }
