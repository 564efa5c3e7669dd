# SPDX-License-Identifier: Apache-2.0
"""A file that the page cache does not have, and how much of it the cache has later."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

PAGE = mmap.PAGESIZE


def make_cold(path: Path, pages: int) -> int:
    """A new file of so many pages, none of them in memory; a descriptor to read and write."""
    path.write_bytes(os.urandom(pages * PAGE))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return fd


def is_resident(memory: mmap.mmap) -> list[bool]:
    """By page of a mapped file, whether it is in memory (mincore)."""
    found = ctypes.create_string_buffer(-(-len(memory) // PAGE))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), found) == 0
    return [bool(one & 1) for one in found.raw]


def resident(fd: int) -> int:
    """How many pages of the file the page cache has."""
    with mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED) as memory:
        return sum(is_resident(memory))
