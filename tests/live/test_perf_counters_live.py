# SPDX-License-Identifier: Apache-2.0
"""Counters read by programs in the kernel, against what this process causes."""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.perf_names import SOFTWARE, table
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.loader.compiler import Image, compile_text
from tcpkmon.collector.loader.perf_counters import Bound, OpenCounters, bind, c_text, list_counters
from tcpkmon.collector.loader.programs import Loaded, ProgramSpec
from tcpkmon.formats.schema import parse
from tests.descriptors import descriptors

KINDS = ("raw", "btf", "fentry", "kprobe")
SAMPLES = 64
NO_COUNTER = (1 << 64) - 1
SOFTWARE_NAMES = [c.name for c in table().values() if c.type == SOFTWARE]
HEAD = "#define __always_inline inline __attribute__((always_inline))\n"
SAMPLING = """
BPF_ARRAY(samples, u64, 64);
BPF_ARRAY(taken, u64, 1);
BPF_ARRAY(only_cpu, u32, 1);
BPF_ARRAY(which, u64, 1);

static __always_inline int keep(u64 value)
{
    u32 zero = 0, where;
    u64 *count = taken.lookup(&zero);

    if (!count)
        return 0;
    where = __sync_fetch_and_add(count, 1);
    samples.update(&where, &value);
    return 0;
}

int sample(void *ctx)
{
    u32 zero = 0;
    u64 *counter = which.lookup(&zero);

    if (!counter || bpf_get_current_pid_tgid() >> 32 != MY_PID)
        return 0;
    return keep(READ_IT);
}

int switches(void *ctx)
{
    u32 zero = 0;
    u32 *cpu = only_cpu.lookup(&zero);

    if (!cpu || *cpu != bpf_get_smp_processor_id())
        return 0;
    return keep(klogger_get_context_switches_ll());
}
"""


@dataclass
class Sampler:
    """A program that keeps the counter's value each time this process calls listen()."""

    loaded: Loaded
    bound: tuple[Bound, ...]

    def attach(self, function: str, kind: str, target: str) -> None:
        self.loaded.load([ProgramSpec(function, kind, target, required=True)])
        self.loaded.attach()

    def choose(self, name: str, kind: str = "raw", target: str = "inet_sock_set_state") -> None:
        number = SOFTWARE_NAMES.index(name) + 1
        bpf.map_update(self.loaded.maps["which"], bytes(4), struct.pack("=Q", number))
        self.attach("sample", kind, target)

    def values(self) -> list[int]:
        taken = self._read("taken", 0)
        return [self._read("samples", n) for n in range(min(taken, SAMPLES))]

    def take(self) -> int:
        before = self._read("taken", 0)
        with socket.socket() as listener:
            listener.listen()
        # A listening socket changes its state twice; the first is the sample.
        assert self._read("taken", 0) > before
        value = self._read("samples", before)
        bpf.map_update(self.loaded.maps["taken"], bytes(4), bytes(8))
        return value

    def _read(self, name: str, index: int) -> int:
        raw = bpf.map_lookup(self.loaded.maps[name], struct.pack("=I", index), 8)
        assert raw is not None
        return int(struct.unpack("=Q", raw)[0])


def compiled(read: str) -> tuple[tuple[Bound, ...], Image]:
    """All software counters bound, from counter1 on, and `read` as the sample."""
    names = " ".join(f"counter{n} {name};" for n, name in enumerate(SOFTWARE_NAMES, 1))
    bound = bind(parse(f"arch any {{ {names} }}").arches)
    text = HEAD + c_text(bound) + SAMPLING.replace("READ_IT", read)
    flags = [f"-DMY_PID={os.getpid()}"]
    return bound, compile_text(text, ["sample", "switches"], cache=False, flags=flags)


@pytest.fixture(scope="module")
def by_number() -> tuple[tuple[Bound, ...], Image]:
    return compiled("klogger_get_counter_ll(*counter)")


