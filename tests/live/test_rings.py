# SPDX-License-Identifier: Apache-2.0
"""The perf rings on this kernel, filled by a small program that is run a counted number of times.

The program is put together by hand and run with BPF_PROG_TEST_RUN on a given CPU, so that nothing
else on the machine is touched and every record and failure is known.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collector.bpfsys import (
    BPF_MAP_TYPE_PERF_EVENT_ARRAY,
    BPF_PROG_TYPE_RAW_TRACEPOINT,
    map_create,
    prog_load,
)
from collector.ordered import NO_CPU
from collector.records import RAW_PADDING
from collector.rings import Rings, pages_of, watermark_ns
from collector.sequencer import Sequencer
from collector.syscalls import address, bpf, online_cpus, possible_cpus
from formats.control import Loss, words_view
from formats.errors import KernelError, UsageError

ENTRY = 112
DTYPE = np.dtype(
    {
        "names": ["seq_no", "tv_sec", "tv_usec", "callvalue", "location", "last"],
        "formats": ["=u4"] * 6,
        "offsets": [0, 4, 8, 12, 16, ENTRY - 4],
        "itemsize": ENTRY,
    }
)
PER_RUN = 1024
RECORD = 8 + 4 + ENTRY + RAW_PADDING
PAGE = os.sysconf("SC_PAGESIZE")
_PERF_EVENT_IOC_DISABLE = 0x2401
_BPF_PROG_TEST_RUN, _ON_CPU = 10, 1


def _instruction(code: int, to: int, source: int, offset: int, value: int) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


def program(map_fd: int) -> bytes:
    """for (n = 0; n < ctx[0] && n < PER_RUN; n++) send a record of serial ctx[1] + n; r0: failures.

    r6 ctx, r7 count, r8 n, r9 failures; the record lies at the stack's -120.
    """
    top = -(ENTRY + 8)
    code = [
        _instruction(0xBF, 6, 1, 0, 0),  # r6 = r1
        _instruction(0x79, 7, 6, 0, 0),  # r7 = ctx[0]
        _instruction(0xB7, 8, 0, 0, 0),  # r8 = 0
        _instruction(0xB7, 9, 0, 0, 0),  # r9 = 0
        *(_instruction(0x7A, 10, 0, at, 0) for at in range(top, 0, 8)),  # zero the record
        _instruction(0x62, 10, 0, top + 16, 1),  # location = 1
    ]
    body = [
        _instruction(0x85, 0, 0, 0, 5),  # bpf_ktime_get_ns()
        _instruction(0x63, 10, 0, top + 4, 0),  # its low half
        _instruction(0x77, 0, 0, 0, 32),  # r0 >>= 32
        _instruction(0x63, 10, 0, top + 8, 0),  # and the high one
        _instruction(0x79, 0, 6, 8, 0),  # r0 = ctx[1]
        _instruction(0x0F, 0, 8, 0, 0),  # r0 += r8
        _instruction(0x63, 10, 0, top, 0),  # seq_no
        _instruction(0x63, 10, 0, top + ENTRY - 4, 0),  # last
        _instruction(0xBF, 1, 6, 0, 0),  # r1 = ctx
        _instruction(0x18, 2, 1, 0, map_fd),  # r2 = map
        _instruction(0, 0, 0, 0, 0),
        _instruction(0x18, 3, 0, 0, -1),  # r3 = BPF_F_CURRENT_CPU, 32 bits of ones
        _instruction(0, 0, 0, 0, 0),
        _instruction(0xBF, 4, 10, 0, 0),  # r4 = stack + top
        _instruction(0x07, 4, 0, 0, top),
        _instruction(0xB7, 5, 0, 0, ENTRY + RAW_PADDING),
        _instruction(0x85, 0, 0, 0, 25),  # bpf_perf_event_output()
        _instruction(0x15, 0, 0, 1, 0),  # if it went well, skip
        _instruction(0x07, 9, 0, 0, 1),  # r9 += 1
        _instruction(0x07, 8, 0, 0, 1),  # r8 += 1
    ]
    size = len(body) + 2
    code += [
        _instruction(0x3D, 8, 7, size, 0),  # if r8 >= r7, out
        _instruction(0x35, 8, 0, size - 1, PER_RUN),  # if r8 >= PER_RUN, out
        *body,
        _instruction(0x05, 0, 0, -(size + 1), 0),  # again
        _instruction(0xBF, 0, 9, 0, 0),  # r0 = r9
        _instruction(0x95, 0, 0, 0, 0),
    ]
    return b"".join(code)


class Source:
    """Sends counted records with serials of their own on each CPU."""

    def __init__(self) -> None:
        self.map_fd = map_create(BPF_MAP_TYPE_PERF_EVENT_ARRAY, 4, 4, possible_cpus(), 0, "rings")
        try:
            self._prog_fd = prog_load(BPF_PROG_TYPE_RAW_TRACEPOINT, program(self.map_fd), "rings")
        except KernelError:
            os.close(self.map_fd)
            raise
        self.serials = dict.fromkeys(online_cpus(), 0)
        self.failed = dict.fromkeys(online_cpus(), 0)

    def send(self, cpu: int, count: int) -> int:
        """Make `count` attempts on a CPU; how many the kernel refused."""
        failed = 0
        while count:
            number = min(count, PER_RUN)
            context = struct.pack("=QQ", number, self.serials[cpu] + 1)
            failed += self._run(cpu, context)
            self.serials[cpu] += number
            count -= number
        self.failed[cpu] += failed
        return failed

    def _run(self, cpu: int, context: bytes) -> int:
        buffer = ctypes.create_string_buffer(context, len(context))
        attributes = struct.pack(
            "=IIIIQQIIIIQQIIII", self._prog_fd, 0, 0, 0, 0, 0, 0, 0, len(context), 0,
            address(buffer), 0, _ON_CPU, cpu, 0, 0,
        )  # fmt: skip
        _, after = bpf(_BPF_PROG_TEST_RUN, attributes)
        return int(struct.unpack_from("=I", after, 4)[0])

    def close(self) -> None:
        os.close(self._prog_fd)
        os.close(self.map_fd)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.close()


def serials_of(batches: list[Any], cpu: int) -> list[int]:
    return [int(s) for b in batches if b.cpu == cpu for s in b.entries["seq_no"]]


def times_of(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return entries["tv_sec"].astype(np.int64) | entries["tv_usec"].astype(np.int64) << 32


def test_all_records_of_all_cpus_come_whole(source: Source) -> None:
    with Rings(source.map_fd, DTYPE, 128, PAGE) as rings:
        assert rings.cpus == online_cpus()
        # More than a ring holds, in pieces, so that records lie across its end.
        for _ in range(12):
            before_ns = time.monotonic_ns()
            for cpu in rings.cpus:
                assert source.send(cpu, 1500) == 0
            batches = rings.drain()
            assert [b.cpu for b in batches] == list(rings.cpus)
            for batch in batches:
                last = source.serials[batch.cpu]
                assert batch.entries["seq_no"].tolist() == list(range(last - 1499, last + 1))
                assert np.array_equal(batch.entries["seq_no"], batch.entries["last"])
                times = times_of(batch.entries)
                assert (times > before_ns).all() and (times < batch.read_before_ns).all()
                assert (batch.damaged, batch.reported_lost) == (0, 0)
            assert before_ns < watermark_ns(batches, 0) < time.monotonic_ns()
        assert all(not len(b.entries) for b in rings.drain())
        assert not any(rings.lost().values())


def test_full_ring_loses_and_counts(source: Source) -> None:
    with Rings(source.map_fd, DTYPE, 2, PAGE) as rings:
        cpu = rings.cpus[0]
        failed = source.send(cpu, 500)
        fits = 2 * PAGE // RECORD
        assert fits - 1 <= 500 - failed <= fits
        batches = rings.drain()
        assert serials_of(batches, cpu) == list(range(1, 500 - failed + 1))
        assert source.send(cpu, 1) == 0
        after = rings.drain()
        assert serials_of(after, cpu) == [501]
        # The kernel puts its own record before the first sample that succeeds again.
        assert sum(b.reported_lost for b in after) == failed
        lost = rings.lost()
        if any(lost.values()):  # not before Linux 6.0
            assert lost[cpu] == failed


def test_wait_wakes_at_the_low_water_mark_and_when_told(source: Source) -> None:
    with Rings(source.map_fd, DTYPE, 16, 4 * PAGE) as rings:
        cpu = rings.cpus[-1]
        assert not rings.wait(0)
        source.send(cpu, 2 * PAGE // RECORD)
        assert not rings.wait(0.05)
        source.send(cpu, 4 * PAGE // RECORD)
        assert rings.wait(60)
        rings.drain()
        waker = threading.Thread(target=rings.wake)
        waker.start()
        assert rings.wait(60)
        waker.join()
        assert not rings.wait(0)
        rings.wake()
        assert rings.wait(60)


def test_a_ring_that_died_is_drained_and_comes_back(source: Source) -> None:
    with Rings(source.map_fd, DTYPE, 2, PAGE) as rings:
        rings.refresh()
        cpu = rings.cpus[0]
        refused = source.send(cpu, 100)
        event = rings._rings[cpu].fd
        # As when the CPU goes off: the event no longer runs.
        fcntl.ioctl(event, _PERF_EVENT_IOC_DISABLE, 0)
        rings.refresh()  # reads its time for the last time
        rings.refresh()  # and sees that it stands still
        assert source.send(cpu, 1) == 0
        batches = rings.drain()
        assert serials_of(batches, cpu) == [*range(1, 101 - refused), 101]
        assert len([b for b in batches if b.cpu == cpu]) == 2
        lost = rings.lost()
        if any(lost.values()):
            assert lost[cpu] == refused
        assert not rings.refused


def test_a_cpu_that_is_off_has_no_ring(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = online_cpus()[-1]
    with Rings(source.map_fd, DTYPE, 8, PAGE) as rings:
        source.send(cpu, 10)
        others = tuple(c for c in online_cpus() if c != cpu)
        monkeypatch.setattr("collector.rings.online_cpus", lambda: others)
        rings.refresh()
        assert rings.cpus == others
        assert source.send(cpu, 5) == 5
        assert serials_of(rings.drain(), cpu) == list(range(1, 11))
        monkeypatch.undo()
        rings.refresh()
        assert rings.cpus == online_cpus()
        assert source.send(cpu, 3) == 0
        assert serials_of(rings.drain(), cpu) == [16, 17, 18]


def test_living_rings_survive_a_refresh(source: Source) -> None:
    with Rings(source.map_fd, DTYPE, 8, PAGE) as rings:
        before = {cpu: ring.fd for cpu, ring in rings._rings.items()}
        for _ in range(20):
            rings.refresh()
        assert {cpu: ring.fd for cpu, ring in rings._rings.items()} == before


def test_overload_through_the_sequencer_is_exact(source: Source) -> None:
    sequencer = Sequencer(DTYPE, lambda mono_ns: mono_ns)
    entries = losses = records = 0
    previous = 0
    with Rings(source.map_fd, DTYPE, 8, PAGE) as rings:
        outs = []
        for turn in range(200):
            for cpu in rings.cpus:
                source.send(cpu, 100 + 13 * (turn % 30))
            batches = rings.drain()
            for batch in batches:
                sequencer.push(batch)
            outs.append(sequencer.release(watermark_ns(batches, 1_000_000)))
        outs.append(sequencer.finish(source.serials))
        for out in outs:
            gaps = np.diff(out.seqs, prepend=previous) - 1
            previous = int(out.seqs[-1]) if len(out) else previous
            marks = out.cpus == NO_CPU
            assert (out.entries["location"][marks] == Loss.location).all()
            assert not gaps[~marks].any()
            assert np.array_equal(gaps[marks], words_view(out.entries)[marks, 2])
            losses += int(gaps.sum())
            entries += len(out)
            records += int(np.count_nonzero(~marks))
    failed = sum(source.failed.values())
    assert failed > 0
    assert losses == sequencer.lost == failed
    assert records + failed == sum(source.serials.values())
    assert not sequencer.late
    assert sequencer.read == {c: n - source.failed[c] for c, n in source.serials.items()}
    assert previous == entries + losses


def test_drain_takes_900_000_records_a_second(source: Source) -> None:
    with Rings(source.map_fd, DTYPE, pages_of(4 << 20), 1 << 20) as rings:
        cpu = rings.cpus[0]
        best = 0.0
        for _ in range(10):
            assert source.send(cpu, 30_000) == 0
            start = time.thread_time()
            batches = rings.drain()
            best = max(best, 30_000 / (time.thread_time() - start))
            assert sum(len(b.entries) for b in batches) == 30_000
        assert best > 900_000


def test_close_leaves_nothing_open(source: Source) -> None:
    before = set(os.listdir("/proc/self/fd"))
    rings = Rings(source.map_fd, DTYPE, 8, PAGE)
    kept = [b.entries for b in rings.drain()]
    rings.close()
    rings.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert source.send(online_cpus()[0], 4) == 4
    assert kept is not None


def test_refusals_are_errors_for_people(source: Source) -> None:
    with pytest.raises(UsageError, match="power of two"):
        Rings(source.map_fd, DTYPE, 3, PAGE)
    with pytest.raises(KernelError):
        Rings(source.map_fd, DTYPE, 1 << 24, PAGE)
    assert [pages_of(n) for n in (1, PAGE, 3 * PAGE, 4 << 20)] == [1, 1, 2, (4 << 20) // PAGE]
