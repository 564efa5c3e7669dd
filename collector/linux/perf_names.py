# SPDX-License-Identifier: Apache-2.0
"""The names of counters and their perf events, with the numbers of linux/perf_event.h.

By this table collector/plan/counter_names.py checks the names in a schema's `arch` blocks,
collector/loader/perf_counters.py opens the events, and perf_events.py attaches programs to them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

HARDWARE, SOFTWARE, CACHE, RAW = 0, 1, 3, 4
_RAW = re.compile(r"raw_([0-9a-f]{1,16})(_user|_os)?", re.ASCII)


@dataclass(frozen=True)
class Counter:
    """A perf event and its name in a schema; `type` and `config` are of struct perf_event_attr."""

    name: str
    type: int
    config: int
    doc: str
    exclude_user: bool = False
    exclude_kernel: bool = False

    @property
    def flags(self) -> int:
        """The bits of struct perf_event_attr that exclude a mode."""
        return self.exclude_user << 4 | self.exclude_kernel << 5

    @property
    def hardware(self) -> bool:
        """Whether the CPU counts it; else the kernel does."""
        return self.type != SOFTWARE


_CLOCK = "Nanoseconds that it has been open on this CPU, whatever runs there, idle time too"
_SOFTWARE = {
    "cpu_clock": (0, f"{_CLOCK} (by the scheduler's clock)."),
    "task_clock": (1, f"{_CLOCK}; perf counts a task's own time only in events of that task."),
    "page_faults": (2, "Page faults on this CPU."),
    "context_switches": (3, "Context switches on this CPU, without the one that sched_switch "
                            "is just reporting."),
    "cpu_migrations": (4, "Tasks that came to this CPU from another one."),
    "minor_faults": (5, "Page faults that needed no disk."),
    "major_faults": (6, "Page faults that needed the disk."),
    "alignment_faults": (7, "Unaligned accesses that the kernel fixed (never on x86)."),
    "emulation_faults": (8, "Instructions that the kernel emulated."),
    "cgroup_switches": (11, "Context switches between tasks of different cgroups (Linux 5.13)."),
}  # fmt: skip
_BY_LEVEL = ("page_faults", "minor_faults", "major_faults")
"""Software counters that the kernel can count for user mode or itself alone."""

_HARDWARE = {
    "cycles": (0, "Cycles; their length changes with the CPU's frequency."),
    "instructions": (1, "Instructions retired."),
    "cache_references": (2, "Accesses to the last level of cache, as a rule."),
    "cache_misses": (3, "Accesses that missed the last level of cache, as a rule."),
    "branches": (4, "Branches retired."),
    "branch_misses": (5, "Branches that were predicted wrongly."),
    "bus_cycles": (6, "Cycles of the bus."),
    "stalled_cycles_frontend": (7, "Cycles in which no instruction could be issued."),
    "stalled_cycles_backend": (8, "Cycles in which no instruction could be retired."),
    "ref_cycles": (9, "Cycles at a frequency that does not change."),
}

_CACHES = {
    "l1d": (0, "the level 1 data cache"),
    "l1i": (1, "the level 1 instruction cache"),
    "llc": (2, "the last level of cache"),
    "dtlb": (3, "the data TLB"),
    "itlb": (4, "the instruction TLB"),
    "bpu": (5, "the branch prediction unit"),
    "node": (6, "the NUMA node's memory"),
}
_OPERATIONS = {"load": (0, "loads"), "store": (1, "stores"), "prefetch": (2, "prefetches")}
_MISSES = 1 << 16

_KLOGGER = {
    "dtlb_miss": (CACHE, 3 | _MISSES, "Page walks for a data TLB miss (loads)"),
    "itlb_miss": (CACHE, 4 | _MISSES, "Page walks for an instruction TLB miss"),
    "l1_cache_misses": (CACHE, 0 | _MISSES, "L1 data cache misses (loads)"),
    "l2_cache_misses": (HARDWARE, 3, "Cache misses of the last level that perf's cache-misses "
                                     "counts: L2 on the Pentium IV, L3 on most CPUs now"),
}  # fmt: skip
"""The counters of table 2 of the Klogger HOWTO, as generic events of perf."""


@functools.cache
def table() -> Mapping[str, Counter]:
    """All counters that have a name, by name; software counters first."""
    return MappingProxyType({counter.name: counter for counter in _all()})


def find_counter(name: str) -> Counter | None:
    """The counter of that name, or None; raw_HEX is the CPU's event of that code."""
    known = table().get(name)
    match = _RAW.fullmatch(name)
    if known is not None or match is None:
        return known
    doc = f"Event {match[1]} in the CPU's own code."
    return Counter(name, RAW, int(match[1], 16), doc, match[2] == "_os", match[2] == "_user")


def _all() -> Iterator[Counter]:
    for name, (config, doc) in _SOFTWARE.items():
        if name in _BY_LEVEL:
            yield from _levels(name, SOFTWARE, config, doc.rstrip("."))
        else:
            yield Counter(name, SOFTWARE, config, doc)
    for name, (kind, config, doc) in _KLOGGER.items():
        yield from _levels(name, kind, config, doc)
    for name, (config, doc) in _HARDWARE.items():
        yield from _levels(name, HARDWARE, config, doc.rstrip("."))
    for cache, (cache_number, what) in _CACHES.items():
        for operation, (number, doing) in _OPERATIONS.items():
            config = cache_number | number << 8
            doc = f"{doing.capitalize()} of {what}"
            yield from _levels(f"{cache}_{doing}", CACHE, config, doc)
            doc = f"{doing.capitalize()} that missed {what}"
            yield from _levels(f"{cache}_{operation}_misses", CACHE, config | _MISSES, doc)


def _levels(name: str, kind: int, config: int, doc: str) -> Iterator[Counter]:
    """The counter for all modes, for the kernel alone (_os), and for user mode alone (_user)."""
    yield Counter(name, kind, config, f"{doc}.")
    yield Counter(f"{name}_os", kind, config, f"{doc}, in the kernel.", exclude_user=True)
    yield Counter(f"{name}_user", kind, config, f"{doc}, in user mode.", exclude_kernel=True)
