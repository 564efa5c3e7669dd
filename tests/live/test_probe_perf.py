# SPDX-License-Identifier: Apache-2.0
"""Probes of kind perf: page faults are counted exactly, clocks tick at their period."""

from __future__ import annotations

import math
import mmap
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcpkmon.collector.linux import bpf, perf_events
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.perf_events import PerfEvent, parse_event
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.loader.program import load_code
from tests.live.schema_logs import logging, make_schema

PAGES = 3000
PERIOD_NS = 20_000_000
HIDDEN = 20
"""Other captures' changes of maps may hide a few events from a program."""
CONF = """
event FAULT { int pid; int user; ulonglong address; ulonglong ip }
event MINOR { int pid }
event TICK { int pid; int user; ulonglong period }
"""
TEXT = """
#include "klogger.h"

PROBE(fault, "FAULT", "perf:page_faults:1")
{
    klogger(FAULT, bpf_get_current_pid_tgid(), ARG(1), ARG(3), ARG(0));
}
PROBE(minor, "MINOR", "perf:minor_faults:1")
{
    klogger(MINOR, bpf_get_current_pid_tgid());
}
PROBE(tick, "TICK", "perf:cpu_clock:20ms")
{
    klogger(TICK, bpf_get_current_pid_tgid(), ARG(1), ARG(2));
}
"""


@pytest.fixture(scope="module", autouse=True)
def _has_perf() -> None:
    if why := Probing(Btf.from_kernel()).why_not("perf", "cpu_clock:20ms"):
        pytest.skip(why)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_schema(tmp_path_factory.mktemp("schema") / "faults", CONF, TEXT)


@contextmanager
def busy() -> Iterator[None]:
    """A process on each CPU: while a CPU sleeps, its host may let it sleep over ticks."""
    spin = ["taskset", "--cpu-list"]
    spinning = [
        subprocess.Popen([*spin, str(cpu), sys.executable, "-c", "while True: pass"])
        for cpu in online_cpus()
    ]
    try:
        time.sleep(0.2)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_each_page_fault_counts(tmp_path: Path, faults: Path) -> None:
    """As many as rusage has, each page of a fresh mapping once, at its address."""
    with logging(tmp_path / "log", str(faults)) as running:
        with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            before = resource.getrusage(resource.RUSAGE_THREAD)
            begun_ns = time.monotonic_ns()
            for page in range(PAGES):
                memory[page * mmap.PAGESIZE] = 1
            ended_ns = time.monotonic_ns()
            after = resource.getrusage(resource.RUSAGE_THREAD)
        log = running.finish()
    me = os.getpid()
    mine = [one for one in log.of("FAULT", pid=me) if begun_ns < one["time_ns"] < ended_ns]
    minor = [one for one in log.of("MINOR", pid=me) if begun_ns < one["time_ns"] < ended_ns]
    counted = after.ru_minflt - before.ru_minflt
    # The readings themselves may fault, outside the two times.
    assert counted - 3 <= len(minor) <= counted
    assert len(minor) <= len(mine) <= counted + after.ru_majflt - before.ru_majflt
    pages = [one["address"] // mmap.PAGESIZE for one in mine]
    # Python's own few faults lie elsewhere.
    run = next(p for p in pages if p + PAGES - 1 in pages)
    assert [p for p in pages if run <= p < run + PAGES] == list(range(run, run + PAGES))
    assert sum(one["user"] for one in mine) >= PAGES
    assert all(one["ip"] for one in mine)
    # Other captures' changes of maps may hide a few.
    assert re.search(r"lost: (none|missed by a program \d\d?$)", log.errors, re.MULTILINE)


def test_a_clock_ticks_at_its_period(tmp_path: Path, faults: Path) -> None:
    """On each CPU; a busy thread is found in user mode."""
    with busy(), logging(tmp_path / "log", str(faults), more=["--locations", "TICK"]) as running:
        begun_ns = time.monotonic_ns()
        used = time.thread_time_ns()
        while (ended_ns := time.monotonic_ns()) < begun_ns + 10**9:
            pass
        used = time.thread_time_ns() - used
        log = running.finish()
    ticks = [one for one in log.of("TICK") if begun_ns < one["time_ns"] < ended_ns]
    expected = (ended_ns - begun_ns) / PERIOD_NS
    for cpu in online_cpus():
        assert 1 <= sum(one["on_cpu"] == cpu for one in ticks) <= expected + 2
    assert {one["period"] for one in ticks} == {PERIOD_NS}
    mine = [one for one in ticks if one["pid"] == os.getpid()]
    # Beside others it has a share of its CPU's ticks: a sample, of which this is four sigma.
    share = used / PERIOD_NS
    assert abs(len(mine) - share) <= 0.2 * share + 4 * math.sqrt(share)
    assert sum(one["user"] for one in mine) > 0.5 * len(mine)


@pytest.fixture
def program() -> Iterator[int]:
    """A program of kind perf that does nothing; its runs are counted."""
    program, stats = load_code("perf", bpf.RETURN_ZERO, "tcpkmon_test", 0), bpf.enable_stats()
    yield program
    os.close(stats)
    os.close(program)


def test_cpus_come_and_go(program: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program follows the CPUs that are online; what was due on one that went stays counted."""
    there: tuple[int, ...] = online_cpus()[:1]
    monkeypatch.setattr(perf_events, "online_cpus", lambda: there)
    event = PerfEvent("page_faults:1", [program])
    event.refresh()
    assert len(event.fds) == 1
    there = online_cpus()
    event.refresh()
    assert len(event.fds) == len(there)
    with busy():
        before = event.read_due()
    assert before and before > 0
    there = there[-1:]
    event.refresh()
    assert len(event.fds) == 1
    assert event.read_due() >= before
    event.remove()
    assert 0 <= event.read_due() - bpf.prog_info(program).run_cnt <= HIDDEN


def test_what_should_have_run_is_known(program: int) -> None:
    """Each period-th fault, whatever the period was; a clock does not tell."""
    event = PerfEvent("page_faults:1", [program])
    event.refresh()
    due = []
    for period in (1, 7):
        event.set_period(period)
        before = bpf.prog_info(program).run_cnt
        with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(PAGES):
                memory[page * mmap.PAGESIZE] = 1
        due.append(bpf.prog_info(program).run_cnt - before)
    event.remove()
    assert due[0] >= PAGES - HIDDEN
    assert due[1] >= PAGES // 7 - HIDDEN
    assert 0 <= event.read_due() - bpf.prog_info(program).run_cnt <= HIDDEN
    clock = PerfEvent("cpu_clock:20ms", [program])
    assert clock.read_due() is None
    clock.remove()


def test_targets() -> None:
    assert parse_event("cpu_clock:4ms") == parse_event("cpu_clock:4000000")
    for wrong in ("cpu_clock", "cpu_clock:", "cpu_clock:0", "cpu_clock:99us", "page_faults:1ms",
                  "no_such:1", "cpu_clock:4 ms", "page_faults:-1", "page_faults:1:1"):  # fmt: skip
        assert parse_event(wrong) is None, wrong
        assert Probing(Btf.from_kernel()).why_not("perf", wrong)
