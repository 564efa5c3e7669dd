# SPDX-License-Identifier: Apache-2.0
"""The rings on this kernel, filled by a small program that is run a counted number of times.

It goes through the engine as a capture's programs do, and is run with BPF_PROG_TEST_RUN on a given
CPU, so that nothing else on the machine is touched and every record and failure is known.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.linux.bpf import map_lookup_percpu
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.syscalls import address, bpf, online_cpus
from tcpkmon.collector.loader.bytecode import fill_maps
from tcpkmon.collector.loader.compiler import compile_text
from tcpkmon.collector.loader.programs import Loaded, load_code
from tcpkmon.collector.plan import kernel_types
from tcpkmon.collector.plan.engine_config import make_engine
from tcpkmon.collector.plan.probes import Plan
from tcpkmon.collector.plan.schema_sources import read_texts
from tcpkmon.collector.ring import threshold
from tcpkmon.collector.ring.batch import Batch, watermark_ns
from tcpkmon.collector.ring.rings import TRANSPORTS, Rings, pages_of
from tcpkmon.collector.ring.transport import Transport
from tcpkmon.formats.base.control import Loss, words_view
from tcpkmon.formats.base.errors import KernelError, UsageError
from tests.descriptors import descriptors
from tests.unit.test_drain import NO_CPU, Whole, seqs_of

ENTRY = 112
DTYPE = np.dtype(
    {
        "names": ["seq_no", "tv_sec", "tv_usec", "callvalue", "location", "last"],
        "formats": ["=u4"] * 6,
        "offsets": [0, 4, 8, 12, 16, ENTRY - 4],
        "itemsize": ENTRY,
    }
)
PER_RUN = 100
HOLD = 30_000
PAGE = os.sysconf("SC_PAGESIZE")
LARGER = PAGE // 4096
"""A ring has whole pages: on some kernels of arm64 it holds more, at the least."""
LEAST_RATE, WAITING_S = (100_000, 0.15) if "TCPKMON_GUEST" in os.environ else (900_000, 0.1)
"""Records a second; CPU time of 0.2 s of waiting. While others used the host's CPUs, a guest of
arm64 had 400,000 and 0.12 s."""
_BPF_PROG_TEST_RUN, _ON_CPU = 10, 1
PROGRAM = """
static __always_inline u8 *rings_record(struct klogger_cpu *cpu, struct klogger_place *place)
{
    u8 *row = klogger_reserve(cpu, 1, place);
    u64 serial, now;

    if (!row)
        return 0;
    serial = klogger_number(cpu);
    now = bpf_ktime_get_ns();
#pragma unroll
    for (int at = 0; at < KLOGGER_RECORD_SIZE; at += 8)
        *(u64 *)(row + at) = 0;
    *(u32 *)row = serial;
    *(u32 *)(row + 4) = now;
    *(u32 *)(row + 8) = now >> 32;
    *(u32 *)(row + 16) = 1;
    *(u32 *)(row + KLOGGER_RECORD_SIZE - 4) = serial;
    return row;
}

/* Sends as many records as ctx[0] says. */
int rings_send(void *ctx)
{
    struct klogger_cpu *cpu = klogger_this_cpu();
    u64 count = *(volatile u64 *)ctx;

    if (!cpu)
        return 1;
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < %d; i++) {
        struct klogger_place place;

        if (i >= count)
            break;
        asm volatile("" : "+r"(i));
        if (rings_record(cpu, &place))
            klogger_commit(ctx, &cpu->accounts[1], &place);
    }
    return 0;
}