@pytest.fixture
def sampler(by_number: tuple[tuple[Bound, ...], Image], btf: Btf) -> Iterator[Sampler]:
    bound, image = by_number
    with Loaded(image, btf) as loaded:
        yield Sampler(loaded, bound)


@contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def touch_pages(count: int) -> None:
    """So many page faults in user mode."""
    with mmap.mmap(-1, count * mmap.PAGESIZE) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE] = 1


def have_pages_touched(count: int) -> None:
    """So many page faults in the kernel."""
    with mmap.mmap(-1, count * mmap.PAGESIZE) as pages, open("/dev/zero", "rb", 0) as zero:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        assert zero.readinto(pages) == len(pages)


def test_software_counters_are_everywhere() -> None:
    listed = {one.counter.name: one for one in list_counters()}
    assert listed.keys() == table().keys()
    for name in SOFTWARE_NAMES:
        assert listed[name].why_not == "", name
    for one in listed.values():
        assert one.why_not == "" or "its CPU has none" in one.why_not


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_program_may_read(sampler: Sampler, btf: Btf, kind: str) -> None:
    target = "inet_sock_set_state" if kind in {"raw", "btf"} else "inet_csk_listen_start"
    if why := Probing(btf).why_not(kind, target):
        pytest.skip(why)
    sampler.choose("cpu_clock", kind, target)
    assert sampler.take() == NO_COUNTER, "not open yet"
    with OpenCounters(sampler.loaded.maps, sampler.bound), on_cpu(0):
        first, second = sampler.take(), sampler.take()
        assert 0 < first < second < NO_COUNTER
    assert sampler.take() == NO_COUNTER, "closed again"


@pytest.mark.parametrize("kind", ["raw", "btf"])
def test_context_switches_are_exact(sampler: Sampler, kind: str) -> None:
    with OpenCounters(sampler.loaded.maps, sampler.bound), on_cpu(0):
        sampler.attach("switches", kind, "sched_switch")
        while len(sampler.values()) < SAMPLES:
            time.sleep(0.001)  # a switch away and one back
        values = sampler.values()
    assert {after - before for before, after in itertools.pairwise(values)} == {1}


@pytest.mark.parametrize(
    ("name", "cause", "other"),
    [
        ("page_faults", touch_pages, None),
        ("minor_faults", have_pages_touched, None),
        ("page_faults_user", touch_pages, have_pages_touched),
        ("page_faults_os", have_pages_touched, touch_pages),
    ],
)
def test_page_faults_are_counted(
    sampler: Sampler, name: str, cause: Callable[[int], None], other: Callable[[int], None] | None
) -> None:
    count = 2000
    sampler.choose(name)
    with OpenCounters(sampler.loaded.maps, sampler.bound), on_cpu(0):
        before = sampler.take()
        cause(count)
        assert sampler.take() - before >= count
        if other is None:
            return
        # Others use this CPU too: some round will be a quiet one.
        for _ in range(50):
            before = sampler.take()
            other(count)
            if sampler.take() - before < count:
                return
        pytest.fail("it counts the other level too")


def test_cpus_come_and_go(sampler: Sampler) -> None:
    cpus = online_cpus()
    if len(cpus) < 2:
        pytest.skip("there is one CPU only")
    here, there = cpus[:2]
    sampler.choose("cpu_clock")
    before = descriptors()

    def readable() -> set[int]:
        found = set()
        for cpu in (here, there):
            with on_cpu(cpu):
                if sampler.take() != NO_COUNTER:
                    found.add(cpu)
        return found

    with OpenCounters(sampler.loaded.maps, sampler.bound, [here]) as counters:
        assert readable() == {here}
        counters.refresh([here, there])
        assert readable() == {here, there}
        counters.refresh([there])
        assert readable() == {there}
        counters.refresh()
        assert readable() == {here, there}
        assert counters.refused == {}
    assert readable() == set()
    assert descriptors() == before
