# SPDX-License-Identifier: Apache-2.0
"""Priority and limits of the collector's process, and its user and capabilities after the start.

Each thread has its own user, capabilities and scheduling class, and a new thread inherits them. So
each thread calls settle() when it needs no more than it says there. libc's setuid() is for all
threads at once, and ends the process where they differ: here it is the system call.
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import resource
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.linux.confinement import deny_calls, limit_paths
from tcpkmon.collector.linux.syscalls import NR_SETGROUPS, NR_SETRESGID, NR_SETRESUID, call_libc
from tcpkmon.formats.base.errors import KernelError, PrivilegeError

# linux/capability.h
CAPABILITIES: dict[str, int] = {
    "CAP_CHOWN": 0,
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
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
KEPT = ("CAP_PERFMON", "CAP_BPF", "CAP_IPC_LOCK")
"""Needed while capturing: to read maps, and to open the ring of a CPU that comes online."""
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")

_VERSION_3 = 0x20080522
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 38, 23, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_PR_SET_KEEPCAPS = 8
USER = "tcpkmon"
_UIDS = range(61184, 65520)
"""Those of systemd's DynamicUser: no file belongs to them."""
_SYSTEMD_UIDS = Path("/run/systemd/dynamic-uid")
_FILES = 65536
READER_PRIORITY, WRITER_PRIORITY = 2, 1
_TASKS = Path("/proc/self/task")
_SETTLE_S = 5.0


def check_root(what: str) -> None:
    """PrivilegeError unless this process is root."""
    if os.geteuid() != 0:
        raise PrivilegeError(f"{what} needs root", "run it with sudo")


def run_first(priority: int = READER_PRIORITY) -> bool:
    """Give the calling thread SCHED_FIFO, but not its children; False where that is not allowed."""
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


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


@dataclass(frozen=True)
class User:
    """Who the collector is after the set-up."""

    uid: int
    gid: int


def find_user() -> User | None:
    """The user `tcpkmon` where the system has one, else a user that nobody is.

    None for a process that is not root's, or that may not change its user.
    """
    able = mask_of(("CAP_SETUID", "CAP_SETGID"))
    if os.geteuid() != 0 or capability_sets()[0] & able != able:
        return None
    with suppress(KeyError):
        entry = pwd.getpwnam(USER)
        return User(entry.pw_uid, entry.pw_gid)
    used = set(_users())
    for offset in range(len(_UIDS)):
        uid = _UIDS[(os.getpid() + offset) % len(_UIDS)]
        if uid not in used and not (_SYSTEMD_UIDS / str(uid)).exists() and not _has_name(uid):
            return User(uid, uid)
    return None


def _users() -> Iterator[int]:
    """Who has a process."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it has ended
                yield process.stat().st_uid


def _has_name(number: int) -> bool:
    for find in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            find(number)
            return True
    return False


def settle(
    keep: Iterable[str] = (),
    user: User | None = None,
    folders: Iterable[int] = (),
    signals: bool = False,
    enters_namespaces: bool = False,
    forks: bool = False,
) -> None:
    """Give up, in the calling thread and for good, what is not named here. PrivilegeError.

    It becomes the user (None: it stays who it is), keeps the capabilities `keep`, makes, writes and
    removes files by name only below `folders` (descriptors), and makes no system call that a
    capture never makes. signals: it may send other processes signals. enters_namespaces: it may
    enter network namespaces, and attach loaded programs there. Then files' modes alone limit it:
    Landlock would hide other processes' namespaces. forks: it may make processes.
    """
    forbid_new_privileges()
    if not enters_namespaces:
        with suppress(OSError):  # then files' modes alone limit it
            limit_paths(folders, signals)
    drop_capabilities(keep, user)
    with suppress(KernelError):
        deny_calls(enters_namespaces, forks)


def drop_capabilities(keep: Iterable[str] = KEPT, user: User | None = None) -> None:
    """Drop all capabilities but those named, for good, and become the user.

    PrivilegeError if the kernel refuses. The thread gains no capability that it does not have.
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
    if user is not None and user.uid != os.geteuid():
        _become(user)
    _set_capabilities(left, left, 0)


def _become(user: User) -> None:
    """Only the calling thread; its permitted capabilities stay."""
    _prctl(_PR_SET_KEEPCAPS, 1)
    what = f"becoming user {user.uid}"
    _call(what, "syscall", NR_SETGROUPS, 0, None)
    _call(what, "syscall", NR_SETRESGID, *(user.gid,) * 3)
    _call(what, "syscall", NR_SETRESUID, *(user.uid,) * 3)


def _set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    masks = (effective, permitted, inheritable)
    data = struct.pack("=6I", *(m & 0xFFFFFFFF for m in masks), *(m >> 32 for m in masks))
    buffer = ctypes.create_string_buffer(data, len(data))
    _call("setting capabilities", "capset", _header(), buffer)


@contextmanager
def passing_on(names: Iterable[str] = KEPT) -> Iterator[None]:
    """Child processes that start inside the `with` get these capabilities of this process too.

    Root's children have them anyway; those of a user only so.
    """
    _, permitted, inheritable = capability_sets()
    mine = permitted & mask_of(names)
    if os.geteuid() == 0 or not mine:
        yield
        return
    # Those of a program file may be permitted and not effective.
    _set_capabilities(permitted, permitted, inheritable | mine)
    for name in names:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, CAPABILITIES[name])
    try:
        yield
    finally:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        _set_capabilities(permitted, permitted, 0)


def lacking(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the capabilities that this thread does not have."""
    _, permitted, _ = capability_sets()
    return tuple(name for name in names if not permitted >> CAPABILITIES[name] & 1)


def capability_sets() -> tuple[int, int, int]:
    """Effective, permitted and inheritable capabilities of the calling thread, as bit masks."""
    data = ctypes.create_string_buffer(24)
    _call("asking for capabilities", "capget", _header(), data)
    words = struct.unpack("=6I", data.raw)
    effective, permitted, inheritable = (words[i] | words[i + 3] << 32 for i in range(3))
    return effective, permitted, inheritable


def check_threads(
    keep: Iterable[str] = KEPT, user: User | None = None, wait_s: float = _SETTLE_S
) -> None:
    """Check that no thread has more than the capabilities `keep`, or another user.

    PrivilegeError names each thread that still does after wait_s: a thread that has just begun
    gives up its own first.
    """
    allowed = mask_of(keep)
    deadline = time.monotonic() + wait_s
    while excess := list(_excess(allowed, user)):
        if time.monotonic() >= deadline:
            raise PrivilegeError(
                f"threads of this process kept privileges: {'; '.join(excess)}",
                "a library started them; report it, with the list of what is installed",
            )
        time.sleep(0.001)


def _excess(allowed: int, user: User | None) -> Iterator[str]:
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
        if user is not None and set(status["Uid"].split()) != {str(user.uid)}:
            found.append(f"user {status['Uid'].split()[0]}")
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


def _prctl(option: int, value: int, more: int = 0) -> bool:
    """prctl(2); False where the kernel refuses."""
    try:
        call_libc("prctl", option, value, more, 0, 0)
    except OSError:
        return False
    return True


def _call(what: str, function: str, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> None:
    try:
        call_libc(function, *arguments)
    except OSError as error:
        raise PrivilegeError(f"{what} failed: {error.strerror}") from error
