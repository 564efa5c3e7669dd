# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) wrappers against this kernel."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.syscalls import online_cpus, possible_cpus
from tcpkmon.collector.loader.programs import attach_type_id, load_code
from tcpkmon.formats.base.errors import KernelError
from tests.live.bpf_entries import entries_of


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def keep(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


def test_array_map(opened: contextlib.ExitStack) -> None:
    fd = keep(opened, bpf.map_create(bpf.BPF_MAP_TYPE_ARRAY, 4, 8, 3, 0, "an array!"))
    bpf.map_update(fd, u32(2), u64(77))
    assert bpf.map_lookup(fd, u32(2), 8) == u64(77)
    assert bpf.map_lookup(fd, u32(3), 8) is None
    assert entries_of(fd, 4, 8) == {u32(0): u64(0), u32(1): u64(0), u32(2): u64(77)}
    with pytest.raises(KernelError, match="E2BIG"):
        bpf.map_update(fd, u32(3), u64(1))


def test_hash_map(opened: contextlib.ExitStack) -> None:
    fd = keep(opened, bpf.map_create(bpf.BPF_MAP_TYPE_HASH, 4, 8, 100))
    assert entries_of(fd, 4, 8) == {}
    for key in range(50):
        bpf.map_update(fd, u32(key), u64(key * key))
    assert entries_of(fd, 4, 8) == {u32(key): u64(key * key) for key in range(50)}
    assert bpf.map_delete(fd, u32(7))
    assert not bpf.map_delete(fd, u32(7))
    assert bpf.map_lookup(fd, u32(7), 8) is None
    with pytest.raises(KernelError, match="EEXIST"):
        bpf.map_update(fd, u32(8), u64(0), bpf.BPF_NOEXIST)


def test_longest_prefix_map(opened: contextlib.ExitStack) -> None:
    fd = keep(
        opened,
        bpf.map_create(bpf.BPF_MAP_TYPE_LPM_TRIE, 8, 4, 10, bpf.BPF_F_NO_PREALLOC),
    )
    bpf.map_update(fd, u32(16) + bytes([10, 1, 0, 0]), u32(5))
    assert bpf.map_lookup(fd, u32(32) + bytes([10, 1, 2, 3]), 4) == u32(5)
    assert bpf.map_lookup(fd, u32(32) + bytes([10, 2, 2, 3]), 4) is None
    assert len(entries_of(fd, 8, 4)) == 1


def test_per_cpu_map(opened: contextlib.ExitStack) -> None:
    fd = keep(opened, bpf.map_create(bpf.BPF_MAP_TYPE_PERCPU_ARRAY, 4, 12, 2))
    cpus = possible_cpus()
    sent = b"".join(bytes([cpu + 1] * 12) + bytes(4) for cpu in range(cpus))
    bpf.map_update(fd, u32(1), sent)
    values = bpf.map_lookup_percpu(fd, u32(1), 12)
    assert values is not None
    assert values.shape == (cpus, 12)
    assert (values == np.arange(1, cpus + 1)[:, None]).all()
    assert bpf.map_lookup_percpu(fd, u32(2), 12) is None


def test_a_refused_map_says_why() -> None:
    with pytest.raises(KernelError, match=r"map odd \(4 entries of 4\+8 bytes\).*EINVAL"):
        bpf.map_create(9999, 4, 8, 4, name="odd")


def test_a_refused_program_comes_with_the_verifiers_words() -> None:
    uninitialised = struct.pack("=BBhiBBhi", 0xBF, 0x30, 0, 0, 0x95, 0, 0, 0)
    with pytest.raises(KernelError, match=r"BPF program bad failed.*EACCES.*R3 !read_ok") as caught:
        bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, uninitialised, "bad")
    assert "\n" not in caught.value.message


def test_runs_are_counted_while_statistics_are_on(opened: contextlib.ExitStack) -> None:
    prog = keep(
        opened,
        bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, bpf.RETURN_ZERO, "nothing"),
    )
    assert bpf.prog_info(prog).run_cnt == 0
    statistics = keep(opened, bpf.enable_stats())
    link = bpf.raw_tracepoint_open("sched_process_exec", prog)
    assert os.spawnv(os.P_WAIT, "/bin/true", ["true"]) == 0
    os.close(link)
    info = bpf.prog_info(prog)
    assert info.run_cnt > 0
    assert info.run_time_ns > 0
    assert info.recursion_misses == 0
    assert info.id > 0
    assert statistics > 0


def test_an_unknown_tracepoint_is_named(opened: contextlib.ExitStack) -> None:
    prog = keep(
        opened,
        bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, bpf.RETURN_ZERO, "nothing"),
    )
    with pytest.raises(KernelError, match=r"no_such_point.*ENOENT"):
        bpf.raw_tracepoint_open("no_such_point", prog)


def test_an_iterator_runs_to_its_end(opened: contextlib.ExitStack) -> None:
    btf_id = attach_type_id(Btf.from_kernel(), "iter", "task")
    prog = keep(opened, load_code("iter", bpf.RETURN_ZERO, "nothing", btf_id))
    link = keep(opened, bpf.link_create(prog, bpf.BPF_TRACE_ITER))
    statistics = keep(opened, bpf.enable_stats())
    file = keep(opened, bpf.iter_create(link))
    assert os.read(file, 4096) == b""
    assert bpf.prog_info(prog).run_cnt > 1, "it ran for each task"
    assert statistics > 0


def test_descriptors_do_not_pass_to_children(opened: contextlib.ExitStack) -> None:
    fds = [keep(opened, bpf.map_create(bpf.BPF_MAP_TYPE_ARRAY, 4, 8, 1))]
    prog = bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, bpf.RETURN_ZERO, "nothing")
    fds.append(keep(opened, prog))
    fds.append(keep(opened, bpf.raw_tracepoint_open("sched_process_exec", prog)))
    assert not any(os.get_inheritable(fd) for fd in fds)


def test_cpus() -> None:
    online = online_cpus()
    assert os.sched_getaffinity(0) <= set(online)
    assert max(online) < possible_cpus()