/* Sends one record, and takes milliseconds from its reservation to its commit. */
int rings_hold(void *ctx)
{
    struct klogger_cpu *cpu = klogger_this_cpu();
    struct klogger_place place;

    if (!cpu || !rings_record(cpu, &place))
        return 1;
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < %d; i++) {
        asm volatile("" : "+r"(i));
        bpf_ktime_get_ns();
    }
    klogger_commit(ctx, &cpu->accounts[1], &place);
    return 0;
}
""" % (PER_RUN, HOLD)  # noqa: UP031


class Source:
    """Sends counted records with serials of their own on each CPU."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.row = transport.row_bytes(ENTRY)
        """Bytes of a record in the ring."""
        btf = Btf.from_kernel()
        engine = make_engine(ENTRY, Plan((), {}))
        text = read_texts((), transport.header)
        lines = [kernel_types.make(btf, text), *engine.lines(Plan((), {})), text, PROGRAM]
        image = compile_text("\n".join(lines) + "\n", ["rings_send", "rings_hold"])
        self._image, self._head = image, engine.head
        self._programs: list[int] = []
        self._loaded = Loaded(image, btf, transport=transport)
        self.maps = self._loaded.maps
        try:
            self._send = self._load("rings_send")
        except KernelError:
            self._loaded.close()
            raise
        self.serials = dict.fromkeys(online_cpus(), 0)
        self.failed = dict.fromkeys(online_cpus(), 0)

    def rings(self, pages: int, low_water_bytes: int) -> Rings:
        """The rings that it fills."""
        return Rings(self.maps, DTYPE, pages, low_water_bytes, self.transport)

    def send(self, cpu: int, count: int) -> int:
        """Make `count` attempts on a CPU; how many found no place."""
        before = self._refused(cpu)
        for start in range(0, count, PER_RUN):
            number = min(count - start, PER_RUN)
            assert self._run(self._send, cpu, struct.pack("=Q", number)) == 0
            self.serials[cpu] += number
        failed = self._refused(cpu) - before
        self.failed[cpu] += failed
        return failed

    def _refused(self, cpu: int) -> int:
        """Records without a place, as the ledger has them."""
        size = next(m.value_size for m in self._image.maps if m.name == "klogger_cpus")
        raw = map_lookup_percpu(self.maps["klogger_cpus"], bytes(4), size)
        assert raw is not None
        head = np.ascontiguousarray(raw[:, : self._head.itemsize]).view(self._head)[cpu, 0]
        return int(sum(head["accounts"][1][name] for name in ("ring_full", "no_ring", "other")))

    def hold(self, cpu: int) -> None:
        """Send one record, which is under way for a while. The thread stays on that CPU."""
        os.sched_setaffinity(0, {cpu})
        assert self._run(self._hold, cpu, bytes(8)) == 0
        self.serials[cpu] += 1

    @cached_property
    def _hold(self) -> int:
        """The verifier walks its whole loop, so it is loaded for the test that needs it."""
        return self._load("rings_hold")

    def _load(self, name: str) -> int:
        code = fill_maps(self._image.programs[name], self.maps)
        self._programs.append(load_code("raw", code, name, 0))
        return self._programs[-1]

    def _run(self, program: int, cpu: int, context: bytes) -> int:
        buffer = ctypes.create_string_buffer(context, len(context))
        attributes = struct.pack(
            "=IIIIQQIIIIQQIIII", program, 0, 0, 0, 0, 0, 0, 0, len(context), 0,
            address(buffer), 0, _ON_CPU, cpu, 0, 0,
        )  # fmt: skip
        _, after = bpf(_BPF_PROG_TEST_RUN, attributes)
        return int(struct.unpack_from("=I", after, 4)[0])

    def close(self) -> None:
        for fd in self._programs:
            os.close(fd)
        self._loaded.close()


@pytest.fixture(params=TRANSPORTS)
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    made = Source(TRANSPORTS[request.param])
    yield made
    made.close()


def of_cpu(batches: list[Batch], cpu: int) -> list[Batch]:
    return [batch for batch in batches if batch.cpu == cpu]


def serials_of(batches: list[Any], cpu: int) -> list[int]:
    return [int(s) for b in batches if b.cpu == cpu for s in b.entries["seq_no"]]


