# SPDX-License-Identifier: Apache-2.0
"""Finds network namespaces by name, process or path, and enters them: for filters and labs."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tcpkmon.collector.linux.syscalls import call_libc
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, PrivilegeError, TcpkmonError, UsageError

T = TypeVar("T")

NAMED = Path("/run/netns")  # the folder in which iproute2 keeps the named ones
MOST_NAMED = 1024
CLONE_NEWNET = 0x40000000
SO_NETNS_COOKIE = 71  # asm-generic/socket.h, since Linux 5.14


@dataclass(frozen=True)
class Namespace(Closing):
    """An open network namespace; close() it, or use it in a `with`."""

    name: str
    """As the user gave it."""
    fd: int
    """Owned by this object."""
    inode: int
    """The number of a deleted namespace is used again at once."""
    cookie: int
    """Unique since boot; the BPF programs compare it."""

    def close(self) -> None:
        os.close(self.fd)


def own_namespace() -> int:
    """The inode of the calling thread's network namespace."""
    return os.stat("/proc/thread-self/ns/net").st_ino


def list_namespaces() -> dict[int, str]:
    """By inode, the path of each network namespace that has a process or a name.

    Others' processes may only be looked at with CAP_SYS_PTRACE.
    """
    own = os.stat("/proc/thread-self/ns/net")
    found = {own.st_ino: "/proc/self/ns/net"}
    paths = [f"/proc/{name}/ns/net" for name in os.listdir("/proc") if name.isdigit()]
    with suppress(OSError):  # no namespace has a name
        paths += [str(path) for path in sorted(NAMED.iterdir())]
    for path in paths:
        with suppress(OSError):  # the process has ended, or may not be looked at
            status = os.stat(path)
            if status.st_dev == own.st_dev:
                found.setdefault(status.st_ino, path)
    return found


def name_namespaces() -> dict[int, str]:
    """By cookie, the name of each network namespace that list_namespaces() has: that of `ip netns`,
    else number and name of a process in it; "own" is this thread's. At most MOST_NAMED.

    Those that may not be entered, and that went meanwhile, are left out.
    """
    named: dict[int, str] = {}
    with suppress(OSError):  # no namespace has a name
        for path in sorted(NAMED.iterdir()):
            with suppress(OSError):
                named.setdefault(os.stat(path).st_ino, path.name)
    found: dict[int, str] = {}
    for inode, place in islice(list_namespaces().items(), MOST_NAMED):
        with suppress(OSError, TcpkmonError):
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found[cookie_of(fd)] = named.get(inode) or _process_in(place)
            finally:
                os.close(fd)
    return found


def _process_in(place: str) -> str:
    pid = place.split("/")[2]
    if pid == "self":
        return "own"
    return f"{pid} {Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()}"


def resolve(text: str) -> Namespace:
    """Opens the namespace NAME (of `ip netns`), PID or PATH.

    Text of digits alone is a PID, text with a slash is a path. UsageError where there is no such
    namespace, PrivilegeError where it may not be opened or entered, KernelError before Linux 5.14.
    """
    fd = _open(text)
    try:
        return Namespace(text, fd, os.fstat(fd).st_ino, cookie_of(fd))
    except BaseException:
        os.close(fd)
        raise


def cookie_of(fd: int) -> int:
    """The 64-bit cookie of the namespace fd; it raises the errors of resolve()."""

    def ask() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            raw = probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
        return int(struct.unpack("=Q", raw)[0])

    try:
        return run_inside(fd, ask)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            raise KernelError(
                "this kernel gives network namespaces no cookie", "Linux 5.14 or later does"
            ) from None
        raise


@contextmanager
def enter(fd: int) -> Iterator[None]:
    """Moves the calling thread alone into the namespace fd until the end of the `with`.

    Sockets and child processes that it makes there stay there.
    """
    # By the path of the thread: other threads of the process may be in other namespaces.
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_namespace(fd)
        try:
            yield
        finally:
            set_namespace(home)
    finally:
        os.close(home)


def run_inside(fd: int, call: Callable[[], T]) -> T:
    """Calls `call` in a new thread inside the namespace fd; its result, or its exception."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            set_namespace(fd)
            results.append(call())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body, name="netns", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def set_namespace(fd: int) -> None:
    """setns(2) of the calling thread, for good. Before Python 3.12 there is no os.setns."""
    if is_own(fd):
        return  # a user may not do even that
    try:
        call_libc("setns", fd, CLONE_NEWNET)
    except OSError as error:
        if error.errno == errno.EINVAL:
            hint = "ip netns list names them"
            raise UsageError("that file is no network namespace", hint) from None
        if error.errno == errno.EPERM:
            hint = "run it as root"
            raise PrivilegeError("a network namespace may not be entered", hint) from None
        raise


def is_own(fd: int) -> bool:
    """Whether the calling thread is in this namespace."""
    own, other = os.stat("/proc/thread-self/ns/net"), os.fstat(fd)
    return (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino)


def _open(text: str) -> int:
    if not text or "\0" in text:
        raise UsageError("an empty name is no network namespace", "give a name, a PID or a path")
    if re.fullmatch(r"[0-9]+", text):
        path = Path("/proc", text, "ns/net")
        missing = f"there is no process {text}"
    elif "/" in text:
        path = Path(text)
        missing = f"there is no file {text}"
    else:
        path = NAMED / text
        missing = f"there is no network namespace named {text}"
    try:
        # O_NONBLOCK: opening a FIFO would block.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(missing, "ip netns list names them; a PID or a path will do") from None
    except PermissionError:
        raise PrivilegeError(f"network namespace {text} may not be opened", "run as root") from None
    except OSError as error:
        raise TcpkmonError(f"network namespace {text}: {error.strerror}") from None
