# SPDX-License-Identifier: Apache-2.0
"""Netfilter hooks: attaches BPF programs to one in each network namespace, for IPv4 and IPv6.

A link belongs to the namespace in which it was made, and keeps that namespace alive: so it is
closed when the namespace has no process and no name any more.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.netns import list_namespaces, own_namespace, run_inside
from tcpkmon.collector.linux.places import Places
from tcpkmon.collector.linux.syscalls import close_all
from tcpkmon.formats.base.errors import FileError, KernelError, TcpkmonError

HOOKS = {"PRE_ROUTING": 0, "LOCAL_IN": 1, "FORWARD": 2, "LOCAL_OUT": 3, "POST_ROUTING": 4}
"""By name, the number in linux/netfilter.h."""
_FIRST_HOOKS = {"PRE_ROUTING", "LOCAL_OUT"}
_FAMILIES = (2, 10)
"""NFPROTO_IPV4 and NFPROTO_IPV6."""
_LOWEST, _HIGHEST = -(1 << 31) + 1, (1 << 31) - 2
"""The kernel keeps the numbers beyond for itself."""
_TRIES = 256
_FIND, _LINK, _COUNT = 0, 1, 2
_NAMES = {number: name for name, number in HOOKS.items()}
FRESH_S = 0.1
_SCAN_S = 1.0
"""Namespaces are looked for so often, and sooner where a process has begun since."""
_COUNTERS = {
    "PRE_ROUTING": ("InReceives",),
    "LOCAL_IN": ("InDelivers",),
    "FORWARD": ("ForwDatagrams", "OutForwDatagrams"),
    "LOCAL_OUT": ("OutRequests",),
    "POST_ROUTING": ("OutRequests", "ForwDatagrams", "OutForwDatagrams"),
}
"""By hook, the namespace's counters of packets that pass it, in /proc/net/snmp and snmp6."""


def expect_hook(target: str) -> str:
    """What was expected instead of this target, or ''."""
    return "" if target in HOOKS else f"a hook of netfilter ({', '.join(HOOKS)})"


