# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) wrappers against this kernel."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from collector import bpfsys
from collector.btf import Btf
from collector.program import attach_type_id, load_code
from formats.errors import KernelError


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
    fd = keep(opened, bpfsys.map_create(bpfsys.BPF_MAP_TYPE_ARRAY, 4, 8, 3, 0, "an array!"))
    bpfsys.map_update(fd, u32(2), u64(77))
    assert bpfsys.map_lookup(fd, u32(2), 8) == u64(77)
    assert bpfsys.map_lookup(fd, u32(3), 8) is None
    keys, values = bpfsys.map_entries(fd, 4, 8, 3)
    assert keys.view(np.uint32).ravel().tolist() == [0, 1, 2]
    assert values.view(np.uint64).ravel().tolist() == [0, 0, 77]
    with pytest.raises(KernelError, match="E2BIG"):
        bpfsys.map_update(fd, u32(3), u64(1))


@pytest.mark.parametrize("batch", [True, False])
def test_hash_map(
    opened: contextlib.ExitStack, batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not batch:
        monkeypatch.setattr(bpfsys, "BPF_MAP_LOOKUP_BATCH", 9999)
    fd = keep(opened, bpfsys.map_create(bpfsys.BPF_MAP_TYPE_HASH, 4, 8, 100))
    assert bpfsys.map_next_key(fd, None, 4) is None
    assert len(bpfsys.map_entries(fd, 4, 8, 100)[0]) == 0
    for key in range(50):
        bpfsys.map_update(fd, u32(key), u64(key * key))
    keys, values = bpfsys.map_entries(fd, 4, 8, 100)
    found = dict(zip(keys.view(np.uint32).ravel(), values.view(np.uint64).ravel(), strict=True))
    assert found == {key: key * key for key in range(50)}
    assert sorted(bpfsys.map_keys(fd, 4)) == sorted(u32(key) for key in range(50))
    assert bpfsys.map_delete(fd, u32(7))
    assert not bpfsys.map_delete(fd, u32(7))
    assert bpfsys.map_lookup(fd, u32(7), 8) is None
    with pytest.raises(KernelError, match="EEXIST"):
        bpfsys.map_update(fd, u32(8), u64(0), bpfsys.BPF_NOEXIST)


def test_longest_prefix_map(opened: contextlib.ExitStack) -> None:
    fd = keep(
        opened,
        bpfsys.map_create(bpfsys.BPF_MAP_TYPE_LPM_TRIE, 8, 4, 10, bpfsys.BPF_F_NO_PREALLOC),
    )
    bpfsys.map_update(fd, u32(16) + bytes([10, 1, 0, 0]), u32(5))
    assert bpfsys.map_lookup(fd, u32(32) + bytes([10, 1, 2, 3]), 4) == u32(5)
    assert bpfsys.map_lookup(fd, u32(32) + bytes([10, 2, 2, 3]), 4) is None
    assert len(bpfsys.map_entries(fd, 8, 4, 10)[0]) == 1


def test_per_cpu_map(opened: contextlib.ExitStack) -> None:
    fd = keep(opened, bpfsys.map_create(bpfsys.BPF_MAP_TYPE_PERCPU_ARRAY, 4, 12, 2))
    cpus = bpfsys.possible_cpus()
    sent = b"".join(bytes([cpu + 1] * 12) + bytes(4) for cpu in range(cpus))
    bpfsys.map_update(fd, u32(1), sent)
    values = bpfsys.map_lookup_percpu(fd, u32(1), 12)
    assert values is not None
    assert values.shape == (cpus, 12)
    assert (values == np.arange(1, cpus + 1)[:, None]).all()
    assert bpfsys.map_lookup_percpu(fd, u32(2), 12) is None


def test_a_refused_map_says_why() -> None:
    with pytest.raises(KernelError, match=r"map odd \(4 entries of 4\+8 bytes\).*EINVAL"):
        bpfsys.map_create(9999, 4, 8, 4, name="odd")


def test_a_refused_program_comes_with_the_verifiers_words() -> None:
    uninitialised = struct.pack("=BBhiBBhi", 0xBF, 0x30, 0, 0, 0x95, 0, 0, 0)
    with pytest.raises(KernelError, match=r"BPF program bad failed.*EACCES.*R3 !read_ok") as caught:
        bpfsys.prog_load(bpfsys.BPF_PROG_TYPE_RAW_TRACEPOINT, uninitialised, "bad")
    assert "\n" not in caught.value.message


def test_runs_are_counted_while_statistics_are_on(opened: contextlib.ExitStack) -> None:
    prog = keep(
        opened,
        bpfsys.prog_load(bpfsys.BPF_PROG_TYPE_RAW_TRACEPOINT, bpfsys.RETURN_ZERO, "nothing"),
    )
    assert bpfsys.prog_info(prog).run_cnt == 0
    statistics = keep(opened, bpfsys.enable_stats())
    link = bpfsys.raw_tracepoint_open("sched_process_exec", prog)
    assert os.spawnv(os.P_WAIT, "/bin/true", ["true"]) == 0
    os.close(link)
    info = bpfsys.prog_info(prog)
    assert info.run_cnt > 0
    assert info.run_time_ns > 0
    assert info.recursion_misses == 0
    assert info.id > 0
    assert statistics > 0


def test_an_unknown_tracepoint_is_named(opened: contextlib.ExitStack) -> None:
    prog = keep(
        opened,
        bpfsys.prog_load(bpfsys.BPF_PROG_TYPE_RAW_TRACEPOINT, bpfsys.RETURN_ZERO, "nothing"),
    )
    with pytest.raises(KernelError, match=r"no_such_point.*ENOENT"):
        bpfsys.raw_tracepoint_open("no_such_point", prog)


def test_an_iterator_runs_to_its_end(opened: contextlib.ExitStack) -> None:
    btf_id = attach_type_id(Btf.from_kernel(), "iter", "task")
    prog = keep(opened, load_code("iter", bpfsys.RETURN_ZERO, "nothing", btf_id))
    link = keep(opened, bpfsys.link_create(prog, bpfsys.BPF_TRACE_ITER))
    statistics = keep(opened, bpfsys.enable_stats())
    file = keep(opened, bpfsys.iter_create(link))
    assert os.read(file, 4096) == b""
    assert bpfsys.prog_info(prog).run_cnt > 1, "it ran for each task"
    assert statistics > 0


def test_descriptors_do_not_pass_to_children(opened: contextlib.ExitStack) -> None:
    fds = [keep(opened, bpfsys.map_create(bpfsys.BPF_MAP_TYPE_ARRAY, 4, 8, 1))]
    prog = bpfsys.prog_load(bpfsys.BPF_PROG_TYPE_RAW_TRACEPOINT, bpfsys.RETURN_ZERO, "nothing")
    fds.append(keep(opened, prog))
    fds.append(keep(opened, bpfsys.raw_tracepoint_open("sched_process_exec", prog)))
    assert not any(os.get_inheritable(fd) for fd in fds)


def test_cpus() -> None:
    online = bpfsys.online_cpus()
    assert os.sched_getaffinity(0) <= set(online)
    assert max(online) < bpfsys.possible_cpus()
