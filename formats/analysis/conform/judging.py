# SPDX-License-Identifier: Apache-2.0
"""Judges each rule on each connection: kept, broken, or that it cannot be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.conform import recovery, rfc5681, rfc9293
from tcpkmon.formats.analysis.conform.rule import Array, Rule
from tcpkmon.formats.analysis.conform.walking import ALGORITHMS, ALWAYS, Walked, walk
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.text import address_of
from tcpkmon.formats.verify import Report

RULES: tuple[Rule, ...] = (*rfc9293.RULES, *rfc5681.RULES, *recovery.RULES)
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
