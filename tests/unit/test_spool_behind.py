# SPDX-License-Identifier: Apache-2.0
"""The spool and slow disks: what waits is written together, by the page cache if it is much."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_direct_io import Watched
from test_spool import DTYPE, Case, checkpoint

from tcpkmon.collector.writer.direct_io import Pieces, alignment
from tcpkmon.collector.writer.spool import BEHIND, CACHED_S, CAUGHT_UP, GATHER_BYTES, Spool
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import LossCause

WAIT_S = 120


class Batch:
    """A batch that is only counted."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.span = 0

    def __len__(self) -> int:
        return 1

    def counts(self) -> Counter[tuple[int, int]]:
        return Counter({(0, 1): 1})


class Slow:
    """A writer that writes when it is told to, and notes what it was given."""

    def __init__(self) -> None:
        self.written = Written()
        self.calls: list[tuple[list[int], bool]] = []
        self.may = threading.Semaphore(0)
        self.done = threading.Semaphore(0)

    def write(self, *batches: Batch, cached: bool) -> None:
        assert self.may.acquire(timeout=WAIT_S)
        self.calls.append(([batch.nbytes for batch in batches], cached))
        self.done.release()

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Any]) -> None:
        self.written.dropped(cause).update(counts)

    def control(self, items: Any, mono_ns: int, *, reserved: bool) -> bool:
        self.calls.append(([], False))
        return True

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_what_waits_is_written_together_but_not_across_control_entries() -> None:
    writer = Slow()
    spool = Spool(writer)
    quarter = GATHER_BYTES // 4
    for nbytes in (quarter, quarter, quarter, quarter, 8, quarter):
        spool.put(Batch(nbytes))
    spool.put_control(checkpoint, 5)
    spool.put(Batch(3 * GATHER_BYTES))
    spool.put(Batch(8))
    writer.may.release(100)
    spool.start()
    assert spool.close(WAIT_S)
    assert [sizes for sizes, _ in writer.calls] == [
        [quarter] * 4, [8, quarter], [], [3 * GATHER_BYTES], [8],
    ]  # fmt: skip
    assert spool._bytes == 0


def test_batches_wait_until_they_are_many_or_all() -> None:
    writer = Slow()
    writer.may.release(100)
    spool = Spool(writer)
    spool.start()

    def next_call() -> list[int]:
        assert writer.done.acquire(timeout=WAIT_S)
        return writer.calls[-1][0]

    spool.flush()
    spool.put(Batch(8))
    spool.put(Batch(16))
    time.sleep(0.05)
    assert not writer.calls
    spool.flush()
    assert next_call() == [8, 16]
    # Much is not kept waiting, nor are control entries, nor the end.
    spool.put(Batch(8))
    time.sleep(0.05)
    spool.put(Batch(GATHER_BYTES - 8))
    assert next_call() == [8, GATHER_BYTES - 8]
    spool.put(Batch(8))
    spool.put_control(checkpoint, 5)
    assert next_call() in ([8], [])
    spool.put(Batch(8))
    assert spool.close(WAIT_S)
    assert sum(map(sum, (sizes for sizes, _ in writer.calls))) == GATHER_BYTES + 40


def test_no_news_is_missed() -> None:
    """Whatever the thread is about when they come."""
    writer = Slow()
    writer.may.release(1 << 20)
    spool = Spool(writer)
    spool.start()
    for number in range(1, 3000):
        spool.put(Batch(8))
        spool.flush()
        if number % 7 == 0:
            time.sleep(0)
        if number % 3 == 0:
            while spool._bytes:
                time.sleep(0)
    assert spool.close(WAIT_S)
    assert sum(len(sizes) for sizes, _ in writer.calls) == 2999


