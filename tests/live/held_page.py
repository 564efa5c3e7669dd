# SPDX-License-Identifier: Apache-2.0
"""A page of memory that nobody can read or write until the test says so: it holds kernel locks.

A system call that copies from or to the page waits in the page fault, with the locks that it took.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live.capturing import WAIT_S, wait_until

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}[platform.machine()]
SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}[platform.machine()]
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
API, MODE_MISSING = 0xAA, 1
PAGE = mmap.PAGESIZE


class HeldPage:
    """A page that comes into being by release(); until then, who touches it waits."""

    def __init__(self) -> None:
        self._fd = LIBC.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())
        self._map = mmap.mmap(-1, PAGE)
        self._view = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._view)
        self._call(UFFDIO_API, "=QQQ", API, 0, 0)
        self._call(UFFDIO_REGISTER, "=QQQQ", self.address, PAGE, MODE_MISSING, 0)

    def _call(self, request: int, layout: str, *values: int) -> None:
        fcntl.ioctl(self._fd, request, bytearray(struct.pack(layout, *values)))

    def wait_until_touched(self) -> None:
        assert os.read(self._fd, 32)

    def release(self) -> None:
        self._call(UFFDIO_ZEROPAGE, "=QQQq", self.address, PAGE, 0, 0)

    def close(self) -> None:
        os.close(self._fd)


class Thread(threading.Thread):
    """A thread whose id is known and whose error is raised by join()."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.start()
        wait_until(lambda: self.native_id)

    def run(self) -> None:
        try:
            self._work()
        except OSError as error:
            self._error = error

    def wait_until_blocked(self) -> None:
        """Until it sleeps in the kernel and no signal can wake it (D)."""
        wait_until(lambda: state_of(self.native_id) == "D")

    def join(self, timeout: float | None = WAIT_S) -> None:
        super().join(timeout)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


def state_of(pid: int | None) -> str:
    """The letter that ps shows for a thread."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def write_from(fd: int, page: HeldPage, size: int = 8) -> Thread:
    """A thread that writes from the page, and stands in the middle of that when this returns."""
    thread = Thread(lambda: _check(LIBC.write(fd, ctypes.c_void_p(page.address), size)))
    page.wait_until_touched()
    return thread


def list_into(folder_fd: int, page: HeldPage) -> Thread:
    """A thread that lists a folder into the page, and stands in the middle of that."""
    thread = Thread(
        lambda: _check(LIBC.syscall(SYS_GETDENTS64, folder_fd, ctypes.c_void_p(page.address), PAGE))
    )
    page.wait_until_touched()
    return thread


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
