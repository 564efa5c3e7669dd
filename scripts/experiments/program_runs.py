# SPDX-License-Identifier: Apache-2.0
"""How often BPF programs ran, and for how long: the kernel's statistics, beside an empty program's.

The statistics (BPF_ENABLE_STATS) have a cost too, which is part of each number: an empty program,
measured at the same time, shows how much it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.programs import attach_type_id, load_code
from tcpkmon.collector.plan.probes import Chosen

EMPTY = "an empty program"


@dataclass(frozen=True)
class Runs:
    """How often a program ran, and for how long."""

    count: int
    ns: int


def runs_of(kernel: Kernel, probes: Sequence[Chosen], empty_fd: int) -> dict[str, Runs]:
    """By the locations of a program: the runs of its first copy, and the time of all copies."""
    missed = kernel.loaded.missed()
    found = {
        " ".join(probe.locations): Runs(missed[probe.name].run_cnt, missed[probe.name].run_ns)
        for probe in probes
    }
    info = bpf.prog_info(empty_fd)
    found[EMPTY] = Runs(info.run_cnt, info.run_time_ns)
    return found


@contextlib.contextmanager
def empty_program() -> Iterator[int]:
    """A program that does nothing at tcp_probe."""
    btf_id = attach_type_id(Btf.from_kernel(), "btf", "tcp_probe")
    with contextlib.ExitStack() as opened:
        fd = load_code("btf", bpf.RETURN_ZERO, "bench_empty", btf_id)
        opened.callback(os.close, fd)
        opened.callback(KINDS["btf"].attach("tcp_probe", [fd]).remove)
        yield fd
