# SPDX-License-Identifier: Apache-2.0
"""What this kernel lets us attach to, found by trying: for plan/probes.py and the doctor.

A trial loads a program of two instructions and attaches it for an instant. What a configuration
says is never believed: kernels list functions that they then refuse.
"""

from __future__ import annotations

import contextlib
import os
import re

from collector.linux import bpf
from collector.linux.kprobe_events import Tracefs, has_kprobes
from collector.loader.programs import KINDS, TypeIds, attach_link, attach_type_id, load_code
from formats.base.errors import KernelError, TcpkmonError

KALLSYMS = "/proc/kallsyms"


class Probing:
    """Answers for one kernel, kept while the object lives."""

    def __init__(self, btf: TypeIds) -> None:
        self._btf = btf
        self._reasons: dict[tuple[str, str], str] = {}
        # Kinds that the kernel refused for a reason that no other target can change.
        self._dead_kinds: dict[str, str] = {}
        # BTF tracepoints with a trial behind them: others differ by name only.
        self._proven_kinds: set[str] = set()
        self._symbols: bytes | None = None

    def can(self, kind: str, target: str) -> bool:
        """Whether a program of this kind can be attached to the target."""
        return not self.why_not(kind, target)

    def why_not(self, kind: str, target: str) -> str:
        """Why a program of this kind cannot be attached to the target, or '' when it can."""
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

    def _try(self, kind: str, target: str) -> None:
        if kind in {"kprobe", "kretprobe"}:
            self._look_for_symbol(target)
            return
        tracepoint = kind in {"btf", "raw"}
        if tracepoint and self._btf.typedef(f"btf_trace_{target}") is not None:
            if kind in self._proven_kinds:
                return
            _try_to_attach(kind, target, self._btf)
            self._proven_kinds.add(kind)
            return
        _try_to_attach(kind, target, self._btf)

    def _look_for_symbol(self, target: str) -> None:
        """A kprobe's target must be one function: not inlined, not renamed, not two of the name."""
        if self._symbols is None:
            with Tracefs() as tracefs:
                if not has_kprobes(tracefs.path):
                    reason = "this kernel has no kprobes (CONFIG_KPROBE_EVENTS)"
                    self._dead_kinds.update(kprobe=reason, kretprobe=reason)
                    raise KernelError(reason)
            with open(KALLSYMS, "rb") as file:
                self._symbols = file.read()
        pattern = rb" [tT] " + re.escape(target.encode()) + rb"(?=[\t\n])"
        count = len(re.findall(pattern, self._symbols))
        if count != 1:
            raise KernelError(f"this kernel has {count or 'no'} functions {target} to probe")


def _is_final(error: TcpkmonError) -> bool:
    """Whether the kernel refused the kind and not the target: EPERM, or ENOTSUPP (524)."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in {1, 524}


def _try_to_attach(kind: str, target: str, btf: TypeIds) -> None:
    """Load and attach a program that does nothing; the refusal is raised."""
    btf_id = attach_type_id(btf, kind, target)
    with contextlib.ExitStack() as opened:
        prog_fd = load_code(kind, bpf.RETURN_ZERO, "tcpkmon_trial", btf_id)
        opened.callback(os.close, prog_fd)
        opened.callback(os.close, attach_link(kind, target, prog_fd))
