# SPDX-License-Identifier: Apache-2.0
"""The schema disk: reads and writes of a file of the test's own, cold and cached."""

from __future__ import annotations

import mmap
import os
import random
import time
from pathlib import Path

import pytest

from tests.live.faults import FULL
from tests.live.file_workload import PAGE, make_cold, resident
from tests.live.schema_logs import Scenario, play

PAGES = 2048
READS = 1000 if FULL else 300


def cold_file(folder: Path, name: str) -> int:
    """A file of PAGES pages that the page cache does not have."""
    fd = make_cold(folder / name, PAGES)
    if resident(fd):
        pytest.skip("this file system keeps its files in memory")
    return fd


def settled(fd: int) -> int:
    """How many pages the page cache has once none are on their way: mincore() leaves those out."""
    before = -1
    while before != (now := resident(fd)):
        before = now
        time.sleep(0.3)
    return now


def cold_reads_miss_and_read_again_they_hit(cold: int) -> Scenario:
    """H4: reads of one page each, without read-ahead."""
    os.posix_fadvise(cold, 0, 0, os.POSIX_FADV_RANDOM)
    places = [page * PAGE for page in random.Random(1).sample(range(PAGES), READS)]
    for _ in range(2):
        for place in places:
            assert len(os.pread(cold, PAGE, place)) == PAGE
    in_cache, inode = resident(cold), os.fstat(cold).st_ino
    os.close(cold)
    log = yield
    reads = log.of("FILE_READ", inode=inode, tgid=os.getpid())
    assert [read["offset"] for read in reads] == places * 2
    assert [read["hit"] for read in reads] == [0] * READS + [1] * READS
    assert {read["bytes"] for read in reads} == {PAGE}
    assert sum(read["added"] for read in reads) == in_cache * PAGE
    assert sum(read["from_disk"] for read in reads) == in_cache * PAGE
    assert all(read["began"] < read["time_ns"] for read in reads)


def read_ahead_is_what_mincore_shows(cold: int) -> Scenario:
    """H4: what a sequential reader finds beyond what it asked for."""
    for _ in range(100):
        assert len(os.read(cold, PAGE)) == PAGE
    in_cache, inode = settled(cold), os.fstat(cold).st_ino
    os.close(cold)
    log = yield
    reads = log.of("FILE_READ", inode=inode, tgid=os.getpid())
    assert [read["offset"] for read in reads] == [page * PAGE for page in range(100)]
    assert sum(read["added"] for read in reads) == in_cache * PAGE > 100 * PAGE
    ahead = log.of("FILE_READAHEAD", inode=inode)
    assert ahead[0]["demand"] == 1
    assert ahead[0]["offset"] == 0
    assert 0 in {one["demand"] for one in ahead[1:]}
    assert sum(read["hit"] == 0 for read in reads) == sum(one["demand"] for one in ahead)


def writes(path: Path, flags: int) -> Scenario:
    data = mmap.mmap(-1, PAGE)
    fd = os.open(path, os.O_WRONLY | flags)
    os.pwritev(fd, [data], 3 * PAGE)
    os.fsync(fd)
    inode = os.fstat(fd).st_ino
    os.close(fd)
    log = yield
    write = log.one("FILE_WRITE", inode=inode, tgid=os.getpid())
    assert (write["offset"], write["bytes"]) == (3 * PAGE, PAGE)
    assert write["synchronous"] == (flags == os.O_DSYNC)
    assert write["direct"] == (flags == os.O_DIRECT)
    sync = log.one("FILE_SYNC", inode=inode)
    assert sync["result"] == 0
    assert len(log.of("PAGE_DIRTY", inode=inode, tgid=os.getpid())) == (flags != os.O_DIRECT)
    # The data reach the device with the call where it is synchronous, else with fsync.
    until = write if flags else sync
    done = [
        one for one in log.of("DISK_COMPLETE", operation="WRITE", tgid=os.getpid())
        if write["began"] < one["time_ns"] <= until["time_ns"]
    ]  # fmt: skip
    assert sum(one["bytes"] for one in done) >= PAGE


def test_files(tmp_path: Path) -> None:
    how = {"plain": 0, "direct": os.O_DIRECT, "synchronous": os.O_DSYNC}
    for name in how:
        os.close(cold_file(tmp_path, name))
    scenarios = [
        cold_reads_miss_and_read_again_they_hit(cold_file(tmp_path, "read")),
        read_ahead_is_what_mincore_shows(cold_file(tmp_path, "ahead")),
        *(writes(tmp_path / name, flags) for name, flags in how.items()),
    ]
    more = ["--using", "files", "--using", "buffers"]
    play(tmp_path / "log", "disk", scenarios=scenarios, more=more)
