# SPDX-License-Identifier: Apache-2.0
"""Direct writes for collector/writer/file_sink.py: whole blocks of a file bypass the page cache.

Through the cache, each 4 KiB cost a copy, a page, and later the write-back of the page. In a
virtual machine, a page that the host must first provide costs ten copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from tcpkmon.collector.linux.syscalls import c_string, call_libc

BLOCK_BYTES = 4096
LEAST_BYTES = 128 << 10
"""A smaller write is cheaper through the cache."""
PIECE_BYTES = 4 << 20
"""The most that one write takes. Each write costs about 40 us, whatever its size."""
# Errors by which a file system refuses direct writes, not these bytes.
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_MASK_AT, _ALIGNMENT_AT, _STATX_BYTES = 0, 152, 256
_local = threading.local()


class Pieces:
    """Several buffers, read as if they were one. They are not copied."""

    def __init__(self, data: Sequence[bytes | memoryview]) -> None:
        self._views = [memoryview(piece).cast("B") for piece in data if len(piece)]
        self._stops = list(accumulate(len(view) for view in self._views))

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def first(self, start: int, stop: int) -> memoryview:
        """The bytes from `start` to the end of their buffer, or to `stop` if that comes first."""
        which = bisect_right(self._stops, start)
        view, end = self._views[which], self._stops[which]
        offset = start - (end - len(view))
        return view[offset : offset + min(stop, end) - start]

    def copy(self, start: int, target: memoryview) -> None:
        """Fill the target with the bytes after `start`."""
        done = 0
        while done < len(target):
            part = self.first(start + done, start + len(target))
            # numpy releases Python's lock during the copy.
            np.copyto(
                np.frombuffer(target[done : done + len(part)], np.uint8),
                np.frombuffer(part, np.uint8),
            )
            done += len(part)


class DirectWrites:
    """Direct writes to a regular file. The caller closes the descriptor, and no one else uses it.

    They are possible only where statx reports them (since Linux 6.1). The flag O_DIRECT alone says
    nothing: tmpfs accepts it and uses the cache.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        self._memory_bytes, self._block_bytes = alignment(fd)
        self.possible = (
            0 < self._memory_bytes <= mmap.PAGESIZE and 0 < self._block_bytes <= PIECE_BYTES
        )
        # The kernel would write parts of the file system's blocks one after the other.
        self._block_bytes = max(self._block_bytes, BLOCK_BYTES)

    def size(self, offset: int, length: int) -> int:
        """How many of `length` bytes at this offset a direct write can take; 0: none."""
        if not self.possible or length < LEAST_BYTES or offset % self._block_bytes:
            return 0
        return min(length, PIECE_BYTES) // self._block_bytes * self._block_bytes

    def head(self, offset: int, length: int) -> int:
        """How many bytes to write through the cache until a direct write is possible."""
        head = -offset % self._block_bytes
        return head if head and self.size(offset + head, length - head) else length

    def write(
        self, data: Pieces, start: int, size: int, write: Callable[[int, memoryview], int]
    ) -> int:
        """Write `size` bytes (see size()) at the descriptor's position; returns how many it wrote.

        OSError as from write(2). When the error refuses direct writes, `possible` becomes False.
        """
        aligned = data.first(start, start + size)
        if len(aligned) < size or not self._is_aligned(aligned):
            aligned = _memory()[:size]
            data.copy(start, aligned)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, self._flags | os.O_DIRECT)
            try:
                return write(self._fd, aligned)
            finally:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, self._flags)
        except OSError as error:
            if error.errno in _REFUSED:
                self.possible = False
            raise

    def _is_aligned(self, view: memoryview) -> bool:
        """Whether the disk can read from this address."""
        address = int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
        return address % self._memory_bytes == 0


def alignment(fd: int) -> tuple[int, int]:
    """The alignment of a file's direct writes in bytes: of memory, and of offset and length.

    (0, 0) where it has no direct writes, or the kernel does not report them.
    """
    result = ctypes.create_string_buffer(_STATX_BYTES)
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: a libc without statx
        call_libc("statx", fd, c_string(""), _AT_EMPTY_PATH, _STATX_DIOALIGN, result)
        (mask,) = struct.unpack_from("=I", result, _MASK_AT)
        if mask & _STATX_DIOALIGN:
            memory_bytes, offset_bytes = struct.unpack_from("=II", result, _ALIGNMENT_AT)
            return memory_bytes, offset_bytes
    return 0, 0


def _memory() -> memoryview:
    """Aligned memory to write from, one buffer for each thread."""
    if not hasattr(_local, "memory"):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _local.memory = memoryview(mmap.mmap(-1, PIECE_BYTES, flags=flags))
    memory: memoryview = _local.memory
    return memory
