# SPDX-License-Identifier: Apache-2.0
"""From `arch` blocks to bound counters and C text; what needs the kernel is tested live."""

from __future__ import annotations

import errno
import os
import struct
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tcpkmon.collector.linux.perf_names import CACHE, HARDWARE, RAW, SOFTWARE, find_counter, table
from tcpkmon.collector.loader import perf_counters
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.perf_counters import Bound, OpenCounters, bind, c_text
from tcpkmon.collector.loader.program import Missed
from tcpkmon.collector.plan.probes import Chosen
from tcpkmon.formats.base.errors import KernelError, PrivilegeError
from tcpkmon.formats.schema import parse
from tcpkmon.formats.schema.model import Arch
from tests.descriptors import descriptors

TABLE_2 = [
    name + level
    for name in ("dtlb_miss", "itlb_miss", "l1_cache_misses", "l2_cache_misses")
    for level in ("", "_os", "_user")
]


@pytest.fixture
def rich_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has every counter."""
    monkeypatch.setattr(perf_counters, "why_not", lambda counter: "")


def arches(text: str) -> tuple[Arch, ...]:
    return parse(text, "s.conf").arches


def names(bound: tuple[Bound, ...]) -> dict[int, str]:
    return {one.number: one.counter.name for one in bound}


def test_names_can_stand_in_a_schema_and_in_c() -> None:
    for name, counter in table().items():
        assert name.isidentifier() and name == name.lower() == counter.name
        assert counter.doc.endswith(".")
        assert not (counter.exclude_user and counter.exclude_kernel)
        text = f"arch any {{ counter1 {name}; }}"
        assert arches(text)[0].counters == (("counter1", name),)


def test_table_2_is_there() -> None:
    for name in TABLE_2:
        counter = table()[name]
        assert counter.hardware
        assert counter.exclude_user is name.endswith("_os")
        assert counter.exclude_kernel is name.endswith("_user")


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("task_clock", SOFTWARE, 1),
        ("cgroup_switches", SOFTWARE, 11),
        ("cache_misses_user", HARDWARE, 3),
        ("l2_cache_misses", HARDWARE, 3),
        ("l1d_loads", CACHE, 0),
        ("l1_cache_misses", CACHE, 0x10000),
        ("dtlb_store_misses", CACHE, 0x10103),
        ("node_prefetches", CACHE, 0x206),
        ("raw_1c2", RAW, 0x1C2),
        ("raw_ffffffffffffffff_os", RAW, (1 << 64) - 1),
    ],
)
def test_numbers_are_the_kernels(name: str, kind: int, config: int) -> None:
    counter = find_counter(name)
    assert counter is not None
    assert (counter.type, counter.config) == (kind, config)
    head = struct.unpack("=IIQQQQQ", perf_counters._attributes(counter)[:48])
    exclude = (name.endswith("_os") << 4) | (name.endswith("_user") << 5)
    assert head == (kind, 112, config, 0, 0, 3, exclude | (counter.hardware << 2))


@pytest.mark.parametrize("name", ["raw_", "raw_xyz", "raw_11112222333344445", "RAW_1", "cycle"])
def test_no_such_counter(name: str) -> None:
    assert find_counter(name) is None


@pytest.mark.usefixtures("rich_machine")
def test_which_blocks_count_on_which_machine() -> None:
    text = """
    arch any { counter1 page_faults; counter4 task_clock; }
    arch PentiumIV { counter1 l2_cache_misses_user; counter2 dtlb_miss; }
    arch x86_64 { counter2 cycles; counter10 raw_c2; }
    arch arm64 { counter1 branches; }
    """
    x86 = {1: "l2_cache_misses_user", 2: "cycles", 4: "task_clock", 10: "raw_c2"}
    assert names(bind(arches(text), "x86_64")) == x86
    assert names(bind(arches(text), "arm64")) == {1: "branches", 4: "task_clock"}
    assert names(bind(arches(text), "riscv64")) == {1: "page_faults", 4: "task_clock"}
    assert bind((), "x86_64") == ()
    assert bind(arches("arch arm64 { counter1 cycles; }"), "x86_64") == ()


def refuse(monkeypatch: pytest.MonkeyPatch, code: int, kinds: set[int]) -> None:
    def open_(counter: perf_counters.Counter, cpu: int) -> int:
        if counter.type in kinds:
            raise OSError(code, os.strerror(code))
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(perf_counters, "_open", open_)


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOENT, {HARDWARE, CACHE})
    text = "arch any { counter1 l2_cache_misses_user; counter2 page_faults; counter3 itlb_miss; }"
    with pytest.raises(KernelError) as caught:
        bind(arches(text))
    assert "lacks the counter l2_cache_misses_user: its CPU has none" in str(caught.value)
    assert "itlb_miss: its CPU has none" in str(caught.value)
    assert "page_faults" not in str(caught.value)
    assert "tcpkmon schema list-counters" in caught.value.hint


def test_no_right_is_not_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EACCES, {SOFTWARE})
    with pytest.raises((PrivilegeError, KernelError), match="opening the counter page_faults"):
        bind(arches("arch any { counter1 page_faults; }"))


def test_hardware_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOENT, set())  # reads end at once, as those of an event in error
    counter = find_counter("cycles")
    assert counter is not None
    before = descriptors()
    with pytest.raises(KernelError, match="CPU 0 has no room for the counter cycles"):
        OpenCounters({"klogger_counter1": 0}, [Bound(1, counter)], [0])
    assert descriptors() == before


@pytest.mark.usefixtures("rich_machine")
def test_c_text() -> None:
    declared = arches("arch any { counter3 page_faults; } arch arm64 { counter1 cycles; }")
    text = c_text(bind(declared, "x86_64"), declared)
    assert "BPF_PERF_ARRAY(klogger_counter3, 1);" in text
    assert "#define KLOGGER_COUNTER3 3" in text
    assert "klogger_counter1" not in text
    assert "u64 klogger_get_page_faults_ll(void) {" in text
    assert "klogger_get_cycles(void) __attribute__((unavailable(" in text
    assert "klogger_get_page_faults(void) __attribute__" not in text


def test_the_machine_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    for uname, macro in (("aarch64", "ARM64"), ("x86_64", "X86_64"), ("riscv64", "UNKNOWN")):
        monkeypatch.setattr("platform.machine", lambda uname=uname: uname)
        assert f"#define KLOGGER_ARCH_COMPILED KLOGGER_ARCH_{macro}\n" in c_text(())


def test_it_never_falls() -> None:
    """Runs between the two readings hide some for a moment."""
    now = {"due": 0, "ran": 0}

    def heads() -> Any:
        return {"guards": {"again": np.array([[now["ran"]]], np.uint32)}}

    kernel = SimpleNamespace(
        loaded=SimpleNamespace(missed=lambda: {"fault": Missed(0, 0, 0, 0, now["due"])}),
        heads=heads,
        _prepared=SimpleNamespace(
            plan=SimpleNamespace(probes=(Chosen("fault", ("FAULT",), "perf", "page_faults:1"),)),
            numbers={"FAULT": 40},
        ),
        _behind={},
    )
    found = []
    for due, ran in ((100, 95), (200, 200), (300, 301), (400, 388), (500, 490)):
        now.update(due=due, ran=ran)
        programs = Kernel.programs(cast(Kernel, kernel), heads())
        found.append(programs["fault"].missed)
    assert found == [5, 5, 5, 12, 12]
