# SPDX-License-Identifier: Apache-2.0
"""One program of an image: its copies, how they are loaded and attached, and what they missed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.linux.nf_hooks import Entrance, NetfilterHook
from tcpkmon.collector.linux.perf_events import PerfEvent
from tcpkmon.collector.linux.probe_kinds import KINDS, Attachment
from tcpkmon.collector.linux.syscalls import close_all
from tcpkmon.collector.loader.bytecode import Cast, cast_freely
from tcpkmon.formats.base.errors import KernelError, TcpkmonError

NEVER_NESTED = frozenset(
    ["sys_enter", "sys_exit", "sock_send_length", "sock_recv_length", "timer_expire_entry"]
)
"""Tracepoints that run in one context alone: in a task that may sleep (system calls and calls on
sockets), or in the softirq of timers."""
REALTIME = "PREEMPT_RT" in os.uname().version
"""Tasks often preempt others in a program at a tracepoint, and come to the same place."""


@dataclass(frozen=True)
class ProgramSpec:
    """A function of the image, its target, and whether a capture needs it."""

    function: str
    kind: str
    target: str
    required: bool = False


class Missed(NamedTuple):
    """A program's counters.

    first: events for which the kernel skipped the first copy; nmissed: events that a kprobe lost;
    run_cnt: runs of the first copy; run_ns: of both. The last two are 0 without bpf.enable_stats().
    """

    first: int
    nmissed: int
    run_cnt: int
    run_ns: int
    due: int | None = None
    """How many times the first copy should have run, where the kernel counts that instead."""


@dataclass
class Program:
    spec: ProgramSpec
    prog_fds: list[int]
    """Of its copies, as far as they are loaded."""
    again: Future[int] | None = None
    """The second copy, which a thread loads."""
    attachment: Attachment | None = None
    second: Attachment | None = None
    """The second copy, where it was attached later."""
    missed_before: int = 0

    @property
    def attached(self) -> bool:
        return self.attachment is not None and bool(self.attachment.fds)

    def attach(self, at_once: bool, named: Sequence[int] = ()) -> None:
        """Attaches the first copy, and the second too unless it may wait (at_once: never, nor with
        PREEMPT_RT). named: descriptors of namespaces that count as places, whoever holds them."""
        kind = KINDS[self.spec.kind]
        copies = None if at_once or REALTIME or not kind.is_tracepoint else 1
        if copies is None:
            self.finish_loading()
        self.second = None
        self.attachment = kind.attach(self.spec.target, self.prog_fds[:copies])
        if isinstance(self.attachment, NetfilterHook):
            self.attachment.entrance = Entrance(named)
        self.attachment.refresh()

    def attach_second(self) -> None:
        """Attaches the second copy if the kernel has skipped the first; KernelError."""
        attached = self.attachment.fds if self.attachment is not None else []
        if (
            self.second is None
            and len(attached) == 1
            and bpf.prog_info(self.prog_fds[0]).recursion_misses
        ):
            self.finish_loading()
            if len(self.prog_fds) > 1:
                self.second = KINDS[self.spec.kind].attach(self.spec.target, self.prog_fds[1:])

    def finish_loading(self) -> None:
        """The second copy is loaded, if there is one; KernelError."""
        if (again := self.again) is not None:
            self.again = None
            self.prog_fds.append(again.result())

    def close(self) -> None:
        """Unloads the copies."""
        with contextlib.suppress(TcpkmonError):
            if self.again is not None and not self.again.cancel():
                self.finish_loading()
        close_all(self.prog_fds)

    def detach(self) -> None:
        for attachment in (self.attachment, self.second):
            if attachment is not None:
                attachment.remove()

    def read_missed(self) -> int:
        """What the kernel counted in all times that it was attached."""
        now = self.attachment.read_missed() if self.attachment is not None else 0
        return self.missed_before + now

    def read_due(self) -> int | None:
        return self.attachment.read_due() if isinstance(self.attachment, PerfEvent) else None


def attach_type_id(btf: Btf, kind: str, target: str) -> int:
    """The BTF id of the target, 0 for kinds that need none; KernelError where there is none."""
    named = KINDS[kind].btf
    if named is None:
        return 0
    found = btf.find(named[0], named[1].format(target))
    if found is None:
        raise KernelError(f"this kernel's BTF has no {kind} target {target}")
    return found


def load_code(kind: str, code: bytes, name: str, btf_id: int) -> int:
    """Load bytecode, which has its map descriptors, as a program of this kind; its descriptor."""
    row = KINDS[kind]
    return bpf.prog_load(row.program_type, code, name, btf_id, row.attach_type)


def load_quickest(kind: str, code: bytes, name: str, btf_id: int, cast: Cast | None) -> int:
    """load_code() with casts that cost nothing, where this kernel accepts them."""
    quick, plain = cast_freely(code, cast), cast_freely(code, None)
    if quick != plain:
        with contextlib.suppress(KernelError):
            return load_code(kind, quick, name, btf_id)
    return load_code(kind, plain, name, btf_id)


def is_preempted(btf: Btf) -> bool:
    """Whether a task may preempt another in a program at a tracepoint, and come to the same place:
    where SRCU protects tracepoints (in 7.3, not in 6.18)."""
    return REALTIME or btf.find(Kind.FUNC, "init_srcu_struct_fast") is not None


def never_interrupts_itself(spec: ProgramSpec, btf: Btf) -> bool:
    """Whether nothing can reach the program's target on a CPU while it runs there already."""
    kind = KINDS[spec.kind]
    is_alone = kind.is_tracepoint and spec.target in NEVER_NESTED and not is_preempted(btf)
    return not kind.nests or is_alone
