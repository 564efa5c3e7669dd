# SPDX-License-Identifier: Apache-2.0
"""Some kernels run no program while process 1 has the CPU: find_unseen() knows which."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.plan.probes import find_unseen

WAIT_S = 5.0
ENOUGH = 5
_GET_CURRENT_PID_TGID = 14


def count_in_process_1(map_fd: int) -> bytes:
    """Adds 1 to the map's number if process 1 is the current one."""
    steps = (
        (bpf.BPF_CALL, 0, 0, _GET_CURRENT_PID_TGID),
        (0x77, 0x00, 0, 32),  # r0 >>= 32
        (0x55, 0x00, 4, 1),  # to the end if r0 != 1
        (bpf.BPF_LD_IMM64, 0x21, 0, map_fd),  # r1 = the value's address
        (0, 0, 0, 0),
        (bpf.BPF_MOV64_IMM, 0x02, 0, 1),
        (0xDB, 0x21, 0, 0),  # atomic: *r1 += r2
    )
    return b"".join(struct.pack("=BBhi", *step) for step in steps) + bpf.RETURN_ZERO


def switches() -> int:
    """How often a thread of process 1 gave up a CPU."""
    texts = (path.read_text() for path in Path("/proc/1/task").glob("*/status"))
    lines = (line for text in texts for line in text.splitlines())
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def test_what_is_said_of_process_1_is_so() -> None:
    fds = [bpf.map_create(bpf.BPF_MAP_TYPE_ARRAY, 4, 8, 1)]
    try:
        code = count_in_process_1(fds[0])
        fds.append(bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, code, "process_1", 0, 0))
        fds.append(bpf.raw_tracepoint_open("sched_switch", fds[1]))
        before, until = switches(), time.monotonic() + WAIT_S
        while (happened := switches() - before) < ENOUGH and time.monotonic() < until:
            time.sleep(0.05)
        value = bpf.map_lookup(fds[0], bytes(4), 8)
        seen = struct.unpack("=Q", value)[0] if value else 0
    finally:
        for fd in reversed(fds):
            os.close(fd)
    if happened < ENOUGH:
        pytest.skip("process 1 does nothing")
    assert bool(find_unseen(Btf.from_kernel())) == (seen == 0), (seen, happened)
