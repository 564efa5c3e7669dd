# SPDX-License-Identifier: Apache-2.0
"""A capture's LOSS entries against its ledger, and its serials against both.

A LOSS entry that names no CPU ("unsure": causes 2 to 4, and what `tcpkmon repair` writes) may
stand for any entries, LOSS and ledger entries too; what it counts bounds what may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.verify.ledger import IN_FLIGHT, LATE_STAGE, NUMBERED, Ledger, by_cpu
from tcpkmon.formats.verify.psc.entries import ControlRows
from tcpkmon.formats.verify.psc.sequence import is_unsure
from tcpkmon.formats.verify.psc.serials import SerialCheck
from tcpkmon.formats.verify.report import Problems
from tcpkmon.formats.verify.segment import Previous


@dataclass
class LossSums:
    """Sequence numbers that LOSS entries count: by CPU where they know it."""

    by_cpu: dict[int, int] = field(default_factory=dict)
    """The causes that know the CPU together: what comes late was first missed in the kernel."""
    killed: int = 0
    """What a process had read that was killed before it wrote it; by_cpu has it too."""
    collector: int = 0
    """Causes 2 to 4, of any CPU."""
    repaired: int = 0
    """What `tcpkmon repair` left out or found missing."""
    before: Previous = field(default_factory=Previous)
    """What was lost until a segment began."""

    def feed(self, rows: ControlRows) -> None:
        """Control rows of a segment."""
        losses = rows.take(rows.location == control.Loss.location)
        if not len(losses):
            return
        count, cause = losses.pairs[:, 1], losses.words[:, 4]
        unsure = is_unsure(losses)
        self.killed += int(count[cause == control.LossCause.KILLED].sum())
        own = unsure & (cause == control.LossCause.DAMAGED)
        self.repaired += int(count[own].sum())
        self.collector += int(count[unsure & ~own].sum())
        for cpu in np.unique(losses.callvalue[~unsure]):
            here = int(count[~unsure & (losses.callvalue == cpu)].sum())
            self.by_cpu[int(cpu)] = self.by_cpu.get(int(cpu), 0) + here

    @property
    def unsure(self) -> int:
        """All that no CPU is known of."""
        return self.collector + self.repaired


def check_losses(problems: Problems, shot: Ledger, sums: LossSums) -> None:
    """The final checkpoint's losses are those that the LOSS entries count."""
    unsure = sums.unsure + sums.before.skipped
    cpus, lost = by_cpu(shot.points.keys, shot.points.sum(*NUMBERED, "late"))
    rows = shot.cpu_rows
    told = dict(zip(rows.keys.tolist(), rows["damaged"].tolist(), strict=True))
    for cpu, count in zip(cpus, lost, strict=True):
        told[int(cpu)] = told.get(int(cpu), 0) + int(count)
    for cpu in sorted(told.keys() | sums.by_cpu.keys() | sums.before.lost.keys()):
        entries = sums.by_cpu.get(cpu, 0) + sums.before.lost.get(cpu, 0)
        ledger = told.get(cpu, 0)
        if entries > ledger or (entries < ledger and not unsure):
            problems.add(
                shot.cpu_entry(cpu),
                f"CPU {cpu}: the final ledger counts {ledger} records lost, late or damaged, "
                f"the LOSS entries {entries}",
            )
    late_stage = int(shot.points.sum(*LATE_STAGE).sum())
    if late_stage > unsure:
        problems.add(
            shot.index,
            f"the final ledger counts {late_stage} lost by queue, disk or write error, "
            f"the LOSS entries {unsure}",
        )
    everything = sum(told.values()) + late_stage
    if everything > sum(sums.by_cpu.values()) + sum(sums.before.lost.values()) + unsure:
        problems.add(
            shot.index,
            f"the final ledger counts {everything} lost, more than the sequence numbers missing",
        )


def check_serials(
    problems: Problems,
    shot: Ledger | None,
    serials: SerialCheck,
    sums: LossSums,
    last: int,
    rotated: bool = False,
) -> None:
    """Every serial up to the last one taken is in the file or counted as lost.

    rotated: the file ends at a point of the stream, so nothing before its end is under way.
    """
    where = shot.index if shot else last
    excess = 0
    for cpu, one in sorted(serials.cpus.items()):
        if shot is None or not shot.final:
            hole = one.missing if rotated else one.missing_marked
            if hole > sums.unsure + (0 if rotated else IN_FLIGHT):
                problems.add(where, f"CPU {cpu}: {hole} serial(s) missing without a LOSS entry")
            continue
        taken = int(shot.cpu_rows.at(np.array([cpu]))["serials"][0])
        if one.highest > taken:
            problems.add(
                shot.cpu_entry(cpu),
                f"CPU {cpu}: serial {one.highest} in the file, but only {taken} were reserved",
            )
            continue
        missing = taken - one.highest + one.missing
        if missing and not sums.unsure:
            problems.add(
                shot.cpu_entry(cpu), f"CPU {cpu}: {missing} serial(s) missing, not counted"
            )
        excess += missing
    if shot is not None and excess > sums.unsure > 0:
        problems.add(
            where, f"{excess} serials missing, more than the {sums.unsure} lost with CPU unknown"
        )
    if shot is None or not shot.final:
        return
    for cpu, taken in zip(shot.cpu_rows.keys, shot.cpu_rows["serials"], strict=True):
        if taken and int(cpu) not in serials.cpus and not sums.unsure:
            problems.add(where, f"CPU {cpu}: {taken} serials reserved, none in the file")
