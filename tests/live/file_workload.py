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


def resident(fd: int) -> int:
    """How many pages of the file the page cache has, by mincore()."""
    size = os.fstat(fd).st_size
    with mmap.mmap(fd, size, mmap.MAP_SHARED) as memory:
        pages = (ctypes.c_ubyte * (size // PAGE))()
        start = ctypes.c_char.from_buffer(memory)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(ctypes.addressof(start))
        assert libc.mincore(address, ctypes.c_size_t(size), pages) == 0
        del start
        return sum(page & 1 for page in pages)
