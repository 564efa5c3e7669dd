# SPDX-License-Identifier: Apache-2.0
"""Takes from a thread what a capture does not need once it is set up: seccomp and Landlock.

Both hold for the calling thread and those that it starts, for good. A kernel without one of them
has the other, and the capabilities of collector/linux/privileges.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

from tcpkmon.collector.linux.syscalls import ARM64, NR_BPF, address, call_libc, system_call
from tcpkmon.formats.base.errors import KernelError

# By name: the numbers of x86_64 and arm64; None: that machine has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # New processes, other programs, and other processes' memory.
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "process_madvise": (440, 440),
    # Mounts, namespaces, the root folder.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97),
    "open_by_handle_at": (304, 265),
    # The kernel itself and the machine.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161),
    "iopl": (172, None), "ioperm": (173, None), "quotactl": (179, 60),
    # Keys, other users, and what widens the kernel's attack surface.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "setuid": (105, 146), "setgid": (106, 144), "setresuid": (117, 147), "setresgid": (119, 149),
    "setgroups": (116, 159), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    # Sockets: those of the control socket are accepted, not made.
    "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "connect": (42, 203),
}  # fmt: skip
_CLONE, _CLONE3 = ((56, 435), (220, 435))[ARM64]
_BPF_COMMANDS = (0, 1, 2, 3, 15, 17)
"""BPF_MAP_CREATE, LOOKUP, UPDATE, DELETE, OBJ_GET_INFO_BY_FD, and RAW_TRACEPOINT_OPEN, which
attaches the second copy of a program. No program is loaded."""
_BPF_LINK_CREATE = 28
_AUDIT_ARCH = 0xC00000B7 if ARM64 else 0xC000003E
_CLONE_THREAD = 0x10000
_LOAD, _EQUAL, _MORE, _SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x50000
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

_NR_CREATE_RULESET, _NR_ADD_RULE, _NR_RESTRICT_SELF = 444, 445, 446
_VERSION, _RULE_PATH_BENEATH = 1, 1
# linux/landlock.h. Reading and listing are not handled: files' modes rule over them.
_EXECUTE, _READS = 1, 1 << 2 | 1 << 3
_ALL_ACCESS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""By version of Landlock: the accesses to files that it knows."""
_BIND_TCP_CONNECT_TCP, _SCOPE_ABSTRACT, _SCOPE_SIGNAL = 3, 1, 2


def deny_calls(enters_namespaces: bool = False, forks: bool = False) -> None:
    """Make system calls fail (EPERM) that a capture that runs never makes: see _DENIED.

    enters_namespaces: all but setns(), and a loaded program may be linked where it is then. forks:
    all but new processes and pairs of sockets, for the guard of collector/linux/lasting.py.

    A thread may still start threads, but no process. Call it after forbid_new_privileges().
    KernelError where the kernel has no seccomp filters.
    """
    code = ctypes.create_string_buffer(b"".join(_filter(enters_namespaces, forks)))
    program = struct.pack("=HxxxxxxQ", (len(code) - 1) // 8, address(code))
    try:
        buffer = ctypes.create_string_buffer(program, len(program))
        call_libc("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, buffer, 0, 0)
    except OSError as error:
        raise KernelError(f"the kernel takes no seccomp filter: {error.strerror}") from error


def _filter(enters_namespaces: bool, forks: bool) -> Iterable[bytes]:
    """The filter in classic BPF: struct sock_filter {u16 code; u8 jt, jf; u32 k}."""

    def step(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, k)

    refuse, allow = step(_RETURN, _ERRNO | errno.EPERM), step(_RETURN, _ALLOW)
    yield step(_LOAD, _ARCH_AT)
    yield step(_EQUAL, _AUDIT_ARCH, 1)
    yield step(_RETURN, _KILL)
    yield step(_LOAD, _NUMBER_AT)
    if not ARM64:
        yield step(_MORE, _X32, 0, 1)
        yield refuse
    commands = _BPF_COMMANDS + (_BPF_LINK_CREATE,) * enters_namespaces
    allowed = {"setns"} if enters_namespaces else set()
    allowed |= {"fork", "vfork", "socketpair"} if forks else set()
    for name, numbers in _DENIED.items():
        if name in allowed:
            continue
        if (number := numbers[ARM64]) is not None:
            yield step(_EQUAL, number, 0, 1)
            yield refuse
    # Its arguments are in memory, where a filter cannot see them; libc then takes clone().
    yield step(_EQUAL, _CLONE3, 0, 1)
    yield step(_RETURN, _ERRNO | errno.ENOSYS)
    yield step(_EQUAL, _CLONE, 0, 4)
    yield step(_LOAD, _ARGUMENT_AT)
    yield step(_SET, _CLONE_THREAD, 0, 1)
    yield allow
    yield allow if forks else refuse
    yield step(_EQUAL, NR_BPF, 1)
    yield allow
    yield step(_LOAD, _ARGUMENT_AT)
    for index, command in enumerate(commands):
        yield step(_EQUAL, command, len(commands) - index)
    yield refuse
    yield allow


def landlock_version() -> int:
    """The version of the kernel's Landlock; 0 where it has none, or it is off."""
    with suppress(OSError):
        return system_call(_NR_CREATE_RULESET, None, 0, _VERSION)
    return 0


def limit_paths(folders: Iterable[int] = (), signals: bool = True) -> bool:
    """Allow to make, write and remove files below these folders (descriptors) alone.

    Files that are open stay usable, and reading is not limited. No program may be executed, no TCP
    socket bound or connected. signals: allow signals to other processes. False where the kernel
    has no Landlock. Call it after forbid_new_privileges().
    """
    version = landlock_version()
    if not version:
        return False
    files = _ALL_ACCESS[max(v for v in _ALL_ACCESS if v <= version)] & ~_READS
    network = _BIND_TCP_CONNECT_TCP if version >= 4 else 0
    scoped = (_SCOPE_ABSTRACT | (0 if signals else _SCOPE_SIGNAL)) if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", files, network, scoped)[:size]
    buffer = ctypes.create_string_buffer(attributes, size)
    ruleset = system_call(_NR_CREATE_RULESET, buffer, size, 0)
    try:
        for folder in folders:
            rule = struct.pack("=Qi", files & ~_EXECUTE, folder)
            buffer = ctypes.create_string_buffer(rule, len(rule))
            system_call(_NR_ADD_RULE, ruleset, _RULE_PATH_BENEATH, buffer, 0)
        system_call(_NR_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True