def times_of(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return entries["tv_sec"].astype(np.int64) | entries["tv_usec"].astype(np.int64) << 32


def test_all_records_of_all_cpus_come_whole(source: Source) -> None:
    with source.rings(128, PAGE) as rings:
        assert rings.cpus == online_cpus()
        # More than a ring holds, in pieces, so that some go on at its beginning.
        for _ in range(12):
            before_ns = time.monotonic_ns()
            for cpu in rings.cpus:
                assert source.send(cpu, 1500) == 0
            batches = rings.drain()
            assert sorted({b.cpu for b in batches}) == list(rings.cpus)
            for cpu in rings.cpus:
                last = source.serials[cpu]
                assert serials_of(batches, cpu) == list(range(last - 1499, last + 1))
            for batch in batches:
                assert np.array_equal(batch.entries["seq_no"], batch.entries["last"])
                times = times_of(batch.entries)
                assert (times > before_ns).all() and (times < batch.read_before_ns).all()
            assert before_ns < watermark_ns(batches, 0) < time.monotonic_ns()
            rings.free()
        assert all(not len(b.entries) for b in rings.drain())
        assert not any(rings.lost().values())


def test_a_full_ring_loses_and_counts(source: Source) -> None:
    with source.rings(2, PAGE) as rings:
        cpu = rings.cpus[0]
        failed = source.send(cpu, 500 * LARGER)
        fits = (2 * PAGE - 1) // source.row
        assert 500 * LARGER - failed == fits
        batches = rings.drain()
        assert serials_of(batches, cpu) == list(range(1, fits + 1))
        assert source.send(cpu, 1) == 1, "what was read is not free yet"
        assert serials_of(batches, cpu) == list(range(1, fits + 1)), "it was not overwritten"
        rings.free()
        assert source.send(cpu, 1) == 0
        assert serials_of(rings.drain(), cpu) == [500 * LARGER + 2]
        assert rings.lost()[cpu] == source.failed[cpu] == failed + 1


def test_a_record_under_way_holds_up_the_watermark(source: Source) -> None:
    with source.rings(8, PAGE) as rings:
        cpu = rings.cpus[-1]
        ring = rings._rings[cpu]
        seen = 0
        for _ in range(500):
            if seen > 2:
                break
            assert source.send(cpu, 3) == 0
            [*_, last] = of_cpu(rings.drain(), cpu)
            rings.free()
            thread = threading.Thread(target=source.hold, args=(cpu,))
            thread.start()
            while thread.is_alive():
                batches = of_cpu(rings.drain(), cpu)
                rings.free()
                if not ring.held_up:
                    last = batches[-1]
                    continue
                seen += 1
                assert not any(len(batch.entries) for batch in batches)
                assert batches[-1].read_before_ns == last.read_before_ns
                used_s = time.thread_time()
                rings.wait(0.2)
                assert time.thread_time() - used_s < WAITING_S, "and others can run"
            thread.join()
            rings.drain()
            rings.free()
        if not seen and "TCPKMON_GUEST" in os.environ and platform.machine() == "aarch64":
            pytest.skip("the emulator lets a CPU run for longer than the record is under way")
        assert seen


def test_wait_wakes_at_the_low_water_mark_and_when_told(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threshold, "CALM_NS", 10**18)
    with source.rings(16, 4 * PAGE) as rings:
        cpu = rings.cpus[-1]
        assert not rings.wait(0)
        source.send(cpu, 2 * PAGE // source.row)
        assert not rings.wait(0.05)
        source.send(cpu, 4 * PAGE // source.row)
        assert rings.wait(60)
        assert rings.wait(60), "there is still as much to be read"
        rings.drain()
        rings.free()
        assert not rings.wait(0)
        for _ in range(300):  # more than the wake-up event itself has room for
            assert source.send(cpu, 4 * PAGE // source.row) == 0
            assert rings.wait(60)
            rings.drain()
            rings.free()
        waker = threading.Thread(target=rings.wake)
        waker.start()
        assert rings.wait(60)
        waker.join()
        assert not rings.wait(0)
        rings.wake()
        assert rings.wait(60)


def test_the_threshold_of_a_ring_that_fills_slowly_is_half_of_it(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**18
    monkeypatch.setattr(threshold.time, "monotonic_ns", lambda: now_ns)
    rows = 4 * PAGE // source.row
    with source.rings(16, rows * source.row) as rings:
        cpu = rings.cpus[0]
        half = 16 * PAGE // source.row // 2
        # Records, the milliseconds in which they came, and how many wake after that.
        for count, passed_ms, due in (
            (rows, 30, half), (half, 21, half), (half, 19, rows), (rows, 9, rows),
            (rows, 11, half), (half, 380, half), (half, 420, rows), (1, 2, rows), (rows, 150, half),
            (0, 50, rows),
        ):  # fmt: skip
            source.send(cpu, count)
            now_ns += passed_ms * 1_000_000
            rings.drain()
            rings.free()
            assert source.send(cpu, due - 1) == 0
            assert not rings.wait(0)
            assert source.send(cpu, 1) == 0
            assert rings.wait(60)
            rings.drain()
            rings.free()


def test_no_wake_up_for_what_was_read_already(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threshold, "CALM_NS", 10**18)
    with source.rings(16, 4 * PAGE) as rings:
        for cpu in rings.cpus:
            source.send(cpu, 4 * PAGE // source.row)
        assert sum(len(batch.entries) for batch in rings.drain()) >= 4 * PAGE // source.row
        rings.free()
        begun_s = time.monotonic()
        assert not rings.wait(0.1)
        assert time.monotonic() - begun_s >= 0.09
        source.send(rings.cpus[0], 4 * PAGE // source.row)
        assert rings.wait(60)


def test_a_cpu_that_is_off_has_no_ring(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = online_cpus()[-1]
    with source.rings(8, PAGE) as rings:
        source.send(cpu, 10)
        others = tuple(c for c in online_cpus() if c != cpu)
        monkeypatch.setattr("tcpkmon.collector.ring.rings.online_cpus", lambda: others)
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
    with source.rings(8, PAGE) as rings:
        before = {cpu: ring.fd for cpu, ring in rings._rings.items()}
        for _ in range(20):
            rings.refresh()
        assert {cpu: ring.fd for cpu, ring in rings._rings.items()} == before


def test_overload_through_the_sequencer_is_exact(source: Source) -> None:
    sequencer = Whole(DTYPE, lambda: 0)
    entries = losses = records = 0
    previous = 0
    with source.rings(8, PAGE) as rings:
        outs = []
        for turn in range(200 // min(LARGER, 4)):
            for cpu in rings.cpus:
                source.send(cpu, (100 + 13 * (turn % 30)) * LARGER)
            batches = rings.drain()
            for batch in batches:
                sequencer.push(batch)
            outs.append(sequencer.release(watermark_ns(batches, 0)))
            sequencer.settle()
            rings.free()
        outs.append(sequencer.finish(source.serials))
        for out in outs:
            gaps = np.diff(seqs_of(out), prepend=previous) - 1
            previous = int(seqs_of(out)[-1]) if len(out) else previous
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
    with source.rings(pages_of(4 << 20), 1 << 20) as rings:
        cpu = rings.cpus[0]
        best = 0.0
        for _ in range(10):
            assert source.send(cpu, 30_000) == 0
            start = time.thread_time()
            batches = rings.drain()
            assert sum(len(b.entries.copy()) for b in batches) == 30_000
            rings.free()
            best = max(best, 30_000 / (time.thread_time() - start))
        assert best > LEAST_RATE


def test_close_leaves_nothing_open(source: Source) -> None:
    before = descriptors()
    rings = source.rings(8, PAGE)
    cpu = online_cpus()[0]
    assert source.send(cpu, 2) == 0
    kept = rings.drain()
    rings.close()
    rings.close()
    assert source.send(cpu, 4) == 4
    assert serials_of(kept, cpu) == [1, 2], "what was drained stays as long as it is looked at"
    del kept
    assert descriptors() == before


def test_refusals_are_errors_for_people(source: Source) -> None:
    with pytest.raises(UsageError, match="power of two"):
        source.rings(3, PAGE)
    before = descriptors()
    with pytest.raises(UsageError, match=f"{16 * PAGE} MiB"):
        source.rings(1 << 24, PAGE)
    assert descriptors() == before
    assert [pages_of(n) for n in (1, PAGE, 3 * PAGE, 4 << 20)] == [1, 1, 2, (4 << 20) // PAGE]
