# SPDX-License-Identifier: Apache-2.0
"""The kinds of probes: for each, how Linux loads, finds and attaches a BPF program.

A new kind is a row of KINDS and the function that attaches. collector/plan checks PROBE() by this
table and writes the C text's KLOGGER_ macros from it; collector/loader tries, loads and attaches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from collector.linux import bpf
from collector.linux.btf_raw import Kind
from collector.linux.kallsyms import Kallsyms
from collector.linux.kprobe_events import Tracefs, attach_kprobe, has_kprobes
from formats.base.errors import KernelError, TcpkmonError


class Attachment(Protocol):
    """A program's copies, attached to one target."""

    fds: list[int]
    """One a copy, in the order in which they run; none after remove()."""

    def read_missed(self) -> int:
        """How often the kernel could not run them, as far as it counts that; good afterwards too.
        """

    def remove(self) -> None:
        """Detach them, the first copy first: meanwhile the second records in its place."""


Attach = Callable[[str, Sequence[int]], Attachment]
"""Attaches programs (descriptors) to a target so that they run in this order; KernelError."""


@dataclass(frozen=True)
class ProbeKind:
    """One way to attach a program: `name:target` in a PROBE()."""

    name: str
    number: int
    """KLOGGER_NAME in the C text."""
    program_type: int
    attach: Attach
    attach_type: int = 0
    btf: tuple[Kind, str] | None = None
    """Kind and name, for a target, of the type in BTF that the program names; None: it names none.
    """
    find: Callable[[Kallsyms, str], None] | None = None
    """Raises KernelError where the kernel has no such target. None: attaching is tried."""
    is_tracepoint: bool = False
    """All targets are attached alike, and BTF knows how many arguments each has."""
    is_direct: bool = False
    """Its programs read the kernel's memory by plain loads."""
    has_registers: bool = False
    """Its programs find the arguments in the CPU's registers; others in an array."""
    is_optional: bool = True
    """A capture goes on where the kernel refuses one such program after all."""
    nests: bool = True
    """An interrupt may come to where such a program is running already."""
    other_names: tuple[str, ...] = field(default=())
    """What other tools call it: for the hint in an error."""


@dataclass
class _Links:
    """BPF links: closing one detaches its program."""

    fds: list[int]

    def read_missed(self) -> int:
        return 0

    def remove(self) -> None:
        while self.fds:
            os.close(self.fds.pop(0))


def _by_link(link: Callable[[str, int], int], last_first: bool = False) -> Attach:
    """Attaches by `link`(target, program). last_first: what is attached last runs first."""

    def attach(target: str, programs: Sequence[int]) -> Attachment:
        links = _Links([])
        try:
            for program in reversed(programs) if last_first else programs:
                links.fds.append(link(target, program))
        except TcpkmonError:
            links.remove()
            raise
        if last_first:
            links.fds.reverse()
        return links

    return attach


def _link_named(target: str, program: int) -> int:
    return bpf.raw_tracepoint_open(target, program)


def _link_typed(_: str, program: int) -> int:
    """The program's type in BTF says where it is attached."""
    return bpf.raw_tracepoint_open(None, program)


def _link_iterator(_: str, program: int) -> int:
    return bpf.link_create(program, bpf.BPF_TRACE_ITER)


def _find_function(symbols: Kallsyms, target: str) -> None:
    """A kprobe's target must be one function: not inlined, not renamed, not two of the name."""
    with Tracefs() as tracefs:
        if not has_kprobes(tracefs.path):
            raise KernelError("this kernel has no kprobes (CONFIG_KPROBE_EVENTS)")
    count = len(symbols.functions(target))
    if count != 1:
        raise KernelError(f"this kernel has {count or 'no'} functions {target} to probe")


_TRACING = bpf.BPF_PROG_TYPE_TRACING
_ROWS = (
    ProbeKind(
        "btf", 1, _TRACING, _by_link(_link_typed), bpf.BPF_TRACE_RAW_TP,
        btf=(Kind.TYPEDEF, "btf_trace_{}"), is_tracepoint=True, is_direct=True, is_optional=False,
        other_names=("tp", "tp_btf", "tracepoint", "tracing"),
    ),
    ProbeKind(
        "raw", 2, bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, _by_link(_link_named),
        is_tracepoint=True, is_optional=False, other_names=("raw_tp", "raw_tracepoint"),
    ),
    ProbeKind(
        "fentry", 3, _TRACING, _by_link(_link_typed, last_first=True), bpf.BPF_TRACE_FENTRY,
        btf=(Kind.FUNC, "{}"), is_direct=True, other_names=("kfunc", "ftrace"),
    ),
    ProbeKind(
        "fexit", 4, _TRACING, _by_link(_link_typed, last_first=True), bpf.BPF_TRACE_FEXIT,
        btf=(Kind.FUNC, "{}"), is_direct=True, other_names=("kretfunc", "kretprobe"),
    ),
    ProbeKind(
        "kprobe", 5, bpf.BPF_PROG_TYPE_KPROBE, attach_kprobe,
        find=_find_function, has_registers=True,
    ),
    ProbeKind(
        "iter", 6, _TRACING, _by_link(_link_iterator), bpf.BPF_TRACE_ITER,
        btf=(Kind.FUNC, "bpf_iter_{}"), is_direct=True, is_optional=False, nests=False,
    ),
)  # fmt: skip
KINDS: Mapping[str, ProbeKind] = MappingProxyType({kind.name: kind for kind in _ROWS})
"""All kinds, by name."""
