# SPDX-License-Identifier: Apache-2.0
"""The schemata of the host in one capture: each event of this kernel, and the names of the others.

Block devices, a file system, swap and a cgroup of the test's own: it needs a guest.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tcpkmon.collector.commands.probe import USER_OPTION
from tcpkmon.formats.analysis import open_log, queues
from tests.live import test_schema_disk as disk
from tests.live import test_schema_paging as paging
from tests.live import test_schema_syscall as syscall
from tests.live import test_schema_tty as terminals
from tests.live.disk_workload import Device
from tests.live.file_workload import is_resident, make_cold
from tests.live.memory_workload import small_cgroup, swap_on
from tests.live.schema_logs import Log, logging

HOST = ("syscall", "disk", "paging", "tty", "user", "sampler")
LEVELS = ("requests", "queue", "files", "buffers", "stacks")
HAS_STACKS = not os.uname().release.startswith("6.1.")
"""The verifier of 6.1 refuses the program with stacks."""
# What a user gets, and what is left where fentry and BTF tracepoints are missing.
WAYS = {"best": "", "untyped": "raw,kprobe,perf"}
CALLS, DEPTH, COUNT, READS = 100, 4, 10, 20
PAGE = mmap.PAGESIZE
RARE = {"DISK_REQUEUE"}
"""Cannot be caused."""


@contextmanager
def loop(image: Path, megabytes: int) -> Iterator[Device]:
    """A device over an empty file."""
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    words = ["losetup", "-f", "--show", str(image)]
    path = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Device(path)
    finally:
        subprocess.run(["losetup", "-d", path], check=True)


@dataclass(frozen=True)
class Machine:
    """disk: with mq-deadline; files: a file system; procs: a cgroup of 8 MB, with swap."""

    disk: Device
    files: Path
    procs: Path


@pytest.fixture
def machine(tmp_path: Path, machine_of_its_own: None) -> Iterator[Machine]:
    subprocess.run(["modprobe", "-a", "loop", "mq-deadline", "ext4"], check=True)
    files = tmp_path / "files"
    files.mkdir()
    with ExitStack() as stack:
        raw, formatted, swap = (
            stack.enter_context(loop(tmp_path / name, size))
            for name, size in (("raw", 16), ("formatted", 32), ("swap", 32))
        )
        assert raw.choose("mq-deadline")
        for other in (formatted, swap):
            assert other.choose("none")  # else DISK_QUEUE has their queues too
        run("mkfs.ext4", "-q", "-O", "^has_journal", formatted.path)
        run("mount", formatted.path, files)
        stack.callback(run, "umount", files)
        stack.enter_context(swap_on(swap.path))
        Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
        yield Machine(raw, files, stack.enter_context(small_cgroup(8 << 20)))


def run(*words: str | Path) -> None:
    subprocess.run(list(words), check=True, capture_output=True)


@dataclass(frozen=True)
class Files:
    """Of files that were read at random, in order, by page faults, and written: their inodes;
    offsets that were read, bytes in the cache then; when there were faults, and how many major."""

    read: int
    ahead: int
    mapped: int
    written: int
    places: Sequence[int]
    in_cache: int
    faults: range
    major: int


def use_files(folder: Path) -> Files:
    names = ("read", "ahead", "mapped", "written")
    fds = [make_cold(folder / name, paging.PAGES) for name in names]
    read, ahead, mapped, written = fds
    places = [page * PAGE for page in random.Random(1).sample(range(paging.PAGES), READS)]
    os.posix_fadvise(read, 0, 0, os.POSIX_FADV_RANDOM)
    for place in places * 2:
        assert len(os.pread(read, PAGE, place)) == PAGE
    with mmap.mmap(read, 0) as memory:
        in_cache = sum(is_resident(memory)) * PAGE
    for _ in range(READS):
        assert len(os.read(ahead, PAGE)) == PAGE
    with mmap.mmap(mapped, 0) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        faults, major, _ = paging.touch(memory, range(0, READS, 2))
    os.pwrite(written, bytes(PAGE), 3 * PAGE)
    os.fsync(written)
    os.pwrite(written, bytes(PAGE), 5 * PAGE)
    os.sync()
    inodes = [os.fstat(fd).st_ino for fd in fds]
    for fd in fds:
        os.close(fd)
    return Files(*inodes, places, in_cache, faults, major)


def check_files(log: Log, done: Files) -> None:
    mine = os.getpid()
    reads = log.of("FILE_READ", inode=done.read, tgid=mine)
    assert [one["offset"] for one in reads] == [*done.places] * 2
    assert [one["hit"] for one in reads] == [0] * READS + [1] * READS
    assert sum(one["added"] for one in reads) == done.in_cache == READS * PAGE
    ahead = log.of("FILE_READAHEAD", inode=done.ahead)
    assert (ahead[0]["demand"], ahead[0]["offset"]) == (1, 0)
    assert 0 in {one["demand"] for one in ahead[1:]}
    writes = log.of("FILE_WRITE", inode=done.written, tgid=mine)
    found = [(one["offset"], one["bytes"]) for one in writes]
    assert found[-2:] == [(3 * PAGE, PAGE), (5 * PAGE, PAGE)]
    assert [one["result"] for one in log.of("FILE_SYNC", inode=done.written)][-1] == 0
    assert len(log.of("PAGE_DIRTY", inode=done.written, tgid=mine)) >= 2
    assert log.of("WRITEBACK", inode=done.written)
    assert log.of("BUFFER_TOUCH") and log.of("BUFFER_DIRTY")
    cold = paging.mine(log, done.faults, with_io=1)
    assert len(cold) == done.major == READS // 2
    assert [one["page"] for one in cold] == list(range(0, READS, 2))
    assert {one["file"] for one in cold} == {done.mapped}


@dataclass(frozen=True)
class Disk:
    """Reads by a process, and merged writes, with the kernel's counters before, between, after."""

    pid: int
    stats: Sequence[list[int]]


