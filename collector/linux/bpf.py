# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) system call by ctypes: makes and reads maps, loads, attaches and runs programs.

Every file descriptor returned here is close-on-exec and belongs to the caller. Constants are named
as in linux/bpf.h and linux/perf_event.h. A call that the kernel refuses raises KernelError, or
PrivilegeError where the caller is not root.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.syscalls import (
    address,
    bpf,
    c_string,
    possible_cpus,
    possible_numbers,
    refused,
)

BPF_MAP_CREATE, BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM = 0, 1, 2, 3
BPF_MAP_FREEZE = 22
BPF_PROG_LOAD = 5
BPF_PROG_TEST_RUN, BPF_OBJ_GET_INFO_BY_FD, BPF_RAW_TRACEPOINT_OPEN = 10, 15, 17
BPF_MAP_GET_FD_BY_ID = 14
BPF_BTF_LOAD = 18
BPF_LINK_CREATE, BPF_ENABLE_STATS, BPF_ITER_CREATE = 28, 32, 33

BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERF_EVENT_ARRAY = 1, 2, 4
BPF_MAP_TYPE_PERCPU_ARRAY = 6
BPF_MAP_TYPE_LPM_TRIE = 11
BPF_MAP_TYPE_ARRAY_OF_MAPS, BPF_MAP_TYPE_RINGBUF = 12, 27
BPF_MAP_TYPE_STRUCT_OPS = 26
BPF_ANY, BPF_NOEXIST = 0, 1
BPF_F_NO_PREALLOC, BPF_F_RDONLY_PROG, BPF_F_MMAPABLE = 1, 1 << 7, 1 << 10

BPF_PROG_TYPE_KPROBE, BPF_PROG_TYPE_PERF_EVENT, BPF_PROG_TYPE_SOCK_OPS = 2, 7, 13
BPF_PROG_TYPE_RAW_TRACEPOINT, BPF_PROG_TYPE_TRACING, BPF_PROG_TYPE_NETFILTER = 17, 26, 32
BPF_PROG_TYPE_STRUCT_OPS = 27
BPF_TRACE_RAW_TP, BPF_TRACE_FENTRY, BPF_TRACE_FEXIT, BPF_TRACE_ITER = 23, 24, 25, 28
BPF_CGROUP_SOCK_OPS, BPF_NETFILTER = 3, 45
BPF_STATS_RUN_TIME = 0
BPF_F_TEST_RUN_ON_CPU = 1

BPF_LD_IMM64, BPF_CALL, BPF_MOV64_IMM = 0x18, 0x85, 0xB7
BPF_PSEUDO_KFUNC_CALL = 2


def returning(result: int) -> bytes:
    """The smallest program that the verifier accepts: r0 = result; exit."""
    return struct.pack("=BBhiBBhi", 0xB7, 0, 0, result, 0x95, 0, 0, 0)


RETURN_ZERO = returning(0)

PERF_TYPE_TRACEPOINT = 2
PERF_EVENT_IOC_SET_BPF = 0x40042408

_NAME_BYTES = 15
_LOG_BYTES = 1 << 24


def kernel_name(text: str) -> bytes:
    """The text as the name of a BPF object: at most 15 letters, digits, '_' and '.'."""
    kept = "".join(c if (c.isascii() and c.isalnum()) or c in "_." else "_" for c in text)
    return kept.encode()[:_NAME_BYTES]


def _call(command: int, attributes: bytes, what: str) -> int:
    """bpf(2); its result. `what` is what failed, for the error."""
    try:
        return bpf(command, attributes)[0]
    except OSError as error:
        raise refused(error, what) from error


