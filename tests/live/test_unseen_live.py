# SPDX-License-Identifier: Apache-2.0
"""Some kernels run no program while process 1 has the CPU: find_unseen() knows which, and captures
there say how long that was."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.plan.probes import find_unseen
from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.live.capturing import Running

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


FORMATS = {
    "psc": (), "klogger": ("--format", "klogger"),
}  # fmt: skip
FIRST = "pid:[4026531836]"
"""The namespace of processes that the kernel boots with."""
LEAST_NS = 10_000_000
MOST_S = 20.0
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
ORPHANS = "for i in $(seq 100); do (true &); done"
"""Process 1 waits for each of them."""


def cpu_of_threads() -> dict[str, int]:
    """CPU time of each thread of process 1 that is there, as of its last tick or switch [ns]."""
    found = {}
    for path in Path("/proc/1/task").glob("*/schedstat"):
        try:
            found[path.parent.name] = int(path.read_text().split()[0])
        except OSError:
            continue  # it ended meanwhile
    return found


def cpu_of_process_1() -> int:
    """CPU time of all its threads, those that ended too: at most two ticks too low [ns]."""
    fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_NS


def keep_busy() -> int:
    """Make process 1 work; how much CPU time its threads had meanwhile at least [ns]."""
    before, until = cpu_of_threads(), time.monotonic() + MOST_S
    while time.monotonic() < until:
        subprocess.run(["sh", "-c", ORPHANS], check=True)
        now = cpu_of_threads()
        had_ns = sum(now[thread] - before[thread] for thread in now.keys() & before.keys())
        if had_ns >= LEAST_NS:
            return had_ns
    pytest.skip("process 1 does nothing")


@pytest.mark.parametrize("name", first(2, FORMATS))
def test_a_capture_says_how_long_process_1_had_a_cpu(name: str, tmp_path: Path) -> None:
    """Between what its threads had while the capture ran, and what it had from before to after."""
    path = tmp_path / name
    outer_ns, began_ns = cpu_of_process_1(), time.monotonic_ns()
    running = Running(path, FORMATS[name], "")
    try:
        running.wait_until_ready()
        ready_ns = time.monotonic_ns()
        least_ns = keep_busy()
        lasted_ns = time.monotonic_ns() - ready_ns
        running.process.send_signal(signal.SIGINT)
        errors = running.process.communicate()[1]
        assert running.process.returncode == 0, errors
    finally:
        running.close()
    whole_ns = time.monotonic_ns() - began_ns
    most_ns = cpu_of_process_1() + 2 * TICK_NS - outer_ns
    report = format_of(path).verify(path)[-1]
    assert not report.problems
    found_ns, span_ns = report.unseen_cpu_ns, report.unseen_span_ns
    if not find_unseen(Btf.from_kernel()) or os.readlink("/proc/self/ns/pid") != FIRST:
        assert found_ns is None
        return
    assert found_ns is not None and least_ns <= found_ns <= most_ns
    assert lasted_ns <= span_ns <= whole_ns
    assert any(note.startswith("process 1 had a CPU for ") for note in report.notes)
