# SPDX-License-Identifier: Apache-2.0
"""The sink under the spool: writes whole entries to a file and survives a full disk and errors.

A limit of the file's size (RLIMIT_FSIZE, `ulimit -f`) is a full disk too.

After a failed write, the sink truncates the file to its last whole entry. fallocate() keeps a
reserve beyond the end of the file, so that the last entries of a capture fit on a full disk.
Large writes bypass the page cache where that is possible (collector/writer/direct_io.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tcpkmon.collector.linux.syscalls import call_libc
from tcpkmon.collector.writer.direct_io import DirectWrites, Pieces
from tcpkmon.formats.base.control import LossCause
from tcpkmon.formats.base.errors import FileError

RESERVE_BYTES = 64 << 10
HEADER_BYTES = 64 << 10
"""More than a header takes on most machines."""
AHEAD_BYTES = 8 << 20
"""fallocate() takes this much more than needed: it costs more than the write of a small batch."""
_FALLOC_FL_KEEP_SIZE = 1
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Calls:
    """The system calls that sinks and outputs make. Tests replace them by calls that fail."""

    open = staticmethod(os.open)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    ftruncate = staticmethod(os.ftruncate)
    lseek = staticmethod(os.lseek)
    fchmod = staticmethod(os.fchmod)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    close = staticmethod(os.close)

    @staticmethod
    def size_limit() -> int | None:
        """RLIMIT_FSIZE: how large this process may make a file; None for any size."""
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return None if limit == resource.RLIM_INFINITY else limit

    @staticmethod
    def fallocate(fd: int, offset: int, length: int) -> None:
        """Reserve room on the disk. The file's size does not change. OSError."""
        call_libc("fallocate", fd, _FALLOC_FL_KEEP_SIZE, offset, length)


def cause_of(error: OSError) -> LossCause:
    """The cause of loss for a failed write."""
    return LossCause.DISK_FULL if error.errno in _FULL else LossCause.WRITE_ERROR


@dataclass(frozen=True)
class Outcome:
    """The result of a write: how many bytes the file kept, and the error if not all."""

    kept_bytes: int
    error: OSError | None = None


