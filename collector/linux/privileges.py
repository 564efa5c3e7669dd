# SPDX-License-Identifier: Apache-2.0
"""Priority and limits of the collector's process, and its capabilities after the start.

Each thread has its own capabilities and scheduling class, and a new thread inherits them. So call
these functions in the main thread before the writing thread starts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from collector.linux.syscalls import call_libc
from formats.base.errors import PrivilegeError

# linux/capability.h
CAPABILITIES: dict[str, int] = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_NET_ADMIN": 12,
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_NICE": 23,
    "CAP_SYS_RESOURCE": 24,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
KEPT = ("CAP_PERFMON", "CAP_BPF", "CAP_IPC_LOCK")
"""Needed while capturing: to read maps, and to open the ring of a CPU that comes online."""
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")

_VERSION_3 = 0x20080522
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 38, 23, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_FILES = 65536
READER_PRIORITY, WRITER_PRIORITY = 2, 1
_TASKS = Path("/proc/self/task")
_SETTLE_S = 5.0


def run_first(priority: int = READER_PRIORITY) -> bool:
    """Give the calling thread SCHED_FIFO, but not its children; False where that is not allowed."""
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


def begin_writing() -> None:
    """Prepares the calling thread to write the file: priority, and no capability.

    It shares Python's lock with the reader. Without the priority the reader would wait while the
    thread that has the lock waits for a CPU.
    """
    run_first(WRITER_PRIORITY)
    drop_capabilities(())


Limits = dict[int, tuple[int, int]]
"""Soft and hard limit by the number of the resource, as in resource.setrlimit()."""


def raise_limits() -> Limits:
    """Raise the limits of locked memory and of open files (to 65536) as far as is allowed.

    Returns what they were, for a child process that shall not have more.
    """
    unlimited = resource.RLIM_INFINITY
    names = (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
    before = {name: resource.getrlimit(name) for name in names}
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (unlimited, unlimited))
    except (ValueError, OSError):
        _, hard = before[resource.RLIMIT_MEMLOCK]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    soft, hard = before[resource.RLIMIT_NOFILE]
    target = _FILES if hard == unlimited else min(hard, _FILES)
    if soft != unlimited and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return before


def forbid_new_privileges() -> None:
    """Programs that this thread or its children run cannot gain privileges. PrivilegeError."""
    _call("prctl", "prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def needed_capabilities(paranoid: Path = PARANOID) -> tuple[str, ...]:
    """KEPT, and CAP_SYS_ADMIN where only that allows to open perf events.

    Debian's and Ubuntu's kernels need it where perf_event_paranoid is above 2: their patch does
    not check CAP_PERFMON. Without it a CPU that comes online would get no ring.
    """
    try:
        restricted = int(paranoid.read_text()) > 2
    except (OSError, ValueError):
        restricted = False
    return (*KEPT, "CAP_SYS_ADMIN") if restricted else KEPT


def drop_capabilities(keep: Iterable[str] = KEPT) -> None:
    """Drop all capabilities but those named, for good. PrivilegeError if the kernel refuses.

    The thread gains no capability that it does not have.
    """
    _, permitted, _ = capability_sets()
    left = permitted & mask_of(keep)
    number = 0
    while _prctl(_PR_CAPBSET_READ, number):
        if not left >> number & 1:
            # Without CAP_SETPCAP the kernel refuses (EPERM), and there is little to drop.
            _prctl(_PR_CAPBSET_DROP, number)
        number += 1
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    data = struct.pack(
        "=6I", *(left & 0xFFFFFFFF, left & 0xFFFFFFFF, 0), *(left >> 32, left >> 32, 0)
    )
    buffer = ctypes.create_string_buffer(data, len(data))
    _call("dropping capabilities", "capset", _header(), buffer)


def capability_sets() -> tuple[int, int, int]:
    """Effective, permitted and inheritable capabilities of the calling thread, as bit masks."""
    data = ctypes.create_string_buffer(24)
    _call("asking for capabilities", "capget", _header(), data)
    words = struct.unpack("=6I", data.raw)
    effective, permitted, inheritable = (words[i] | words[i + 3] << 32 for i in range(3))
    return effective, permitted, inheritable


def check_threads(keep: Iterable[str] = KEPT, wait_s: float = _SETTLE_S) -> None:
    """Check that no thread of this process has more than the capabilities `keep`, or may gain any.

    PrivilegeError names each thread that still does after wait_s: a thread that has just begun
    gives up its own first.
    """
    allowed = mask_of(keep)
    deadline = time.monotonic() + wait_s
    while excess := list(_excess(allowed)):
        if time.monotonic() >= deadline:
            raise PrivilegeError(
                f"threads of this process kept privileges: {'; '.join(excess)}",
                "a library started them; report it, with the list of what is installed",
            )
        time.sleep(0.001)


def _excess(allowed: int) -> Iterator[str]:
    """Each thread that may do more than it shall, and what."""
    # Without CAP_SETPCAP the bounding set stays as it was.
    bounding = allowed | int(_status_of(_TASKS.parent)["CapBnd"], 16)
    for task in _TASKS.iterdir():
        try:
            status = _status_of(task)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        held = [int(status[name], 16) for name in ("CapPrm", "CapInh", "CapAmb")]
        more = (held[0] | held[1] | held[2]) & ~allowed | int(status["CapBnd"], 16) & ~bounding
        found = [name for name, bit in CAPABILITIES.items() if more >> bit & 1]
        if more and not found:
            found = [f"capabilities {more:x}"]
        if status["NoNewPrivs"] != "1":
            found.append("it may gain privileges")
        if found:
            yield f"{status['Name']} ({task.name}) {', '.join(found)}"


def _status_of(task: Path) -> dict[str, str]:
    lines = (task / "status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def mask_of(names: Iterable[str]) -> int:
    """The bit mask of capabilities."""
    return sum(1 << CAPABILITIES[name] for name in set(names))


def _header() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0), 8)


def _prctl(option: int, value: int) -> bool:
    """prctl(2); False where the kernel refuses."""
    try:
        call_libc("prctl", option, value, 0, 0, 0)
    except OSError:
        return False
    return True


def _call(what: str, function: str, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    try:
        call_libc(function, *arguments)
    except OSError as error:
        raise PrivilegeError(f"{what} failed: {error.strerror}") from error