def use_disk(device: Device) -> Disk:
    stats = [device.read_stat()]
    pid = disk.run(device, DEPTH, COUNT)
    stats.append(device.read_stat())
    disk.write_neighbours(device)
    return Disk(pid, [*stats, device.read_stat()])


def check_disk(log: Log, folder: Path, device: Device, done: Disk) -> None:
    found = disk.check_reads(folder, device, *done.stats[:2], done.pid)
    assert len(found) == DEPTH * COUNT
    disk.check_merges(log, folder, device, *done.stats[1:])
    with open_log(folder) as events:
        lengths = [one.length for one in queues(events) if one.device == device.number]
    assert len(lengths) == len(log.of("DISK_QUEUE", device=device.number)) > 0


def check_names(log: Log, missing: set[str]) -> None:
    """Each event is recorded, but those that are missing by name and those that nothing causes."""
    assert {*log.missing} == missing and all(log.missing.values())
    seen = {one["event"] for one in log.records}
    assert {*log.ways} - seen <= RARE


@pytest.mark.parametrize("way", WAYS)
def test_all_of_them(tmp_path: Path, machine: Machine, way: str) -> None:
    folder, kinds = tmp_path / "log", WAYS[way]
    levels = LEVELS if HAS_STACKS else (*LEVELS[:-1], "samples")
    using = [word for level in levels for word in ("--using", level)]
    more = [*using, "--syscalls", "getppid", "--buffer-size", "64"]
    with logging(folder, *HOST, kinds=kinds, more=more) as running:
        tids = syscall.call_in_threads(CALLS)
        disk_use = use_disk(machine.disk)
        files = use_files(machine.files)
        grown = paging.run_out_of_memory(machine.procs, 14)
        shell, session = terminals.log_in()
        user = terminals.answer_a_line()
        text = ctypes.create_string_buffer(b"text")
        ctypes.CDLL(None).prctl(USER_OPTION, 3, 4, ctypes.byref(text), 4)
        log = running.finish()
    syscall.check_calls(log, folder, tids, CALLS, "raw" if kinds else "btf")
    check_disk(log, folder, machine.disk, disk_use)
    check_files(log, files)
    paging.check_page_outs(log, grown)
    terminals.check_login(log, shell, session)
    terminals.check_answer(log, user)
    pressed = log.one("USER_EVENT", tgid=os.getpid())
    assert (pressed["group"], pressed["type"], pressed["aux"]) == (3, 4, "text")
    states = Counter(one["state"] for one in log.of("SAMPLE", pid=grown.pid))
    assert states["USER"] > 10 and states["SYSTEM"] > 0
    frames = log.of("SAMPLE_FRAME")
    assert any(one["part"] == "KERNEL" and one["symbol"] for one in frames) == HAS_STACKS
    check_names(log, set())
