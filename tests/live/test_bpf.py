# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) wrappers against this kernel."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.formats.base.errors import KernelError


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def keep(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


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


def test_descriptors_do_not_pass_to_children(opened: contextlib.ExitStack) -> None:
    fds = [keep(opened, bpf.map_create(bpf.BPF_MAP_TYPE_ARRAY, 4, 8, 1))]
    prog = bpf.prog_load(bpf.BPF_PROG_TYPE_RAW_TRACEPOINT, bpf.RETURN_ZERO, "nothing")
    fds.append(keep(opened, prog))
    fds.append(keep(opened, bpf.raw_tracepoint_open("sched_process_exec", prog)))
    assert not any(os.get_inheritable(fd) for fd in fds)
