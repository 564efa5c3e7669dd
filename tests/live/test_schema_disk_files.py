# SPDX-License-Identifier: Apache-2.0
"""The schema disk: reads and writes of a file of the test's own, cold and cached."""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full import first
from tests.live.faults import FULL
from tests.live.file_workload import PAGE, make_cold, resident
from tests.live.schema_logs import logging

PAGES = 2048
READS = 1000 if FULL else 300


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[int]:
    """A file of PAGES pages that the page cache does not have."""
    fd = make_cold(tmp_path / "file", PAGES)
    if resident(fd):
        pytest.skip("this file system keeps its files in memory")
    yield fd
    os.close(fd)


def settled(fd: int) -> int:
    """How many pages the page cache has once none are on their way: mincore() leaves those out."""
    before = -1
    while before != (now := resident(fd)):
        before = now
        time.sleep(0.3)
    return now


def test_cold_reads_miss_and_read_again_they_hit(tmp_path: Path, cold: int) -> None:
    """H4: reads of one page each, without read-ahead."""
    os.posix_fadvise(cold, 0, 0, os.POSIX_FADV_RANDOM)
    places = [page * PAGE for page in random.Random(1).sample(range(PAGES), READS)]
    with logging(tmp_path / "log", "disk") as running:
        for _ in range(2):
            for place in places:
                assert len(os.pread(cold, PAGE, place)) == PAGE
        in_cache = resident(cold)
    log = running.finish()
    reads = log.of("FILE_READ", inode=os.fstat(cold).st_ino, tgid=os.getpid())
    assert [read["offset"] for read in reads] == places * 2
    assert [read["hit"] for read in reads] == [0] * READS + [1] * READS
    assert {read["bytes"] for read in reads} == {PAGE}
    assert sum(read["added"] for read in reads) == in_cache * PAGE
    assert sum(read["from_disk"] for read in reads) == in_cache * PAGE
    assert all(read["began"] < read["time_ns"] for read in reads)


def test_read_ahead_is_what_mincore_shows(tmp_path: Path, cold: int) -> None:
    """H4: what a sequential reader finds beyond what it asked for."""
    with logging(tmp_path / "log", "disk") as running:
        for _ in range(100):
            assert len(os.read(cold, PAGE)) == PAGE
    log = running.finish()
    in_cache = settled(cold)
    inode = os.fstat(cold).st_ino
    reads = log.of("FILE_READ", inode=inode, tgid=os.getpid())
    assert [read["offset"] for read in reads] == [page * PAGE for page in range(100)]
    assert sum(read["added"] for read in reads) == in_cache * PAGE > 100 * PAGE
    ahead = log.of("FILE_READAHEAD", inode=inode)
    assert ahead[0]["demand"] == 1
    assert ahead[0]["offset"] == 0
    assert 0 in {one["demand"] for one in ahead[1:]}
    assert sum(read["hit"] == 0 for read in reads) == sum(one["demand"] for one in ahead)


@pytest.mark.parametrize("flags", first(2, [0, os.O_DIRECT, os.O_DSYNC]))
def test_writes(tmp_path: Path, cold: int, flags: int) -> None:
    path = tmp_path / "file"
    data = mmap.mmap(-1, PAGE)
    with logging(tmp_path / "log", "disk", more=["--using", "files", "--using", "buffers"]) as run:
        fd = os.open(path, os.O_WRONLY | flags)
        os.pwritev(fd, [data], 3 * PAGE)
        os.fsync(fd)
        os.close(fd)
    log = run.finish()
    inode = os.fstat(cold).st_ino
    write = log.one("FILE_WRITE", inode=inode, tgid=os.getpid())
    assert (write["offset"], write["bytes"]) == (3 * PAGE, PAGE)
    assert write["synchronous"] == (flags == os.O_DSYNC)
    assert write["direct"] == (flags == os.O_DIRECT)
    assert log.one("FILE_SYNC", inode=inode)["result"] == 0
    dirty = log.of("PAGE_DIRTY", inode=inode, tgid=os.getpid())
    assert len(dirty) == (flags != os.O_DIRECT)
    # The data reach the device with the call where it is synchronous, else with fsync.
    until = log.one("FILE_SYNC", inode=inode) if not flags else write
    done = [
        one for one in log.of("DISK_COMPLETE", operation="WRITE", tgid=os.getpid())
        if write["began"] < one["time_ns"] <= until["time_ns"]
    ]  # fmt: skip
    assert sum(one["bytes"] for one in done) >= PAGE
