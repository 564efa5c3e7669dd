# SPDX-License-Identifier: Apache-2.0
"""Which probes this kernel accepts, found by trying: for collector/plan/probes.py and the doctor.

A trial loads a program of two instructions, attaches it and detaches it at once. A configuration
or a list of functions is no proof: kernels list functions that they then refuse.
"""

from __future__ import annotations

import os
import struct

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.linux.kallsyms import Kallsyms
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.loader.programs import attach_type_id, load_code
from tcpkmon.formats.base.errors import KernelError, TcpkmonError

# *(u64 *)(r10 - 8) = 0; r1 = 1; r1 = atomic_fetch_add((u64 *)(r10 - 8), r1); r0 = 0; exit
_FETCHING = (
    struct.pack("=BBhiBBhiBBhi", 0x7A, 0x0A, -8, 0, 0xB7, 0x01, 0, 1, 0xDB, 0x1A, -8, 0x01)
    + bpf.RETURN_ZERO
)


def check_atomics() -> None:
    """Raises KernelError where programs cannot number records: before Linux 5.12."""
    try:
        os.close(load_code("raw", _FETCHING, "tcpkmon_trial", 0))
    except KernelError as error:
        raise KernelError(
            f"Linux {os.uname().release} is too old: its BPF programs have no atomic instructions"
            " that return a value",
            "capture on Linux 5.12 or later",
        ) from error


class Probing:
    """The answers for one kernel; each trial is made once."""

    def __init__(self, btf: Btf) -> None:
        self._btf = btf
        self._reasons: dict[tuple[str, str], str] = {}
        # Kinds that the kernel refused, whatever the target.
        self._dead_kinds: dict[str, str] = {}
        # Kinds of which one tracepoint was attached: the others differ only by name.
        self._proven_kinds: set[str] = set()
        self._symbols = Kallsyms()

    def can(self, kind: str, target: str) -> bool:
        """Whether a program of this kind can be attached to the target."""
        return not self.why_not(kind, target)

    def why_not(self, kind: str, target: str) -> str:
        """Why a program of this kind cannot be attached to the target, or '' where it can."""
        if kind not in KINDS:
            raise ValueError(f"no such kind: {kind}")
        if kind in self._dead_kinds:
            return self._dead_kinds[kind]
        if (kind, target) not in self._reasons:
            try:
                self._try(kind, target)
                self._reasons[kind, target] = ""
            except TcpkmonError as error:
                self._reasons[kind, target] = error.message
                if _is_final(error):
                    self._dead_kinds[kind] = error.message
        return self._reasons[kind, target]

    def _try(self, name: str, target: str) -> None:
        kind = KINDS[name]
        if kind.find is not None:
            kind.find(self._symbols, target)
            return
        declared = self._btf.find(Kind.TYPEDEF, f"btf_trace_{target}") is not None
        proves = kind.is_tracepoint and declared
        if proves and name in self._proven_kinds:
            return
        type_id = attach_type_id(self._btf, name, target)
        prog_fd = load_code(name, bpf.returning(kind.result), "tcpkmon_trial", type_id)
        try:
            kind.attach(target, [prog_fd]).remove()
        finally:
            os.close(prog_fd)
        if proves:
            self._proven_kinds.add(name)


class Declared(Probing):
    """The same without a trial, for users without privilege: what the kernel declares.

    It may refuse later what it declares.
    """

    def _try(self, name: str, target: str) -> None:
        kind = KINDS[name]
        attach_type_id(self._btf, name, target)
        if kind.is_tracepoint:
            attach_type_id(self._btf, "btf", target)
        elif kind.find is not None and not self._symbols.functions(target):
            raise KernelError(f"this kernel has no function {target} to probe")


def _is_final(error: TcpkmonError) -> bool:
    """Whether the kernel refused the kind and not the target: EPERM, or ENOTSUPP (524)."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in {1, 524}