class Entrance:
    """The way into other network namespaces, for a process with CAP_SYS_ADMIN and CAP_SYS_PTRACE.

    asked: descriptors of namespaces that are entered also where they have no process and no name.
    """

    def __init__(self, asked: Iterable[int] = ()) -> None:
        self._asked = {os.fstat(fd).st_ino: f"/proc/self/fd/{fd}" for fd in asked}
        self._paths: dict[int, str] = {}
        self._scanned_s = -_SCAN_S
        self._last_pid = ""

    def find(self) -> Collection[int]:
        """The inodes of all namespaces that have a process or a name, or were asked for."""
        last_pid = _last_pid()
        if last_pid != self._last_pid or time.monotonic() - self._scanned_s >= _SCAN_S:
            self._paths, self._last_pid = list_namespaces() | self._asked, last_pid
            self._scanned_s = time.monotonic()
        return self._paths

    def count_passed(self, place: int, target: str) -> int:
        """The packets but ICMP that have passed a hook of a namespace since it was made; an OSError
        where it is gone."""
        return self._inside(place, lambda: _count_passed(target))

    def link(self, place: int, target: str, family: int, program: int) -> int:
        """Attaches a program in a namespace that find() found, or the own; the link's descriptor.

        KernelError where the kernel refuses, FileNotFoundError where the namespace is gone.
        """
        if place == own_namespace():
            return _link(family, target, program)
        if place not in self._paths:  # another process found it, which was killed
            self.find()
        return self._inside(place, lambda: _link(family, target, program))

    def _inside(self, place: int, call: Callable[[], int]) -> int:
        namespace = os.open(self._paths.get(place, ""), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(namespace).st_ino != place:
                raise FileNotFoundError(errno.ENOENT, "the namespace has gone")
            return run_inside(namespace, call)
        finally:
            os.close(namespace)

    def answer(self, number: int, data: bytes, *programs: int) -> int:
        """What a deputy does for a FarEntrance: the descriptor of a list, or of a link."""
        if number == _FIND:
            return _as_file(*self.find())
        place, hook, family = struct.unpack("=QIi", data)
        if number == _COUNT:
            return _as_file(self.count_passed(place, _NAMES[hook]))
        (program,) = programs
        return self.link(place, _NAMES[hook], family, program)


class FarEntrance(Entrance):
    """An Entrance by a deputy, whose open_file() is another's answer()."""

    def __init__(self, ask: Callable[[int, bytes, Sequence[int]], int]) -> None:
        super().__init__()
        self._ask = ask
        self._found: set[int] = set()
        self._next_s = 0.0

    def find(self) -> Collection[int]:
        """The programs of a capture ask one after another: for FRESH_S the answer is the same."""
        if time.monotonic() >= self._next_s:
            self._found = set(_numbers_of(self._ask(_FIND, b"", ())))
            self._next_s = time.monotonic() + FRESH_S
        return self._found

    def link(self, place: int, target: str, family: int, program: int) -> int:
        data = struct.pack("=QIi", place, HOOKS[target], family)
        try:
            return self._ask(_LINK, data, (program,))
        except FileError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise KernelError(error.message) from error


    def count_passed(self, place: int, target: str) -> int:
        data = struct.pack("=QIi", place, HOOKS[target], 0)
        return _numbers_of(self._ask(_COUNT, data, ()))[0]


class NetfilterHook(Places):
    """Programs at a hook: in this thread's namespace, by refresh() in all others too."""

    def __init__(self, target: str, programs: Sequence[int]) -> None:
        if target not in HOOKS:
            raise KernelError(f"there is no netfilter hook {target}", f"take {', '.join(HOOKS)}")
        self._target = target
        self.entrance: Entrance | None = Entrance()
        self.filtered: Collection[int] = ()
        """The inodes of the namespaces that are recorded; empty: all are."""
        super().__init__(own_namespace(), programs)

    def find(self) -> Collection[int]:
        return self.entrance.find() if self.entrance is not None else list(self._at)

    def count_before(self, place: int) -> int:
        """A namespace counts the packets that passed before it was found."""
        if self.entrance is not None and (place in self.filtered or not self.filtered):
            with suppress(OSError, TcpkmonError):
                return self.entrance.count_passed(place, self._target)
        return 0

    def open(self, place: int, program: int) -> list[int]:
        links: list[int] = []
        try:
            for family in _FAMILIES:
                assert self.entrance is not None  # else find() has nothing new
                links.append(self.entrance.link(place, self._target, family, program))
        except FileNotFoundError:
            close_all(links)
            return []
        except TcpkmonError:
            close_all(links)
            raise
        return links


def _last_pid() -> str:
    """The number of the process or thread that began last; it changes with each."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return file.read().split()[-1]


def _count_passed(target: str) -> int:
    """The packets at a hook of the calling thread's namespace, without those of ICMP."""
    found: dict[str, int] = {}
    with open("/proc/thread-self/net/snmp", encoding="ascii") as file:
        for names in file:
            kind, *values = next(file).split()
            words = zip(names.split()[1:], values, strict=False)
            found |= {f"{kind}{name}": int(value) for name, value in words}
    with suppress(FileNotFoundError), open("/proc/thread-self/net/snmp6", encoding="ascii") as file:
        for name, value in map(str.split, file):
            found[name.replace("Ip6", "Ip6:").replace("Icmp6", "Icmp6:")] = int(value)
    counters = [f"{ip}{name}" for ip in ("Ip:", "Ip6:") for name in _COUNTERS[target]]
    passed = sum(found.get(name, 0) for name in counters)
    arriving = {"LOCAL_IN": "InMsgs", "PRE_ROUTING": "InMsgs", "FORWARD": ""}
    messages = arriving.get(target, "OutMsgs")
    return max(0, passed - sum(found.get(f"{kind}{messages}", 0) for kind in ("Icmp:", "Icmp6:")))


def _as_file(*numbers: int) -> int:
    """A descriptor of a file in memory with these numbers."""
    fd = os.memfd_create("numbers", os.MFD_CLOEXEC)
    os.write(fd, struct.pack(f"={len(numbers)}Q", *numbers))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _numbers_of(fd: int) -> list[int]:
    with os.fdopen(fd, "rb") as file:
        return [number for (number,) in struct.iter_unpack("=Q", file.read())]


def _link(family: int, target: str, program: int) -> int:
    """Attaches a program in the calling thread's namespace; the link's descriptor.

    Where packets enter a layer (PRE_ROUTING, LOCAL_OUT) it runs before all rules, elsewhere after
    all: so it sees what comes, and what the rules let through. The kernel allows no two BPF links
    of one priority at a hook: the next free one is taken.
    """
    for step in range(_TRIES):
        priority = _LOWEST + step if target in _FIRST_HOOKS else _HIGHEST - step
        try:
            return bpf.link_netfilter(program, family, HOOKS[target], priority)
        except KernelError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EBUSY:
                raise
    raise KernelError(f"{_TRIES} BPF programs are at netfilter's hook {target} already")
