# SPDX-License-Identifier: Apache-2.0
"""The schema paging: page-ins against rusage and mincore, page-outs against pswpout."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader.attach_trials import Probing
from tests.live.capturing import ROOT
from tests.live.disk_workload import loop_device
from tests.live.file_workload import is_resident, make_cold, resident
from tests.live.memory_workload import (
    NotHere,
    outgrow,
    small_cgroup,
    swap_in_memory,
    swap_on,
    swapped,
)
from tests.live.schema_logs import Log, Record, Scenario, logging, play

PAGES = 200
PAGE = mmap.PAGESIZE


@pytest.fixture(scope="module", autouse=True)
def _has_faults() -> None:
    if why := Probing(Btf.from_kernel()).why_not("perf", "page_faults:1"):
        pytest.skip(why)


def touch(memory: mmap.mmap, pages: range) -> tuple[range, int, int]:
    """Reads a byte of each page; the time meanwhile (monotonic ns), major and minor faults."""
    before = resource.getrusage(resource.RUSAGE_THREAD)
    begun_ns = time.monotonic_ns()
    for page in pages:
        memory[page * PAGE]
    ended_ns = time.monotonic_ns()
    after = resource.getrusage(resource.RUSAGE_THREAD)
    counts = after.ru_majflt - before.ru_majflt, after.ru_minflt - before.ru_minflt
    return range(begun_ns, ended_ns), *counts


def mine(log: Log, span: range, **values: int) -> list[Record]:
    me = threading.get_native_id()
    return [one for one in log.of("PAGEIN_END", tid=me, **values) if one["time_ns"] in span]


def page_ins_with_io_are_major_faults(path: Path) -> Scenario:
    """Each page of a cold file, by number, of this file; a second look needs no disk."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory.madvise(mmap.MADV_RANDOM)  # no read-ahead
        cold, major, _ = touch(memory, range(0, PAGES, 2))
        assert [page for page, there in enumerate(is_resident(memory)) if there] == list(
            range(0, PAGES, 2)
        )
        memory.madvise(mmap.MADV_DONTNEED)
        warm, major_again, _ = touch(memory, range(0, PAGES, 2))
        status = os.fstat(file.fileno())
    log = yield
    found = mine(log, cold, with_io=1)
    assert len(found) == major == PAGES // 2
    assert [one["page"] for one in found] == list(range(0, PAGES, 2))
    assert {one["file"] for one in found} == {status.st_ino}
    device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
    assert {one["device"] for one in found} == {device}
    addresses = [one["address"] // PAGE for one in found]
    assert [one - addresses[0] for one in addresses] == list(range(0, PAGES, 2))
    assert mine(log, warm, with_io=1) == []
    assert major_again == 0
    assert any(one["file"] == status.st_ino for one in mine(log, warm, with_io=0))
    for one in found:
        assert one["time_ns"] - 10**10 < one["since"] < one["time_ns"]


def a_start_is_put_out_only_with_its_end() -> Scenario:
    """As many of both, one after the other, with the times of the same fault."""
    with mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        span, major, minor = touch(memory, range(PAGES))
    fault = "import ctypes; ctypes.string_at(0)"  # ends in SIGSEGV: there is no END
    assert subprocess.run([sys.executable, "-c", fault], check=False).returncode < 0
    log = yield
    found = mine(log, span)
    # The two readings of rusage may fault too.
    assert PAGES <= len(found) <= major + minor
    assert sum(one["with_io"] == 0 and one["file"] == 0 for one in found) >= PAGES
    both = ("tid", "address", "page", "file", "with_io", "since")
    starts, ends = log.of("PAGEIN_START"), log.of("PAGEIN_END")
    assert len(starts) == len(ends)
    key = lambda one: (one["on_cpu"], one["time_ns"])  # noqa: E731
    for start, end in zip(sorted(starts, key=key), sorted(ends, key=key), strict=True):
        assert [start[name] for name in both] == [end[name] for name in both]
        assert start["cpu_time"] <= end["cpu_time"]


def test_page_ins(tmp_path: Path) -> None:
    path = tmp_path / "cold"
    fd = make_cold(path, PAGES)
    if resident(fd):
        pytest.skip("this file system keeps files in memory")
    os.close(fd)
    scenarios = [page_ins_with_io_are_major_faults(path), a_start_is_put_out_only_with_its_end()]
    play(tmp_path / "log", "paging", scenarios=scenarios)


@pytest.fixture(params=["bios", "requests"])
def procs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The file of a cgroup with little memory, and swap: on zram, which takes bios as they are, or
    on a device with requests."""
    with ExitStack() as stack:
        try:
            if request.param == "bios":
                stack.enter_context(swap_in_memory())
            else:
                device = stack.enter_context(loop_device(tmp_path, 40))
                if device is None:
                    raise NotHere("this machine makes no loop device")
                stack.enter_context(swap_on(device.path))
            made = stack.enter_context(small_cgroup(8 << 20))
        except NotHere as error:
            pytest.skip(str(error))
        yield made


@dataclass(frozen=True)
class Outgrown:
    """A process that outgrew its cgroup, when (monotonic ns), and what the machine counted."""

    pid: int
    span: range
    read: int
    written: int
    major: int


def run_out_of_memory(procs: Path, megabytes: int = 24) -> Outgrown:
    before, begun_ns = swapped(), time.monotonic_ns()
    process = subprocess.Popen(outgrow(procs, megabytes), cwd=ROOT)
    assert process.wait(150) == 0
    after, ended_ns = swapped(), time.monotonic_ns()
    counts = (new - old for old, new in zip(before, after, strict=True))
    return Outgrown(process.pid, range(begun_ns, ended_ns), *counts)


def check_page_outs(log: Log, done: Outgrown) -> None:
    assert done.written > 1000
    starts, ends = log.of("PAGEOUT_START"), log.of("PAGEOUT_END")
    assert sum(one["pages"] for one in starts) == done.written
    assert sum(one["pages"] for one in ends) == done.written
    assert {one["error"] for one in ends} == {0}
    assert done.pid in {one["tgid"] for one in starts}
    # One page a fault. The tail of swapoff is no fault.
    by_io = log.of("PAGEIN_END", tgid=done.pid, with_io=1, file=0)
    assert len(by_io) == done.read
    major = [one for one in log.of("PAGEIN_END", with_io=1) if one["time_ns"] in done.span]
    assert len(major) == done.major, "of all processes"
    searches = log.of("RECLAIM_START", tgid=done.pid, kind="CGROUP")
    found = log.of("RECLAIM_END", tgid=done.pid, kind="CGROUP")
    assert len(searches) == len(found) > 0
    assert sum(one["pages"] for one in found) > done.written // 2


def test_page_outs_are_what_went_to_swap(tmp_path: Path, procs: Path) -> None:
    """A process outgrows its cgroup: each page written to swap counts, and the search for them."""
    with logging(tmp_path / "log", "paging") as running:
        done = run_out_of_memory(procs)
        log = running.finish()
    check_page_outs(log, done)
