# SPDX-License-Identifier: Apache-2.0
"""Walks through a capture: each record of a connection beside those before it that rules look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.conform.rule import CUBIC, RENO, Array, Mask, Step
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import ARRIVED, CaState, Location, State

ALWAYS = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "ca_state",
    "snd_una", "snd_max", "snd_wnd", "snd_cwnd_segs", "snd_ssthresh", "mss", "packets_out",
    "sacked_out", "lost_out", "retrans_out", "rcv_nxt", "snd_sb_cc",
)  # fmt: skip
"""The columns that are always read; each capture of the default columns has them."""
_TEXTS = ("laddr", "raddr", "ca_name")
_LOCKED = (
    *ARRIVED, Location.RETRANSMIT, Location.STATE_CHANGE, Location.CONG_STATE, Location.CWND_UNDO,
    Location.ACK_PROCESSED, Location.TRANSMIT,
)  # fmt: skip
"""Locations at which the kernel has the socket's lock: what they record is of one moment. Those of
timers and calls are not, as another CPU may change the socket meanwhile."""
ALGORITHMS = {"": 0, "reno": RENO, "cubic": CUBIC}


@dataclass(frozen=True)
class Walked:
    """n records with the lock, as a Step, and which of what they are compared with there is.

    has: by `across` of a rule, where there is such a record; whole: where besides no record is
    lost in between; doubt: where one may be missing of which nothing tells. ends: (n,) the
    addresses, as the capture has them.
    """

    step: Step
    has: dict[str, Mask]
    whole: dict[str, Mask]
    doubt: dict[str, Mask]
    ends: dict[str, NDArray[Any]]


def walk(source: Source, doubt: bool = False, judged_as: int = 0) -> Iterator[Walked]:
    """The records of a source, of which the columns are chosen; in the capture's order within each
    connection. doubt: events of which nothing tells may be missing. judged_as: what `ca` of other
    algorithms is."""
    for block in source.blocks():
        found = _Places(block)
        judged = np.flatnonzero(found.locked)
        if len(judged):
            yield _walked(block, found, judged, doubt, judged_as)


class _Places:
    """Of each row, the place of the rows before it, -1: there is none."""

    def __init__(self, rows: Block) -> None:
        location = rows["location"]
        self.locked = is_one_of(location, _LOCKED)
        self.was = rows.before(rows.last(self.locked), -1)
        self.after_rto = rows.before(location == Location.RTO, False)
        calm = (location == Location.CONG_STATE) & (rows["ca_state"] <= CaState.DISORDER)
        reduces = calm & np.isin(rows["callvalue"], (CaState.CWR, CaState.RECOVERY))
        safe = np.maximum(self.was, 0)
        threshold = rows["snd_ssthresh"].astype(np.int64)
        undone = (location == Location.CWND_UNDO) | (
            self.locked & (self.was >= 0) & ~reduces & (threshold > threshold[safe])
        )
        if "undo_marker" in rows.rows:  # an undo ends the search for another one
            marker = rows["undo_marker"]
            undone |= self.locked & (self.was >= 0) & ~reduces & (marker == 0) & (marker[safe] > 0)
        # What a loss probe mended is reacted to by the next window's first ACK, which begins and
        # ends CWR (tcp_process_tlp_ack()): what that window loses may be reacted to as well.
        ends = (location == Location.CONG_STATE) & (rows["ca_state"] == CaState.CWR)
        undone |= ends & (self.was >= 0) & (
            reduces[safe] & (rows["callvalue"][safe] == CaState.CWR)
        )  # fmt: skip
        entry = rows.before(rows.last(reduces | undone), -1)
        self.entry = np.where((entry >= 0) & reduces[np.maximum(entry, 0)], entry, -1)
        opened = (self.was >= 0) & (location[safe] == Location.STATE_CHANGE)
        opened &= (rows["callvalue"][safe] == State.ESTABLISHED) & self.locked
        opened &= rows["state"] == State.ESTABLISHED
        self.first = rows.before(rows.last(opened), -1)


def _walked(
    rows: Block, found: _Places, at: Array, doubt: bool, judged_as: int
) -> Walked:
    columns = {
        name: values.astype(np.int64)
        for name, values in rows.rows.items() if name not in _TEXTS
    }  # fmt: skip
    if "ca_name" in rows.rows:
        columns["ca"] = _algorithms(rows["ca_name"], judged_as)
    places = {"was": found.was[at], "entry": found.entry[at], "first": found.first[at]}
    of = {
        name: {key: values[np.maximum(place, 0)] for key, values in columns.items()}
        for name, place in places.items()
    }
    now = {key: values[at] for key, values in columns.items()}
    has = {name: place >= 0 for name, place in places.items()}
    lost = rows.lost
    whole = {
        name: has[name] & (lost[np.maximum(place, 0)] == lost[at])
        for name, place in places.items()
    }
    # `first` is compared by its value alone; the record before it must be whole.
    whole["first"] = has["first"] & whole["was"]
    has["entry"] &= has["was"]
    before = np.maximum(places["was"], 0)
    step = Step(
        now, of["was"], of["entry"], of["first"], found.after_rto[at],
        found.after_rto[np.maximum(places["was"], 0)],
        rows.times_ns[at], rows.times_ns[before],
    )  # fmt: skip
    gaps = np.full(len(at), doubt)
    doubted = {"was": gaps & ~_follows(step), "entry": gaps & ~_goes_on(step)}
    doubted["first"] = doubted["was"]
    ends = {name: rows[name][at] for name in ("laddr", "raddr")}
    return Walked(step, has, whole, doubted, ends)


def _follows(step: Step) -> Mask:
    """Where the numbers say themselves that no acknowledgment is missing in between."""
    was = step.was
    if "seg_ack" not in was:
        return np.zeros(len(step.time_ns), np.bool_)
    new = ahead_of(was["seg_ack"], was["snd_una"])
    new = np.where(was["location"] == Location.SEGMENT_RECEIVED, np.maximum(new, 0), 0)
    same: Mask = ahead_of(step.now["snd_una"], was["snd_una"]) == new
    return same


def _goes_on(step: Step) -> Mask:
    """Where the numbers say that the last reduction is that of `entry`: an undo clears undo_marker,
    another reduction moves high_seq."""
    now, entry = step.now, step.entry
    if not {"undo_marker", "high_seq"} <= now.keys():
        return np.zeros(len(step.time_ns), np.bool_)
    same: Mask = now["undo_marker"] == entry["undo_marker"]
    same &= now["high_seq"] == entry["high_seq"]
    return same


def _algorithms(names: NDArray[Any], other: int) -> Array:
    texts = np.ascontiguousarray(names).view("S16").ravel()
    found = np.full(len(texts), other, np.int64)
    for name, number in ALGORITHMS.items():
        found[texts == name.encode()] = number
    return found