def test_the_cache_takes_over_when_much_waits_and_until_little_does() -> None:
    limit = 64 * GATHER_BYTES
    writer, clock = Slow(), Clock()
    spool = Spool(writer, limit, now_s=clock)
    spool.start()
    step = GATHER_BYTES

    def write(count: int) -> list[bool]:
        for _ in range(count):
            writer.may.release()
            assert writer.done.acquire(timeout=WAIT_S)
        return [cached for _, cached in writer.calls[-count:]]

    total = limit // BEHIND // step + 4
    for _ in range(total):
        assert spool.put(Batch(step))
    # The first one was taken when not all of them were there, perhaps.
    assert write(2)[1]
    for _ in range(total):
        assert spool.put(Batch(step))
    # All that waits, down to the last one: the time is not over.
    assert all(write(2 * total - 2))
    clock.now_s += CACHED_S
    nearly = limit // CAUGHT_UP // step
    for _ in range(nearly + 3):
        spool.put(Batch(step))
    seen = write(nearly + 3)
    assert not any(seen[-nearly + 1 :])
    assert spool.close(WAIT_S)


class SlowCalls(Watched):
    """A disk on which each direct write takes long."""

    def __init__(self) -> None:
        super().__init__()
        quick = self.write

        def write(fd: int, data: memoryview) -> int:
            before = len(self.direct)
            count = quick(fd, data)
            if len(self.direct) > before:
                time.sleep(0.05)
            return count

        self.write = write  # type: ignore[method-assign]  # an instance's own


@pytest.mark.flaky(reruns=2)  # where others fill the cache, the kernel makes writers wait
def test_a_slow_disk_loses_nothing_that_the_cache_takes(tmp_path: Path) -> None:
    """By direct writes alone, twice as much would wait as the queue has room for."""
    calls = SlowCalls()
    case = Case(tmp_path / "file", calls)
    with case.path.open() as stream:
        if alignment(stream.fileno()) == (0, 0):
            pytest.skip("no direct writes on the file system of temporary files")
    spool = Spool(case.writer, limit_bytes=16 << 20)
    spool.start()
    total = 0
    while total < 64 << 20:
        ordered = case.batch(4000)
        total += ordered.nbytes
        assert spool.put(ordered)
        time.sleep(0.005)
    assert spool.close(WAIT_S)
    assert 0 < len(calls.direct) < 16
    assert sum(calls.cached) > total / 2
    assert case.check() == []


def test_records_lie_where_they_can_be_written_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind control entries, and behind what was dropped."""
    calls = Watched()
    case = Case(tmp_path / "file", calls)
    if alignment(case.sink._fd) == (0, 0):
        pytest.skip("no direct writes on the file system of temporary files")
    monkeypatch.setattr(Pieces, "copy", None)
    for number in range(1, 4):
        case.writer.write(case.batch(5000, lose=number))
        assert len(calls.direct) == 2 * number - 1
        assert case.writer.control(checkpoint, 5)
        dropped = case.batch(5000 + number)
        case.writer.skip(LossCause.QUEUE_FULL, dropped.span, dropped.counts())
        assert case.writer.control(checkpoint, 6)
        case.writer.control([], 7)
        small = case.batch(1)
        case.writer.write(small)
        case.writer.write(case.batch(4000 + number))
        assert len(calls.direct) == 2 * number
    case.check()


def test_nothing_of_what_was_written_is_held(tmp_path: Path) -> None:
    """Its memory may be used again, also when nothing more comes."""
    case = Case(tmp_path / "file")
    spool = Spool(case.writer)
    spool.start()
    gone = threading.Semaphore(0)
    for _ in range(3):
        ordered = case.batch(5000)
        weakref.finalize(ordered.entries, gone.release)
        spool.put(ordered)
        spool.flush()
        del ordered
        assert gone.acquire(timeout=WAIT_S)
    assert spool.close(WAIT_S)
    case.check()


def test_several_batches_fail_as_one_would(tmp_path: Path) -> None:
    """What stands in the file, what was lost and their numbers add up."""
    for number in range(1, 40):
        case = Case(tmp_path / str(number))
        case.writer.write(case.batch(3))
        room = 3 * number // 2
        case.calls.limit_bytes = case.sink.end_bytes + DTYPE.itemsize * room + number
        case.writer.write(case.batch(5, lose=1), case.batch(7), case.batch(0), case.batch(9))
        case.check()
        # 42 records, and 2 LOSS entries.
        assert case.writer.written.entries == 6 + min(room, 44)
        case.writer.write(case.batch(1), case.batch(2))
        case.calls.heal()
        case.later()
        case.writer.write(case.batch(4), case.batch(4, lose=2))
        case.check()
