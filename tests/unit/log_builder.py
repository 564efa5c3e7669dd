# SPDX-License-Identifier: Apache-2.0
"""Builds Klogger logs with a right ledger for tests, one event at a time, without a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.klogger_samples import CLOCK, LogMaker

SCHEMA = """
enum location { A = 1, B = 9, EXISTING = 226 }
event SNAPSHOT { uint location; uint value }
event SCHEDIN { int pid; int cpu_seen }
event SCHEDOUT { int pid; ulonglong misses }
event EVENT_START { int id }
event EVENT_STOP { int id }
"""
KERNEL = ("ring_full", "no_ring", "other")  # these take a serial, and were never written
SILENT = ("table_full", "no_slot")  # these take none
COLLECTOR = ("late", "queue_full", "disk_full", "write_error", "damaged")
ASIDE = ("filtered", "unchanged", "limited", "shed")
FIELDS = (
    "attempts", "filtered", "unchanged", "limited", "shed", "written", "ring_full", "no_ring",
    "other", "table_full", "no_slot", "late", "queue_full", "disk_full", "write_error", "in_file",
)  # fmt: skip
Tamper = Callable[[str, dict[str, Any]], "dict[str, Any] | None"]


class LogBuilder:
    """A log in the making; every method appends what the collector would have written.

    tamper: may change the values of any base event before it is written, or leave it out (None).
    """

    def __init__(
        self, cpu: int = 0, tamper: Tamper = lambda _, values: values, schema: str = SCHEMA,
        **changes: Any,
    ) -> None:  # fmt: skip
        self.maker = LogMaker(schema, cpu, **changes)
        self.numbers = {event.name: event.number for event in self.maker.format.events}
        self.tamper = tamper
        self.gap = 0
        self.counts: dict[int, Counter[str]] = {}
        self.serials = self.read = self.damaged = self.late = 0
        self.programs = {"one": (0, 0)} if cpu == 0 else {}
        self.clock = [CLOCK[0], CLOCK[1]]
        self.first()

    def first(self) -> LogBuilder:
        """What stands at the beginning, and after a pause."""
        self.base("KLOGGER_START", kernel="6.18.0", buffer_bytes=4 << 20, low_water_percent=10)
        self.pair(0)
        for name in sorted({"SCHEDIN", "SCHEDOUT"} & self.numbers.keys()):
            self.base("LOGGING_EVENT", number=self.numbers[name], enabled=1, name=name)
        return self.end_dump()

    def base(self, name: str, /, **values: Any) -> LogBuilder:
        changed = self.tamper(name, values)
        if changed is not None:
            self.maker.add(name, changed)
        return self

    def pair(self, step_ns: int, *, passed_ns: int = 1_000, told_ns: int | None = None) -> None:
        self.clock = [self.clock[0] + passed_ns, self.clock[1] + passed_ns + step_ns]
        self.base(
            "CLOCK", mono_ns=self.clock[0], realtime_ns=self.clock[1], uncertainty_ns=40,
            step_ns=step_ns if told_ns is None else told_ns,
        )  # fmt: skip

    def end_dump(self) -> LogBuilder:
        self.maker.end_dump()
        return self

    def count(self, point: int) -> Counter[str]:
        return self.counts.setdefault(point, Counter())

    def point(self, name: str, values: dict[str, Any]) -> int:
        return int(values["location"]) if name == "SNAPSHOT" else self.numbers[name]

    def log(self, name: str, /, at: int | None = None, **values: Any) -> LogBuilder:
        """One record of the kernel, in the dump that is under way."""
        self.maker._begin()
        self.maker.skip(self.gap)
        self.gap = 0
        self.maker.add(name, values, at)
        self.serials += 1
        self.read += 1
        self.count(self.point(name, values)).update(attempts=1, written=1, in_file=1)
        return self

    def lose(self, cause: str, count: int, name: str = "SCHEDOUT", **values: Any) -> LogBuilder:
        """Lose so many records for this reason; the next record comes after the gap."""
        counter = self.count(self.point(name, values))
        counter["attempts"] += count
        if cause in SILENT or cause in ASIDE:
            counter[cause] += count
            return self
        self.gap += count
        self.serials += count
        if cause in KERNEL:
            counter[cause] += count
            return self
        counter["written"] += count
        if cause == "damaged":
            self.damaged += count
            return self
        self.read += count
        self.late += count * (cause == "late")
        counter[cause] += count
        return self

    def ledger(self, final: bool = False, finish: int | None = None) -> LogBuilder:
        """A dump with the ledgers so far; with `finish` the last, with KLOGGER_FINISH."""
        for point, counts in sorted(self.counts.items()):
            told = {key: counts[key] for key in FIELDS}
            self.base("LEDGER", number=point, final=int(final), **told)
        full = sum(counts["ring_full"] for counts in self.counts.values())
        self.base(
            "CPU_LEDGER", serials=self.serials, read=self.read, damaged=self.damaged,
            late=self.late, ring_lost=full, online=1, final=int(final),
        )  # fmt: skip
        for program, (missed, by_kprobe) in self.programs.items():
            told = {"missed": missed, "kprobe_missed": by_kprobe}
            self.base("PROGRAM_LEDGER", program=program, final=int(final), **told)
        if finish is not None:
            self.pair(0)
            self.base("KLOGGER_FINISH", reason=finish)
        return self.end_dump()

    def finish(self, reason: int = 0) -> LogBuilder:
        return self.ledger(final=True, finish=reason)

    def data(self) -> bytes:
        return self.maker.data()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path


def clean_log(cpu: int = 0, tamper: Tamper = lambda _, values: values) -> LogBuilder:
    """Nothing lost; several dumps and ledgers."""
    build = LogBuilder(cpu, tamper).ledger()
    for number in range(3):
        build.log("SCHEDIN", pid=10 + number).log("SCHEDOUT", pid=10 + number, misses=7)
        build.log("SNAPSHOT", location=1, value=5).log("SNAPSHOT", location=9).end_dump()
    build.ledger()
    build.log("EVENT_START", id=1).log("EVENT_STOP", id=1).end_dump()
    return build


def lossy_log(cpu: int = 0, tamper: Tamper = lambda _, values: values) -> LogBuilder:
    """Losses of every cause, one more of each: 1 ring_full, 2 no_ring, ..."""
    build = clean_log(cpu, tamper)
    for number, cause in enumerate((*KERNEL, *SILENT, *COLLECTOR, *ASIDE), 1):
        build.lose(cause, number)
        build.log("SCHEDIN", pid=1).lose(cause, number, "SNAPSHOT", location=9)
        build.log("SCHEDOUT", pid=1).end_dump()
        if number == 4:
            build.ledger()
    return build


LOST_EACH = sum(range(1, 11))
"""What lossy_log() loses of SCHEDOUT, and of location B again."""
