# SPDX-License-Identifier: Apache-2.0
"""Writer and spool: what reaches the file adds up, whatever fails and whenever."""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_calls import SHORT, FaultyCalls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_direct_io import Watched
from test_drain import CLASSIC, FULL, make_rows, make_sequencer

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, ROWS
from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.sequencer.sequencer import Sequencer
from tcpkmon.collector.writer.codec import ALL, File
from tcpkmon.collector.writer.direct_io import Pieces, alignment
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.psc_codec import PscCodec
from tcpkmon.collector.writer.spool import BEHIND, CACHED_S, CAUGHT_UP, GATHER_BYTES, Spool
from tcpkmon.collector.writer.tape import Account, Finish, Item
from tcpkmon.collector.writer.writer import Writer
from tcpkmon.collector.writer.written import RETRY_NS, Written
from tcpkmon.formats.base.control import (
    Checkpoint,
    Control,
    End,
    EndReason,
    Loss,
    LossCause,
    Mark,
    is_control,
)
from tcpkmon.formats.base.facts import decode


def psc_writer(
    sink: FileSink,
    dtype: np.dtype[Any],
    offset_ns: Callable[[], int],
    written: Written,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> Writer:
    codec = PscCodec()
    codec.unit, codec._dtype, codec._offset_ns = dtype.itemsize, dtype, offset_ns
    codec._given_bytes, codec.order = None, Sequencer(dtype, offset_ns)
    writer = Writer(codec, written, now_ns=now_ns)
    writer.files[ALL] = File(ALL, sink)
    return writer


# The word columns, which a capture's entries have too, so that numpy copies them.
DTYPE = FULL


class Case:
    """A writer to a file whose calls may fail, and a sequencer that feeds it."""

    def __init__(self, path: Path, calls: FaultyCalls | None = None) -> None:
        self.path = path
        self.calls = calls or FaultyCalls()
        self.now_ns = 10**12
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.sink = FileSink(fd, DTYPE.itemsize, self.calls, reserve_bytes=0)
        self.writer = psc_writer(
            self.sink, DTYPE, lambda: 0, Written(), lambda: self.now_ns
        )
        self.sequencer = make_sequencer(DTYPE)
        self.writer._codec.order = self.sequencer
        self.serials = {0: 0, 1: 0}
        self.sent: Counter[tuple[int, int]] = Counter()
        self.kernel_lost = 0

    def batch(self, count: int, lose: int = 0) -> Ordered:
        """The next batch: `count` records on each CPU, after a gap of `lose` serials."""
        for cpu, location in ((0, 3), (1, 19)):
            start = self.serials[cpu] + lose + 1
            serials = np.arange(start, start + count)
            rows = make_rows(DTYPE, cpu, serials, serials * 10, location)
            self.sequencer.push(Batch(cpu, rows, 0))
            self.serials[cpu] = start + count - 1
            self.sent[cpu, location] += count
            self.kernel_lost += lose
        return self.sequencer.release(2**62)

    def later(self) -> None:
        self.now_ns += RETRY_NS

    def check(self) -> list[Control]:
        """The file is whole, its gaps stand before LOSS entries, and all records are accounted
        for; its control entries."""
        written = self.writer.written
        rows = np.frombuffer(self.path.read_bytes(), DTYPE)
        assert len(rows) == written.entries
        entries: list[Control] = []
        previous = 0
        found: Counter[tuple[int, int]] = Counter()
        words = np.frombuffer(self.path.read_bytes(), np.uint32)
        words = words.reshape(-1, DTYPE.itemsize // 4)[:, 6:16]
        for row, word in zip(rows, words, strict=True):
            assert row["seq_no"] == row["seq"] & 0xFFFFFFFF
            gap = int(row["seq"]) - previous - 1
            previous = int(row["seq"])
            if not is_control(row["location"]):
                assert gap == 0
                found[int(row["cpu"]), int(row["location"])] += 1
                continue
            entry = decode(row["callvalue"], row["location"], word.tolist())
            assert gap == (entry.count if isinstance(entry, Loss) else 0)
            if isinstance(entry, (Checkpoint, End)):
                assert entry.entries + entry.lost == previous - 1
            entries.append(entry)
        assert previous == written.last_seq
        assert found == written.in_file
        dropped = written.queue_full + written.disk_full + written.write_error
        assert found + dropped == self.sent
        return entries


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path / "file")


class Bare(Books):
    """A ledger of one entry."""

    def group(self, written: Written) -> list[Control]:
        return [Mark(0, "group")]


checkpoint: list[Item] = [Account(Bare(np.zeros((0, ROWS), ACCOUNT), np.zeros(0, np.uint64)))]
end: list[Item] = [Finish(EndReason(0))]


def test_writes_records_and_control_in_one_sequence(case: Case) -> None:
    case.writer.write(case.batch(3))
    assert case.writer.control(checkpoint, 5)
    case.writer.write(case.batch(2, lose=4))
    assert case.writer.control(end, 6)
    entries = case.check()
    kinds = [type(entry).__name__ for entry in entries]
    assert kinds == ["Checkpoint", "Mark", "Loss", "Loss", "End"]
    assert entries[-1] == End(0, 14, 8, 1)
    assert case.writer.written.last_seq == 14 + 8 + 1
    assert case.calls.counts["write"] == 4


@pytest.mark.parametrize(
    "code,cause",
    [(errno.ENOSPC, LossCause.DISK_FULL), (errno.EIO, LossCause.WRITE_ERROR)],
)
def test_what_was_dropped_is_counted_and_said(case: Case, code: int, cause: LossCause) -> None:
    case.writer.write(case.batch(5))
    case.calls.fail("write", code)
    case.writer.write(case.batch(5, lose=2))
    tried = case.calls.counts["write"]
    case.writer.write(case.batch(5))
    assert case.calls.counts["write"] == tried, "tried again too soon"
    assert case.writer.written.error is not None
    case.later()
    case.writer.write(case.batch(5))
    assert case.calls.counts["write"] == tried + 1
    case.calls.heal()
    case.later()
    case.writer.write(case.batch(5))
    entries = case.check()
    # 30 records, 2 entries that told of 4 lost ones, and those 4.
    assert entries == [Loss(0xFFFF, 0, 36, cause)]
    assert case.writer.written.dropped(cause) == {(0, 3): 15, (1, 19): 15}
    assert case.writer.written.error is None


def test_a_part_of_a_batch_is_kept(case: Case) -> None:
    case.calls.limit_bytes = 7 * DTYPE.itemsize + 13
    case.writer.write(case.batch(10, lose=1))
    assert case.writer.written.entries == 7
    case.calls.heal()
    case.later()
    assert case.writer.control(end, 5)
    entries = case.check()
    assert isinstance(entries[-2], Loss) and entries[-2].cause == LossCause.DISK_FULL
    assert sum(e.count for e in entries if isinstance(e, Loss)) == case.writer.written.lost
    assert case.writer.written.disk_full.total() == 20 - case.writer.written.in_file.total()


def test_control_entries_come_first_when_there_is_room_again(case: Case) -> None:
    case.calls.fail("write", errno.ENOSPC)
    case.writer.write(case.batch(5))
    assert not case.writer.control(checkpoint, 5)
    assert case.writer.written.refused > 0
    case.calls.heal()
    # No waiting for the next time to try.
    assert case.writer.control(checkpoint, 6)
    case.writer.write(case.batch(5))
    kinds = [type(entry).__name__ for entry in case.check()]
    assert kinds == ["Loss", "Checkpoint", "Mark"]
    assert case.writer.written.checkpoints == 1


def test_a_refused_control_entry_holds_up_no_records(case: Case) -> None:
    case.calls.fail("write", errno.EIO, 1)
    assert not case.writer.control(checkpoint, 5)
    case.writer.write(case.batch(5))
    assert case.check() == []
    assert case.writer.written.in_file.total() == 10


_Step = st.tuples(
    st.sampled_from(["records", "records", "control", "later", "skip", "fail", "limit", "heal"]),
    st.integers(1, 40),
)


@given(st.lists(_Step, max_size=40))
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_course_adds_up(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    case = Case(path)
    for what, number in steps:
        if what == "records":
            case.writer.write(case.batch(number, lose=number % 4))
        elif what == "control":
            case.writer.control(checkpoint, 5)
        elif what == "later":
            case.later()
        elif what == "skip":
            ordered = case.batch(number)
            case.writer.skip(LossCause.QUEUE_FULL, ordered.span, ordered.counts())
        elif what == "fail":
            codes = [errno.ENOSPC, errno.EIO, errno.EINTR, SHORT, errno.EDQUOT]
            case.calls.fail("write", codes[number % 5], 1 + number // 20)
        elif what == "limit":
            case.calls.limit_bytes = case.sink.end_bytes + 37 * number
        else:
            case.calls.heal()
        case.check()
    case.calls.heal()
    case.later()
    assert case.writer.control(end, 6)
    assert isinstance(case.check()[-1], End)
    case.writer.close()


class Gate:
    """Holds up the write calls until it is opened."""

    def __init__(self, calls: FaultyCalls) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self._real = calls.write
        calls.write = self  # type: ignore[method-assign]  # an instance's own

    def __call__(self, fd: int, data: Any) -> int:
        self.reached.set()
        assert self.open.wait(120)
        return int(self._real(fd, data))


def test_spool_writes_what_is_put_and_closes(case: Case) -> None:
    spool = Spool(case.writer)
    spool.start()
    for _ in range(20):
        assert spool.put(case.batch(100, lose=1))
        assert spool.put_control(checkpoint, 5, sync=True)
    assert spool.put_control(end, 6, reserved=True)
    assert spool.close(120)
    entries = case.check()
    assert entries[-1] == End(0, 4080, 40, 20)
    assert case.calls.counts["fsync"] == 21
    assert case.calls.counts["close"] == 1
    assert spool._bytes == 0


def test_full_queue_drops_and_counts_in_its_place(case: Case) -> None:
    gate = Gate(case.calls)
    size = 200 * DTYPE.itemsize
    spool = Spool(case.writer, limit_bytes=3 * size)
    spool.start()
    assert spool.put(case.batch(100))
    spool.flush()
    assert gate.reached.wait(120)
    assert spool.put(case.batch(100))
    assert spool.put(case.batch(100))
    assert not spool.put(case.batch(100))
    assert not spool.put(case.batch(100, lose=5))
    assert not spool.put_control(checkpoint, 5)
    assert spool.put_control(checkpoint, 5, reserved=True)
    assert not spool.put(case.batch(100))
    gate.open.set()
    assert spool.close(120)
    entries = case.check()
    assert case.writer.written.queue_full == {(0, 3): 300, (1, 19): 300}
    first, *_ = entries
    assert first == Loss(0xFFFF, 0, 412, LossCause.QUEUE_FULL)
    assert [type(e).__name__ for e in entries] == ["Loss", "Checkpoint", "Mark"]


def test_a_batch_larger_than_the_queue_is_taken_when_it_is_empty(case: Case) -> None:
    spool = Spool(case.writer, limit_bytes=1000)
    assert spool.put(case.batch(1000))
    assert not spool.put(case.batch(1))
    spool.start()
    assert spool.close(120)
    assert case.writer.written.in_file.total() == 2000
    case.check()


def test_a_full_queue_counts_entries_of_the_classic_columns(case: Case) -> None:
    """They have no column `serial`."""
    sequencer = make_sequencer(CLASSIC)
    spool = Spool(case.writer, limit_bytes=1)
    sequencer.push(Batch(0, make_rows(CLASSIC, 0, [1, 2], [10, 20]), 0))
    put = [spool.put(sequencer.release(ns)) for ns in (10, 20)]
    assert put == [True, False]


def test_close_gives_up_on_a_stuck_disk(case: Case) -> None:
    gate = Gate(case.calls)
    spool = Spool(case.writer)
    spool.start()
    spool.put(case.batch(1))
    assert not spool.close(0.05)
    gate.open.set()
    assert spool.close(120)


def test_a_reader_that_went_away_is_told_to_who_puts(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    sink = FileSink(writer, DTYPE.itemsize)
    spool = Spool(psc_writer(sink, DTYPE, lambda: 0, Written()))
    case = Case(tmp_path / "unused")
    os.close(reader)
    spool.start()
    spool.put(case.batch(1))
    with pytest.raises(BrokenPipeError):
        spool.close(120)
    with pytest.raises(BrokenPipeError):
        spool.put(case.batch(1))


def test_errors_of_sync_are_kept(case: Case) -> None:
    case.calls.fail("fsync", errno.EIO, 1)
    spool = Spool(case.writer)
    spool.start()
    spool.put_control(checkpoint, 5, sync=True)
    assert spool.close(120)
    assert case.writer.written.sync_error is not None


WAIT_S = 120


class Counted:
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

    def write(self, *batches: Counted, cached: bool) -> None:
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
        spool.put(Counted(nbytes))
    spool.put_control(checkpoint, 5)
    spool.put(Counted(3 * GATHER_BYTES))
    spool.put(Counted(8))
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
    spool.put(Counted(8))
    spool.put(Counted(16))
    time.sleep(0.05)
    assert not writer.calls
    spool.flush()
    assert next_call() == [8, 16]
    # Much is not kept waiting, nor are control entries, nor the end.
    spool.put(Counted(8))
    time.sleep(0.05)
    spool.put(Counted(GATHER_BYTES - 8))
    assert next_call() == [8, GATHER_BYTES - 8]
    spool.put(Counted(8))
    spool.put_control(checkpoint, 5)
    assert next_call() in ([8], [])
    spool.put(Counted(8))
    assert spool.close(WAIT_S)
    assert sum(map(sum, (sizes for sizes, _ in writer.calls))) == GATHER_BYTES + 40


def test_no_news_is_missed() -> None:
    """Whatever the thread is about when they come."""
    writer = Slow()
    writer.may.release(1 << 20)
    spool = Spool(writer)
    spool.start()
    for number in range(1, 3000):
        spool.put(Counted(8))
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
        assert spool.put(Counted(step))
    # The first one was taken when not all of them were there, perhaps.
    assert write(2)[1]
    for _ in range(total):
        assert spool.put(Counted(step))
    # All that waits, down to the last one: the time is not over.
    assert all(write(2 * total - 2))
    clock.now_s += CACHED_S
    nearly = limit // CAUGHT_UP // step
    for _ in range(nearly + 3):
        spool.put(Counted(step))
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
