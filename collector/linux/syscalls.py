# SPDX-License-Identifier: Apache-2.0
"""System calls by ctypes: bpf(2), perf_event_open(2) and others, and the numbers of the CPUs.

The numbers of system calls are those of x86_64 and arm64. A refused call raises OSError; refused()
turns that into an error for people.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import struct
import threading
from collections.abc import Iterable

from tcpkmon.formats.base.errors import KernelError, PrivilegeError

PERF_FLAG_FD_CLOEXEC = 8
_PERF_ATTRIBUTE_BYTES = 112
ARM64 = platform.machine() in {"aarch64", "arm64"}
NR_BPF = 280 if ARM64 else 321
NR_SETGROUPS, NR_SETRESUID, NR_SETRESGID = (159, 147, 149) if ARM64 else (116, 117, 119)
_NR_PERF_EVENT_OPEN = 241 if ARM64 else 298
_NR_MEMBARRIER = 283 if ARM64 else 324
_MEMBARRIER_CMD_GLOBAL = 1
_LOG_LINES_SHOWN = 8
_EXPLAINED = "Verification failed:"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call_libc(function: str, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of libc with 64-bit integers; its result, or OSError where it is negative."""
    wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    result = int(getattr(_libc, function)(*wide))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def system_call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call with 64-bit integers; its result, or OSError."""
    return call_libc("syscall", number, *arguments)


def bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """bpf(2); its result, and the attributes after it, which the kernel may have changed."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    while True:
        try:
            return system_call(NR_BPF, command, buffer, len(attributes)), buffer.raw
        except OSError as error:
            # After a signal the verifier ends with EAGAIN.
            if error.errno not in {errno.EINTR, errno.EAGAIN}:
                raise


def address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    """The buffer's address; keep the buffer alive while the kernel may use it."""
    return ctypes.addressof(buffer)


def c_string(text: str) -> ctypes.Array[ctypes.c_char]:
    """The text as a NUL-terminated buffer."""
    return ctypes.create_string_buffer(text.encode())


def refused(error: OSError, what: str, log: str = "") -> KernelError | PrivilegeError:
    """The error to raise where the kernel refused `what`; log: the verifier's."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    message = f"{what} failed: {os.strerror(error.errno or 0)} ({name})"
    if error.errno == errno.EPERM and os.geteuid() != 0:
        return PrivilegeError(message, "run it as root")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    # In 7.3 an explanation of many lines follows the complaint, which is the line before it.
    begins = next((i for i, line in enumerate(lines) if line.startswith(_EXPLAINED)), 0)
    shown = lines[max(0, begins - 1) :][:_LOG_LINES_SHOWN] if begins else lines[-_LOG_LINES_SHOWN:]
    if shown:
        message += "; the verifier says: " + " | ".join(shown)
    return KernelError(message)


def perf_attributes(
    kind: int, config: int, *, period: int = 0, read_format: int = 0, flags: int = 0,
    config1: int = 0, config2: int = 0,
) -> bytes:  # fmt: skip
    """struct perf_event_attr of linux/perf_event.h. flags: its bit fields, the first lowest."""
    return struct.pack(
        "=IIQQQQQIIQQ", kind, _PERF_ATTRIBUTE_BYTES, config, period, 0, read_format, flags, 0, 0,
        config1, config2,
    ).ljust(_PERF_ATTRIBUTE_BYTES, b"\0")  # fmt: skip


def perf_event_open(attributes: bytes, cpu: int, pid: int = -1) -> int:
    """perf_event_open(2) without a group; the event's descriptor, or OSError."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return system_call(_NR_PERF_EVENT_OPEN, buffer, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC)


def wait_for_running() -> None:
    """Wait until every BPF program that runs now has returned.

    The global command of membarrier(2) is synchronize_rcu(). A kernel with nohz_full CPUs refuses
    it: there programs may still run afterwards.
    """
    with contextlib.suppress(OSError):
        system_call(_NR_MEMBARRIER, _MEMBARRIER_CMD_GLOBAL, 0, 0)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def close_aside(fds: Iterable[int], wait_s: float = 0.1) -> None:
    """Close descriptors that another process sent, in a thread, which is waited for so long.

    close() may stand still: at a socket with SO_LINGER, at a file of a file system that is away,
    and at a Unix socket in which such are left.
    """
    if found := list(fds):
        thread = threading.Thread(target=close_all, args=(found,), daemon=True)
        thread.start()
        thread.join(wait_s)


def cpu_list(text: str) -> tuple[int, ...]:
    """The numbers in a list of the kernel's form: '0-2,5' is (0, 1, 2, 5)."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def _read_cpu_list(which: str) -> tuple[int, ...]:
    with open(f"/sys/devices/system/cpu/{which}", encoding="ascii") as file:
        return cpu_list(file.read())


@functools.cache
def possible_numbers() -> tuple[int, ...]:
    """The CPUs that may ever come online, in the order of a per-CPU map's values."""
    return _read_cpu_list("possible")


def possible_cpus() -> int:
    """The highest number of a CPU that may ever come online, + 1."""
    return max(possible_numbers()) + 1


def online_cpus() -> tuple[int, ...]:
    """The numbers of the CPUs that are online now."""
    return _read_cpu_list("online")