class FileSink:
    """Appends entries to a descriptor, and closes it. One thread uses it.

    It appends at the descriptor's position. `reserve_bytes` stay free for writes with
    reserved=True. direct: writes may bypass the page cache; False where another process has the
    descriptor too. It raises BrokenPipeError; other errors are in the Outcome.
    """

    def __init__(
        self,
        fd: int,
        entry_size: int,
        calls: Calls | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        direct: bool = True,
    ) -> None:
        self._fd = fd
        self._entry_size = entry_size
        self._calls = calls or Calls()
        mode = os.fstat(fd)
        self.regular = stat.S_ISREG(mode.st_mode)
        self._end = self._calls.lseek(fd, 0, os.SEEK_CUR) if self.regular else 0
        self._wanted_reserve = reserve_bytes
        self._reserve = reserve_bytes if self.regular else 0
        self._below_limit = self._reserve
        self._allocated = 0
        self._ragged = False
        self.wrote_ns = (0, 0)
        """CLOCK_MONOTONIC before and after the last write that succeeded, (0, 0): none did."""
        self._direct = DirectWrites(fd) if direct and self.regular else None

    def another(self, fd: int) -> FileSink:
        """A sink like this one, for another file."""
        direct = self._direct is not None
        return FileSink(fd, self._entry_size, self._calls, self._wanted_reserve, direct)

    def prepare(self, header_bytes: int = HEADER_BYTES) -> OSError | None:
        """Reserve room for the beginning of the file, which is no larger than its end with the
        header, and for its end; returns the error where there is none."""
        if not self._reserve:
            return None
        error = self._allocate(0, 2 * self._reserve + header_bytes)
        return error if error is not None and error.errno in _FULL else None

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode; None of a pipe."""
        found = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) if self.regular else None

    @property
    def end_bytes(self) -> int:
        """Where the file ends (0 for a pipe)."""
        return self._end

    def write(
        self,
        *pieces: bytes | memoryview,
        whole: bool = False,
        reserved: bool = False,
        cached: bool = False,
    ) -> Outcome:
        """Append the pieces, together whole entries: as many entries as fit; `whole`: all or none.

        cached: through the page cache, which is faster than a slow disk during a burst.
        """
        began_ns = time.monotonic_ns()
        outcome = self._write(pieces, whole, reserved, cached)
        if outcome.error is None:
            self.wrote_ns = (began_ns, time.monotonic_ns())
        return outcome

    def _write(
        self, pieces: Sequence[bytes | memoryview], whole: bool, reserved: bool, cached: bool
    ) -> Outcome:
        if self._ragged and (error := self._cut_back()) is not None:
            return Outcome(0, error)
        data = Pieces(pieces)
        done = 0
        failed: OSError | None = None
        direct = self._direct if not cached and self._direct and self._direct.possible else None
        while done < len(data) and failed is None:
            size, failed = (len(data) - done, None) if reserved else self._room(done, data, whole)
            done, error = self._put(data, done, done + size, direct)
            failed = error or failed
        if failed is None:
            self._end += done
            return Outcome(done)
        kept = 0 if whole else done // self._entry_size * self._entry_size
        self._end += kept
        if kept != done:
            self._ragged = True
            self._cut_back()
        return Outcome(kept, failed)

    def sync(self) -> OSError | None:
        """Sync the file; returns the error."""
        if not self.regular:
            return None
        while True:
            try:
                self._calls.fsync(self._fd)
            except InterruptedError:
                continue
            except OSError as error:
                return error
            return None

    def close(self) -> OSError | None:
        """Release the reserve, sync and close; returns the first error."""
        failed = None
        if self._ragged or self._reserve:
            self._reserve = 0
            error = self._cut_back()
            # Only half an entry at the end is an error, a reserve that stays is none.
            failed = error if self._ragged else None
        synced = self.sync()
        try:
            self._calls.close(self._fd)
        except OSError as error:
            return failed or synced or error
        return failed or synced

    def _put(
        self, data: Pieces, start: int, stop: int, direct: DirectWrites | None
    ) -> tuple[int, OSError | None]:
        """Write a range; returns where the write ended, and the error."""
        while start < stop:
            offset, length = self._end + start, stop - start
            try:
                if direct and (size := direct.size(offset, length)):
                    count = direct.write(data, start, size, self._calls.write)
                else:
                    size = direct.head(offset, length) if direct else length
                    count = self._calls.write(self._fd, data.first(start, start + size))
            except InterruptedError:
                continue
            except BlockingIOError:
                waiting = select.poll()  # select() has no descriptors from 1024 on
                waiting.register(self._fd, select.POLLOUT)
                waiting.poll()
                continue
            except BrokenPipeError:
                raise
            except OSError as error:
                if direct and not direct.possible:  # the kernel just refused direct writes
                    direct = None
                    continue
                return start, error
            if not count:
                return start, OSError(errno.EIO, "nothing was written")
            start += count
        return start, None

    def _room(self, done: int, data: Pieces, whole: bool) -> tuple[int, OSError | None]:
        """How many bytes after `done` can be written while the reserve stays free."""
        want = len(data) - done
        limit = self._calls.size_limit() if self.regular else None
        if limit is not None:  # fallocate() does not know of it
            left = max(0, limit - self._below_limit - self._end - done)
            if left < want:
                want = 0 if whole else left // self._entry_size * self._entry_size
                if not want:
                    return 0, OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if not self._reserve:
            return want, None
        if self._end + done + want + self._reserve <= self._allocated:
            return want, None
        size, ahead, first = want, AHEAD_BYTES, None
        while size:
            error = self._allocate(done, size + self._reserve + ahead)
            if error is None:
                return size, None
            if error.errno not in _FULL:
                # No fallocate() here: only the write itself shows whether there is room.
                if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.EINVAL}:
                    self._reserve = 0
                return want, None
            if ahead:
                ahead = 0
                continue
            first = first or error
            size = 0 if whole else size // 2 // self._entry_size * self._entry_size
        return 0, first

    def _allocate(self, done: int, length: int) -> OSError | None:
        while True:
            try:
                self._calls.fallocate(self._fd, self._end + done, length)
            except InterruptedError:
                continue
            except OSError as error:
                return error
            self._allocated = self._end + done + length
            return None

    def _cut_back(self) -> OSError | None:
        """Truncate the file to its whole entries. That frees the reserve, so reserve again."""
        if not self.regular:
            raise FileError("the output broke within an entry and cannot be cut back")
        self._allocated = 0  # ftruncate() frees it
        try:
            self._calls.ftruncate(self._fd, self._end)
            self._calls.lseek(self._fd, self._end, os.SEEK_SET)
        except OSError as error:
            return error
        if self._ragged and self._reserve:
            with contextlib.suppress(OSError):
                self._calls.fallocate(self._fd, self._end, self._reserve)
        self._ragged = False
        return None