def _call_for_entry(command: int, attributes: bytes, what: str) -> bool:
    """bpf(2) on an entry of a map; False where there is no such entry."""
    try:
        bpf(command, attributes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise refused(error, what) from error
    return True


def map_create(
    map_type: int,
    key_size: int,
    value_size: int,
    max_entries: int,
    flags: int = 0,
    name: str = "",
    inner_fd: int = 0,
    kernel_type: int = 0,
    btf_fd: int = 0,
) -> int:
    """Make a map; its file descriptor. Sizes are bytes.

    inner_fd: for a map of maps, an example of the maps that it will hold. kernel_type: of the
    values of a struct_ops map, by its number in the kernel's BTF; it needs a btf_fd too.
    """
    attributes = struct.pack(
        "=IIIIIII16sIIIIII", map_type, key_size, value_size, max_entries, flags, inner_fd, 0,
        kernel_name(name), 0, btf_fd, 0, 0, kernel_type, 0,
    )  # fmt: skip
    size = f"{max_entries} entries of {key_size}+{value_size} bytes"
    return _call(BPF_MAP_CREATE, attributes, f"making the BPF map {name or map_type} ({size})")


def btf_load(types: bytes) -> int:
    """The descriptor of types in BTF's format (Documentation/bpf/btf.rst)."""
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), 1)
    data = ctypes.create_string_buffer(head + types)  # with NUL, the one string
    attributes = struct.pack("=QQIIII", address(data), 0, len(data), 0, 0, 0)
    return _call(BPF_BTF_LOAD, attributes, "loading BTF")


def _element(fd: int, key: int, value: int, flags: int = 0) -> bytes:
    return struct.pack("=IIQQQ", fd, 0, key, value, flags)


def map_update(fd: int, key: bytes, value: bytes, flags: int = BPF_ANY) -> None:
    """Set one entry. For a per-CPU map: the values of all possible CPUs, each padded to 8 bytes."""
    keys, values = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value)
    element = _element(fd, address(keys), address(values), flags)
    _call(BPF_MAP_UPDATE_ELEM, element, "writing to a BPF map")


def map_freeze(fd: int) -> None:
    """From now on nobody changes the map from outside of programs."""
    _call(BPF_MAP_FREEZE, struct.pack("=I", fd), "freezing a BPF map")


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """One entry's value of `value_size` bytes, or None where there is no such key."""
    keys, values = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value_size)
    element = _element(fd, address(keys), address(values))
    found = _call_for_entry(BPF_MAP_LOOKUP_ELEM, element, "reading from a BPF map")
    return values.raw[:value_size] if found else None


def map_lookup_percpu(fd: int, key: bytes, value_size: int) -> NDArray[np.uint8] | None:
    """One entry of a per-CPU map: uint8 of shape (possible_cpus(), value_size), or None."""
    stride = (value_size + 7) // 8 * 8
    numbers = possible_numbers()
    raw = map_lookup(fd, key, stride * len(numbers))
    if raw is None:
        return None
    values = np.zeros((possible_cpus(), value_size), np.uint8)
    values[list(numbers)] = np.frombuffer(raw, np.uint8).reshape(-1, stride)[:, :value_size]
    return values


def map_delete(fd: int, key: bytes) -> bool:
    """Delete an entry; False where there was none."""
    keys = ctypes.create_string_buffer(key)
    element = _element(fd, address(keys), 0)
    return _call_for_entry(BPF_MAP_DELETE_ELEM, element, "deleting from a BPF map")


def map_entries(fd: int) -> int:
    """How many entries a map has at most; of a ring buffer, its bytes."""
    info = ctypes.create_string_buffer(88)
    attributes = struct.pack("=IIQ", fd, len(info), address(info))
    _call(BPF_OBJ_GET_INFO_BY_FD, attributes, "asking for the size of a BPF map")
    return int(struct.unpack_from("=I", info.raw, 16)[0])


def inner_map(fd: int, key: bytes) -> int | None:
    """The descriptor of a map in a map of maps, or None; it needs CAP_SYS_ADMIN."""
    number = map_lookup(fd, key, 4)
    if number is None:
        return None
    attributes = struct.pack("=4sII", number, 0, 0)
    return _call(BPF_MAP_GET_FD_BY_ID, attributes, "opening a BPF map")


