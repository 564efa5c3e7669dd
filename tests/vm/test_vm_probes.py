# SPDX-License-Identifier: Apache-2.0
"""Page faults, clocks, libc's functions, netfilter's hooks on this kernel; a CPU comes and goes."""

from __future__ import annotations

import mmap
import platform
import socket
import threading
import time
from pathlib import Path

import pytest

from tcpkmon.collector.loader.attach_trials import Probing
from tests.live.schema_logs import logging, make_schema
from tests.vm.hotplug import CPU, ONLINE, set_online

PAGES = 100
CONF = """
event ARRIVED { int x }
event FAULTED { int pid; ulonglong address }
event LOOKED_UP { int pid; int error }
"""
TEXT = """
#include "klogger.h"

#if USE_arrived
PROBE(arrived, "ARRIVED", "nf:LOCAL_IN") { klogger(ARRIVED, 1); }
#endif
PROBE(faulted, "FAULTED", "perf:page_faults:1")
{ klogger(FAULTED, bpf_get_current_pid_tgid(), ARG(3)); }
PROBE(looked_up, "LOOKED_UP", "uretprobe:LIBC:getaddrinfo")
{ klogger(LOOKED_UP, bpf_get_current_pid_tgid(), ARG(0)); }
""".replace("LIBC", f"/lib/{platform.machine()}-linux-gnu/libc.so.6")


def fault() -> None:
    """A page fault for each of PAGES pages."""
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(PAGES):
            memory[page * mmap.PAGESIZE] = 1


def test_each_kind(tmp_path: Path, probing: Probing) -> None:
    folder = make_schema(tmp_path / "kinds", CONF, TEXT)
    with logging(tmp_path / "log", str(folder)) as running:
        fault()
        socket.getaddrinfo("127.0.0.1", 80)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(("127.0.0.1", 0))
            one.sendto(b"x", one.getsockname())
            one.recv(10)
        log = running.finish()
    me = threading.get_native_id()
    assert len(log.of("FAULTED", pid=me)) >= PAGES
    assert [one["error"] for one in log.of("LOOKED_UP", pid=me)] == [0]
    assert bool(log.of("ARRIVED")) == probing.can("nf", "LOCAL_IN")
    assert ("ARRIVED" in log.missing) != probing.can("nf", "LOCAL_IN")


@pytest.mark.usefixtures("machine_of_its_own")
def test_samples_of_a_cpu_that_went_and_came(tmp_path: Path) -> None:
    assert ONLINE.read_text().strip() == "1"
    try:
        with logging(tmp_path / "log", "sampler") as running:
            time.sleep(1)
            set_online(False)
            gone_ns = time.monotonic_ns()
            time.sleep(3)
            back_ns = time.monotonic_ns()
            set_online(True)
            time.sleep(8)
            log = running.finish()
    finally:
        if ONLINE.read_text().strip() != "1":
            set_online(True)
    times = [one["time_ns"] for one in log.of("SAMPLE") if one["on_cpu"] == CPU]
    assert any(at < gone_ns for at in times)
    assert not [at for at in times if gone_ns < at < back_ns]
    assert sum(at > back_ns for at in times) > 50
