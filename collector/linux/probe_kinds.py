# SPDX-License-Identifier: Apache-2.0
"""The kinds of probes: how Linux finds the target of each, loads its programs and attaches them.

A new kind is a row of KINDS, and a function that attaches if it needs its own. By this table
collector/plan checks PROBE() and writes the C text's KLOGGER_ macros, and collector/loader tries,
loads and attaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf_raw import Kind
from tcpkmon.collector.linux.kallsyms import Kallsyms
from tcpkmon.collector.linux.kprobe_events import Tracefs, attach_kprobe, has_kprobes
from tcpkmon.collector.linux.nf_hooks import NetfilterHook, expect_hook
from tcpkmon.collector.linux.perf_events import PerfEvent, expect_event
from tcpkmon.collector.linux.places import Links
from tcpkmon.collector.linux.uprobes import Uprobe, attach_uretprobe, expect_function
from tcpkmon.formats.base.errors import KernelError, TcpkmonError


class Attachment(Protocol):
    """The copies of a program, attached to one target."""

    @property
    def fds(self) -> list[int]:
        """One for each copy, in the order in which they run, at each of its places; none after
        remove()."""

    def refresh(self) -> None:
        """Attach them at the target's places that have come since, such as namespaces."""

    def read_missed(self) -> int:
        """How many times the kernel could not run them, where it counts that; after remove() too.
        """

    def remove(self) -> None:
        """Detach them, the first copy first: from then on the second records in its place."""


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
    """Kind and name of the BTF type that the program attaches to ({} is the target), or None."""
    find: Callable[[Kallsyms, str], None] | None = None
    """Raises KernelError where the kernel has no such target. None: a trial program is attached."""
    is_tracepoint: bool = False
    """What attaches to one target attaches to all. BTF has the number of arguments."""
    is_direct: bool = False
    """Programs read the kernel's memory by plain loads."""
    has_registers: bool = False
    """Programs read their arguments from CPU registers; those of other kinds from an array."""
    is_optional: bool = True
    """A capture continues where the kernel refuses such a program after a successful trial."""
    counts_skipped: tuple[str, str] | None = None
    """Struct and member of kernels that count the events for which they skip such a program, while
    another runs; None: all kernels that skip it count that."""
    nests: bool = True
    """An interrupt may reach the target while the program runs there already, and the kernel then
    skips the program."""
    counts_runs: bool = False
    """Programs count their runs; what the kernel counted less these is what they missed."""
    result: int = 0
    """What the programs return to the kernel."""
    expects: Callable[[str], str] = lambda _: ""
    """What was expected instead of such a target, or '': without asking this kernel."""
    other_names: tuple[str, ...] = ()
    """Names in other tools, for the hint in an error."""


def _by_link(link: Callable[[str, int], int], last_first: bool = False) -> Attach:
    """Attaches by link(target, program). last_first: the kernel runs the last attached first."""

    def attach(target: str, programs: Sequence[int]) -> Attachment:
        links = Links([])
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


def _link_typed(_: str, program: int) -> int:
    """The program was loaded for its target, a type in BTF."""
    return bpf.raw_tracepoint_open(None, program)


def _find_function(symbols: Kallsyms, target: str) -> None:
    """A kprobe's target must be one function: not inlined, not renamed, and its name unique."""
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
        "raw", 2, bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, _by_link(bpf.raw_tracepoint_open),
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
        counts_skipped=("bpf_link_info", "perf_event.kprobe.missed"),  # since 6.7
    ),
    ProbeKind(
        "iter", 6, _TRACING,
        _by_link(lambda _, program: bpf.link_create(program, bpf.BPF_TRACE_ITER)),
        bpf.BPF_TRACE_ITER,
        btf=(Kind.FUNC, "bpf_iter_{}"), is_direct=True, is_optional=False, nests=False,
    ),
    # A packet may interrupt another in the same program: the kernel runs it then too. 1: NF_ACCEPT.
    ProbeKind(
        "nf", 7, bpf.BPF_PROG_TYPE_NETFILTER, NetfilterHook, bpf.BPF_NETFILTER,
        is_direct=True, nests=False, result=1, expects=expect_hook, other_names=("netfilter",),
    ),
    # The kernel skips one that interrupts another, whichever it is: a second copy would not help.
    ProbeKind(
        "perf", 8, bpf.BPF_PROG_TYPE_PERF_EVENT, PerfEvent,
        nests=False, expects=expect_event, counts_runs=True, other_names=("perf_event",),
    ),
    ProbeKind(
        "uprobe", 9, bpf.BPF_PROG_TYPE_KPROBE, Uprobe,
        has_registers=True, nests=False, expects=expect_function, other_names=("usdt",),
    ),
    ProbeKind(
        "uretprobe", 10, bpf.BPF_PROG_TYPE_KPROBE, attach_uretprobe,
        nests=False, expects=expect_function,
    ),
)  # fmt: skip
KINDS: Mapping[str, ProbeKind] = MappingProxyType({kind.name: kind for kind in _ROWS})
"""All kinds, by name."""