def prog_load(
    kind: int,
    instructions: bytes,
    name: str,
    attach_btf_id: int = 0,
    expected_attach_type: int = 0,
) -> int:
    """Load a program (8 bytes an instruction, map descriptors filled in); its file descriptor.

    KernelError has the errno and the last lines of the verifier's log, for which a refused
    program is loaded once more.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = c_string("GPL")

    def load(log: ctypes.Array[ctypes.c_char] | None) -> int:
        logging = (1, len(log), address(log)) if log is not None else (0, 0, 0)
        attributes = struct.pack(
            "=IIQQIIQII16sIIIIQIIQIIII", kind, len(instructions) // 8, address(code),
            address(licence), *logging, 0, 0, kernel_name(name), 0, expected_attach_type,
            0, 0, 0, 0, 0, 0, 0, attach_btf_id, 0, 0,
        )  # fmt: skip
        return bpf(BPF_PROG_LOAD, attributes)[0]

    try:
        return load(None)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise refused(error, f"loading the BPF program {name}") from error
        log = ctypes.create_string_buffer(_LOG_BYTES)
        try:
            return load(log)
        except OSError:
            text = log.value.decode(errors="replace")
            raise refused(error, f"loading the BPF program {name}", text) from error


def raw_tracepoint_open(name: str | None, prog_fd: int) -> int:
    """Attach a program to the raw tracepoint `name`; None: to the target of its attach_btf_id
    (BTF tracepoint, fentry, fexit). Closing the returned descriptor detaches it."""
    text = c_string(name) if name is not None else None
    target = address(text) if text is not None else 0
    attributes = struct.pack("=QII", target, prog_fd, 0)
    return _call(BPF_RAW_TRACEPOINT_OPEN, attributes, f"attaching to {name or 'the BTF target'}")


def link_create(prog_fd: int, attach_type: int, target_fd: int = 0) -> int:
    """The descriptor of a link. target_fd: of a control group; 0: without one (an iterator)."""
    attributes = struct.pack("=IIII32x", prog_fd, target_fd, attach_type, 0)
    return _call(BPF_LINK_CREATE, attributes, "making a BPF link")


def link_netfilter(prog_fd: int, family: int, hook: int, priority: int) -> int:
    """The descriptor of a link at a netfilter hook of the calling thread's network namespace."""
    attributes = struct.pack(
        "=IIIIIIiI16x", prog_fd, 0, BPF_NETFILTER, 0, family, hook, priority, 0
    )  # fmt: skip
    return _call(BPF_LINK_CREATE, attributes, "attaching to a netfilter hook")


def iter_create(link_fd: int) -> int:
    """A file; reading it to its end runs the iterator once."""
    return _call(BPF_ITER_CREATE, struct.pack("=II", link_fd, 0), "opening a BPF iterator")


def prog_test_run(prog_fd: int, cpu: int) -> int:
    """Run a raw tracepoint program once on that CPU with interrupts off; its return value.

    KernelError before Linux 5.10, and where the CPU is off.
    """
    attributes = struct.pack(
        "=IIIIQQIIIIQQIII4x", prog_fd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        BPF_F_TEST_RUN_ON_CPU, cpu, 0,
    )  # fmt: skip
    try:
        _, after = bpf(BPF_PROG_TEST_RUN, attributes)
    except OSError as error:
        raise refused(error, f"running a BPF program on CPU {cpu}") from error
    return int(struct.unpack_from("=i", after, 4)[0])


@dataclass(frozen=True)
class ProgInfo:
    """A loaded program's counters; without enable_stats() run_cnt and run_time_ns are 0."""

    id: int
    run_time_ns: int
    run_cnt: int
    recursion_misses: int


def prog_info(fd: int) -> ProgInfo:
    """The counters of a loaded program, from struct bpf_prog_info."""
    info = ctypes.create_string_buffer(232)
    attributes = struct.pack("=IIQ", fd, len(info), address(info))
    _call(BPF_OBJ_GET_INFO_BY_FD, attributes, "asking for a BPF program's counters")
    run_time_ns, run_cnt, misses = struct.unpack_from("=QQQ", info.raw, 192)
    return ProgInfo(struct.unpack_from("=I", info.raw, 4)[0], run_time_ns, run_cnt, misses)


def enable_stats() -> int:
    """Until the descriptor is closed, the kernel counts the runs and run times of all programs."""
    attributes = struct.pack("=I", BPF_STATS_RUN_TIME)
    return _call(BPF_ENABLE_STATS, attributes, "turning on BPF statistics")
