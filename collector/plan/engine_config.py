# SPDX-License-Identifier: Apache-2.0
"""The sizes of the engine in bpf/include/klogger.h: for its C text, and to read its map."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.plan.filters import FOLLOWING, MOST_FOLLOWED
from tcpkmon.collector.plan.named_groups import GROUP_MADE
from tcpkmon.collector.plan.probes import Plan
from tcpkmon.collector.ring.points import ACCOUNT, ROWS
from tcpkmon.formats.base.errors import KernelError, UsageError
from tcpkmon.formats.base.group_names import MOST_GROUPS

POINTS = 256
"""KLOGGER_POINTS: entries in the map of switches."""
_GUARD = np.dtype([("running", "=u4"), ("again", "=u4")])
_STEP = 32
_SLOTS = 4
_RATE_BYTES = 16
_CPU_BYTES_MAX = 32 << 10
"""The kernel's limit for a value of a per-CPU map."""
_PLACE = """/* A record that a program has reserved in a ring. */
struct klogger_ring;
struct klogger_place {
    u8 *row;
    struct klogger_ring *ring;
};"""
_MOST_PROBES = 256


@dataclass(frozen=True)
class Engine:
    """A capture's sizes.

    entry_size: bytes of an entry in the ring; copy_size: bytes of a socket's copy; rows: of the
    ledger, by point; guards: one for each program.
    """

    entry_size: int
    copy_size: int = 0
    rows: int = ROWS
    guards: int = ROWS
    sheds: bool = False
    """A budget may leave out events."""

    @property
    def record_size(self) -> int:
        """Bytes of a record while a program builds it."""
        return (self.entry_size + 7) // 8 * 8

    @property
    def head(self) -> np.dtype[Any]:
        """The head of struct klogger_cpu."""
        guards, accounts = ("guards", _GUARD, self.guards), ("accounts", ACCOUNT, self.rows)
        shed = [("shed", "=u8", self.rows)] if self.sheds else []
        return np.dtype([("serial", "=u8"), guards, accounts, *shed])

    def lines(self, plan: Plan) -> list[str]:
        """C text: the sizes, the programs, and how they are attached."""
        lines = [
            "#undef __always_inline",
            "#define __always_inline inline __attribute__((always_inline))",
            f"#define KLOGGER_PAGE_SIZE {mmap.PAGESIZE}",
            f"#define KLOGGER_RECORD_SIZE {self.record_size}",
            f"#define KLOGGER_COPY_SIZE {(self.copy_size + 7) // 8 * 8}",
            f"#define KLOGGER_ROWS {self.rows}",
            f"#define KLOGGER_GUARDS {self.guards}",
            *_PLACE.splitlines(),
            *_kind_lines(),
        ]
        if self.sheds:
            lines.append("#define KLOGGER_SHEDDING 1")
        if any(probe.name in FOLLOWING for probe in plan.probes):
            lines.append(f"#define KLOGGER_FOLLOWED {MOST_FOLLOWED}")
        if any(probe.name == GROUP_MADE for probe in plan.probes):
            lines.append(f"#define KLOGGER_GROUPS {MOST_GROUPS}")
        for index, probe in enumerate(plan.probes):
            # compile_text() omits what another child compiles.
            lines += [f"#ifndef OMIT_{probe.name}", f"#define USE_{probe.name} 1", "#endif"]
            lines.append(f"#define INDEX_{probe.name} {index}")
            lines.append(f"#define KIND_{probe.name} {KINDS[probe.kind].number}")
        for name in plan.unused:
            # A program without #if USE_ compiles all the same, and is not loaded.
            lines.append(f"#define INDEX_{name} 0")
            lines.append(f"#define KIND_{name} {KINDS['raw'].number}")
        for target, count in plan.arguments.items():
            lines.append(f"#define ARGUMENTS_{target} {count}")
        return lines


def make_engine(
    entry_size: int,
    plan: Plan,
    copy_size: int = 0,
    points: int = 0,
    sheds: bool = False,
) -> Engine:
    """The sizes for a plan; points: the highest event id.

    KernelError for more programs than the engine can have, UsageError for too large events.
    """
    if len(plan.probes) > _MOST_PROBES:
        raise KernelError(
            f"{len(plan.probes)} programs are more than the {_MOST_PROBES} that can be loaded",
            "record fewer events",
        )
    engine = Engine(
        entry_size,
        copy_size,
        rows=max(ROWS, _round(points + 1)),
        guards=max(ROWS, _round(len(plan.probes))),
        sheds=sheds,
    )
    slot_bytes = 8 + engine.record_size + (copy_size + 7) // 8 * 8
    fixed_bytes = engine.head.itemsize + engine.rows * _RATE_BYTES + 8
    if fixed_bytes + _SLOTS * slot_bytes > _CPU_BYTES_MAX:
        most = entry_size - (slot_bytes - (_CPU_BYTES_MAX - fixed_bytes) // _SLOTS)
        raise UsageError(
            f"the largest event takes {entry_size} bytes, more than the {most} there is room for",
            "give it shorter strings",
        )
    return engine


def _kind_lines() -> list[str]:
    """C text: the kinds of probes, and how their programs read arguments and memory."""
    lines = [f"#define KLOGGER_{kind.name.upper()} {kind.number}" for kind in KINDS.values()]
    for property_ in ("is_direct", "has_registers", "counts_runs"):
        tests = " || ".join(
            f"(kind) == {kind.number}" for kind in KINDS.values() if getattr(kind, property_)
        )
        lines.append(f"#define KLOGGER_{property_.upper()}(kind) ({tests})")
    results = " : ".join(f"(kind) == {k.number} ? {k.result}" for k in KINDS.values() if k.result)
    lines.append(f"#define KLOGGER_RESULT(kind) ({results} : 0)")
    return lines


def _round(count: int) -> int:
    return (count + _STEP - 1) // _STEP * _STEP
