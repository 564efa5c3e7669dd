# SPDX-License-Identifier: Apache-2.0
"""Judges each rule on each connection: kept, broken, or that it cannot be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.conform.rules import (
    CUBIC,
    RECOVERY,
    RENO,
    RFC5681,
    RFC9293,
    Array,
    Mask,
    Rule,
    Step,
)
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import ARRIVED, CaState, Location, State
from tcpkmon.formats.base.text import address_of
from tcpkmon.formats.verify import Report

# Walks through a capture: each record of a connection beside those before it that rules look at.

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


RULES: tuple[Rule, ...] = (*RFC9293, *RFC5681, *RECOVERY)
_MOST_BREAKS = 1000
_KEPT, _BROKEN, _UNTOLD = range(3)


@dataclass(frozen=True)
class Break:
    """A place where a rule is broken. values: by column, of the record before and of this one."""

    rule: Rule
    conn_id: int
    time_ns: int
    values: Mapping[str, tuple[int | None, int]]

    def __str__(self) -> str:
        told = (
            f"{name} {now}" if was in (None, now) else f"{name} {was} -> {now}"
            for name, (was, now) in self.values.items()
        )
        return ", ".join(told)


@dataclass
class Verdicts:
    """unsure: why it is not sure that nothing is missing; "" if it is. counts: by connection,
    (rules, 3): how often each rule is kept, is broken, cannot be told. ends: of each connection,
    its addresses and ports. breaks: the first _MOST_BREAKS. untellable: rules of which the capture
    says nothing, and why.
    """

    unsure: str = ""
    counts: dict[int, Array] = field(default_factory=dict)
    ends: dict[int, tuple[str, int, str, int]] = field(default_factory=dict)
    breaks: list[Break] = field(default_factory=list)
    untellable: dict[str, str] = field(default_factory=dict)

    def total(self, rule: Rule, conn_ids: Sequence[int] | None = None) -> Array:
        """(3,) over these connections, or all."""
        chosen = self.counts if conn_ids is None else conn_ids
        at = RULES.index(rule)
        return sum((self.counts[one][at] for one in chosen), np.zeros(3, np.int64))

    def breaks_of(self, conn_ids: Sequence[int]) -> list[Break]:
        """The breaks of these connections."""
        chosen = {*conn_ids}
        return [one for one in self.breaks if one.conn_id in chosen]

    def broken(self, conn_ids: Sequence[int] | None = None) -> int:
        """How often any rule is broken by these connections, or all."""
        chosen = self.counts if conn_ids is None else conn_ids
        return int(sum(self.counts[one][:, _BROKEN].sum() for one in chosen))


def conform(source: Source, unsure: str = "", judged_as: str = "") -> Verdicts:
    """Judges a capture. unsure: why it is not sure that nothing is missing; then a rule on several
    records that looks broken cannot be told, unless the numbers show that none is missing.
    judged_as: a congestion control of ALGORITHMS, by whose rules all others but those are judged.
    """
    found = Verdicts(unsure or source.unseen())
    rules = []
    for rule in RULES:
        if lacks := [name for name in rule.needs if name not in source.known]:
            found.untellable[rule.name] = f"lacks the columns {', '.join(lacks)}"
        elif lacks := [name for name in rule.locations if not source.records(name)]:
            found.untellable[rule.name] = f"does not record {', '.join(lacks)}"
        elif rule.undo and not ("undo_marker" in source.known or source.records("CWND_UNDO")):
            found.untellable[rule.name] = "has neither undo_marker nor CWND_UNDO"
        else:
            rules.append(rule)
    needs = {name for rule in rules for name in rule.needs}
    needs |= {"seg_ack", "undo_marker", "high_seq"} & source.known
    source.names = [*ALWAYS, *sorted(needs - {*ALWAYS})]
    for walked in walk(source, bool(found.unsure), ALGORITHMS[judged_as]):
        ids, inverse = np.unique(walked.step.now["conn_id"], return_inverse=True)
        for at, conn_id in enumerate(ids.tolist()):
            if conn_id not in found.counts:
                found.counts[conn_id] = np.zeros((len(RULES), 3), np.int64)
                found.ends[conn_id] = _ends(walked, int(np.argmax(inverse == at)))
        for rule in rules:
            _judge(found, rule, walked, ids, inverse)
    return found


def why_unsure(reports: Iterable[Report]) -> str:
    """Why what verify says of a capture leaves it open whether a record is missing; "": it does
    not."""
    for report in reports:
        if report.exit_code:
            return f"not proven: {report.verdict}"
        for name in ("unchanged", "limited", "shed"):
            if count := sum(getattr(row, name) for row in report.rows):
                return f"{count:,} records were left out on purpose ({name})"
    return ""


def _judge(found: Verdicts, rule: Rule, walked: Walked, ids: Array, inverse: Array) -> None:
    applies, wrong = rule.judge(walked.step)
    verdict = np.where(wrong, _BROKEN, _KEPT)
    if rule.across:
        applies = applies & walked.has[rule.across]
        verdict[~walked.whole[rule.across] | (wrong & walked.doubt[rule.across])] = _UNTOLD
    at = np.flatnonzero(applies)
    if not len(at):
        return
    tally = np.bincount(inverse[at] * 3 + verdict[at], minlength=3 * len(ids)).reshape(-1, 3)
    for place in np.flatnonzero(tally.any(axis=1)).tolist():
        found.counts[int(ids[place])][RULES.index(rule)] += tally[place]
    for one in at[verdict[at] == _BROKEN][: _MOST_BREAKS - len(found.breaks)].tolist():
        found.breaks.append(_break(rule, walked, one))


def _break(rule: Rule, walked: Walked, at: int) -> Break:
    before: Any = getattr(walked.step, rule.across) if rule.across else {}
    values = {
        name: (int(before[name][at]) if name in before else None, int(walked.step.now[name][at]))
        for name in rule.shows
    }
    now = walked.step.now
    return Break(rule, int(now["conn_id"][at]), int(walked.step.time_ns[at]), values)


def _ends(walked: Walked, at: int) -> tuple[str, int, str, int]:
    now = walked.step.now
    local, remote = (address_of(walked.ends[name][at].tobytes()) for name in ("laddr", "raddr"))
    return local, int(now["lport"][at]), remote, int(now["rport"][at])
