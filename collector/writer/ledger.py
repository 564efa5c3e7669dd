# SPDX-License-Identifier: Apache-2.0
"""The ledger of a capture: the kernel's counts and the collector's, as entries for the file.

    attempts = filtered + unchanged + limited + written
               + ring full + no ring + other + table full + no slot + shed
    written  = in the file + late + queue full + disk full + write error + killed
    serials  = written + ring full + no ring + other, summed over a CPU's locations
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.points import COUNTERS, location_of, row_of
from tcpkmon.collector.writer.written import Place, Written
from tcpkmon.formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES, KILLED
from tcpkmon.formats.base.control import (
    EXISTING,
    Checkpoint,
    Collector,
    Control,
    Cpu,
    Ledger,
    Losses,
    Program,
)
from tcpkmon.formats.base.unseen import Unseen

MISSED = "missed by a program"
_SUMMED = ("missed", "kprobe_missed", "runs", "run_ns")


@dataclass(frozen=True)
class Totals:
    """Sums of the ledger, for the summary and --fail-on-loss; counts of records.

    by_cause: each cause of loss, also those that are 0; MISSED is one of them. ring_lost: records
    that found no room, as the rings themselves count them. shed: events that a budget left out.
    """

    attempts: int
    filtered: int
    unchanged: int
    limited: int
    written: int
    in_file: int
    by_cause: dict[str, int]
    ring_lost: int
    shed: int = 0

    @property
    def lost(self) -> int:
        """Records that should be in the file and are not."""
        return sum(self.by_cause.values())

    @property
    def absent(self) -> int:
        """What the file lacks: the lost, and what a budget left out."""
        return self.lost + self.shed


@dataclass(frozen=True)
class Books:
    """All counts at one moment of the stream.

    ledger: (CPUs, rows) of ring.points.ACCOUNT; serials: (CPUs,) given out by the kernel.
    programs: by name. read, ring_lost and killed: by CPU. late: by (cpu, location). online: CPUs
    that have a ring. shed: (CPUs, rows), what a budget left out; None without one. unseen:
    None where programs run in all processes. The writer's counts are not here: each method gets
    them as `written`.
    """

    ledger: NDArray[Any]
    serials: NDArray[Any]
    programs: Mapping[str, Program] = field(default_factory=dict)
    read: Mapping[int, int] = field(default_factory=dict)
    late: Mapping[Place, int] = field(default_factory=dict)
    ring_lost: Mapping[int, int] = field(default_factory=dict)
    killed: Mapping[int, int] = field(default_factory=dict)
    online: Set[int] = frozenset()
    shed: NDArray[Any] | None = None
    unseen: Unseen | None = None

    def places(self, written: Written) -> list[Place]:
        """Each (cpu, location) with any count, in order."""
        found = {
            (int(cpu), location_of(int(row)))
            for cpu, row in np.argwhere(self.ledger["attempts"] > 0)
        }
        for counts in (self.late, written.in_file, *written.drops.values()):
            found.update(place for place, count in counts.items() if count)
        return sorted(found)

    def group(self, written: Written) -> list[Control]:
        """The entries of a checkpoint, without the first."""
        entries: list[Control] = []
        for cpu, point in self.places(written):
            counts = self.kernel(cpu, point)
            named = ("attempts", "filtered", "unchanged", "written", "shed")
            entries.append(Ledger(cpu, point, *(counts[n] for n in named if n in counts)))
            entries.append(Losses(cpu, point, *(counts[name] for name in KERNEL_CAUSES)))
            entries.append(Collector(cpu, point, **self.collector(cpu, point, written)))
        entries.extend(self.cpus())
        entries.extend(_by_point(self.programs.values()))
        return entries

    def checkpoint(self, written: Written, final: bool = False) -> list[Control]:
        """A whole checkpoint, and before it what was not seen. Its place in the file is right after
        what `written` counts."""
        group = self.with_states(written.states).group(written)
        told = [self.unseen] if self.unseen is not None else []
        entries = written.entries + len(told)
        head = (written.checkpoints, entries, written.lost, len(group), int(final))
        return [*told, Checkpoint(*head), *group]

    def with_states(self, count: int) -> Books:
        """With one CPU more, which has `count` entries EXISTING: see collector/writer/states.py."""
        if not count:
            return self
        ledger = np.concatenate((self.ledger, np.zeros_like(self.ledger[:1])))
        for name in ("attempts", "written"):
            ledger[name][-1, row_of(EXISTING)] = count
        shed = self.shed
        if shed is not None:
            shed = np.concatenate((shed, np.zeros_like(shed[:1])))
        cpu = len(self.serials)
        serials = np.append(self.serials, np.array([count], self.serials.dtype))
        read = {**self.read, cpu: count}
        return replace(self, ledger=ledger, serials=serials, read=read, shed=shed)

    def totals(self, written: Written) -> Totals:
        """The sums. Call it when the writer has written all."""
        ledger = {name: int(self.ledger[name].sum()) for name in COUNTERS}
        for name in ("attempts", "written"):
            ledger[name] += written.states
        by_cause = {text: ledger[name] for name, text in KERNEL_CAUSES.items()}
        by_cause[COLLECTOR_CAUSES["late"]] = sum(self.late.values())
        by_cause |= written.losses()
        by_cause[KILLED] = sum(self.killed.values())
        by_cause[MISSED] = sum(p.missed + p.kprobe_missed for p in self.programs.values())
        counted = ("attempts", "filtered", "unchanged", "limited", "written")
        return Totals(
            **{name: ledger[name] for name in counted},
            in_file=written.in_file.total(),
            by_cause=by_cause,
            ring_lost=sum(self.ring_lost.values()),
            shed=0 if self.shed is None else int(self.shed.sum()),
        )

    def kernel(self, cpu: int, point: int) -> dict[str, int]:
        """The kernel's counts of one (cpu, location), by name; `shed` only with a budget."""
        row = row_of(point)
        has_row = cpu < self.ledger.shape[0] and row < self.ledger.shape[1]
        counts = {n: int(self.ledger[n][cpu, row]) if has_row else 0 for n in COUNTERS}
        if self.shed is not None:
            counts["shed"] = int(self.shed[cpu, row]) if has_row else 0
        return counts

    def collector(self, cpu: int, point: int, written: Written) -> dict[str, int]:
        """The collector's counts of one (cpu, location), by the names of Collector's fields."""
        place = (cpu, point)
        dropped = {name: counts[place] for name, counts in written.drops.items()}
        return {"late": self.late.get(place, 0), **dropped, "in_file": written.in_file[place]}

    def cpus(self, files: Container[int] = ()) -> list[Cpu]:
        """An entry for each CPU with a ring or any count, or with a file of its own."""
        late: dict[int, int] = {}
        for (cpu, _), count in self.late.items():
            late[cpu] = late.get(cpu, 0) + count
        return [
            Cpu(
                cpu,
                serials=int(serials),
                read=self.read.get(cpu, 0),
                # The programs write the rows themselves, so no record is damaged.
                damaged=self.killed.get(cpu, 0),
                late=late.get(cpu, 0),
                online=int(cpu in self.online),
                ring_lost=min(self.ring_lost.get(cpu, 0), 0xFFFFFFFF),
            )
            for cpu, serials in enumerate(self.serials)
            if serials or cpu in self.online or self.read.get(cpu) or cpu in files
        ]


def _by_point(programs: Iterable[Program]) -> list[Program]:
    """One entry for each location: several programs may record one."""
    found: dict[int, Program] = {}
    for one in programs:
        other = found.get(one.point, Program(one.point, 0, 0, 0, 0))
        sums = (getattr(one, name) + getattr(other, name) for name in _SUMMED)
        found[one.point] = Program(one.point, *sums)
    return list(found.values())


def reserve_bytes(cpus: int, locations: int, entry_size: int) -> int:
    """Enough room on the disk for the last entries: LOSS, CHANGE, a checkpoint, END."""
    return (3 * cpus * locations + 2 * cpus + 4 * locations + 16) * entry_size
