# SPDX-License-Identifier: Apache-2.0
"""Compresses sealed segments. The original goes when the new file is verified and on the disk.

The segment is opened once, by open_own(): what is read, and whose owner and mode the archive gets,
is that descriptor. So nobody can have a file read that he put in its place.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from tcpkmon.collector.writer.own_files import Identity, append_line, has_name, identity, open_own
from tcpkmon.collector.writer.segment_folder import keep_from_repair, rename_new
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.segments import hidden, parse_name

BLOCK_BYTES = 1 << 20
ENDING = ".zst"
_ALLOCATOR = "JE_ARROW_MALLOC_CONF"


def import_pyarrow() -> None:
    """Import it where privileges are still to be given up: no thread may be left that has them.

    One of its allocators begins one otherwise, when it is loaded.
    """
    given = os.environ.get(_ALLOCATOR)
    os.environ[_ALLOCATOR] = ",".join(filter(None, (given, "background_thread:false")))
    try:
        import pyarrow.parquet  # noqa: F401
    finally:
        if given is None:
            del os.environ[_ALLOCATOR]
        else:
            os.environ[_ALLOCATOR] = given


class Archive:
    """form: "zst"; "" leaves segments as they are. folder: a descriptor of their folder.

    Make it before its process gives up its privileges: it imports what it needs.
    """

    def __init__(self, form: str, folder: int) -> None:
        self._form = form
        self._folder = folder
        if form:
            import_pyarrow()

    def take(self, name: str, known: Identity | None = None) -> str:
        """Archive a segment; the name that it has now: the old one where that failed.

        known: what was sealed; None: see open_own().
        """
        if not self._form:
            return name
        new = name + ENDING
        try:
            with os.fdopen(open_own(name, self._folder, known), "rb") as source:
                before = os.fstat(source.fileno())
                with self._create(new, before) as out:
                    line = self._pack(source, out)
                if has_name(name, self._folder, identity(before)):
                    os.unlink(name, dir_fd=self._folder)
        except BlockingIOError:
            return name
        except (OSError, TcpkmonError) as error:
            if isinstance(error, FileNotFoundError) and self._is_there(new):
                return new  # a keeper that was killed then had done it
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            print(f"collect: {name} is not archived: {why}", file=sys.stderr, flush=True)
            return name
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            append_line(self._folder, {"time": now, "what": "archived", "name": new, **line})
        return new

    def clear(self) -> None:
        """Remove what keepers left that were killed."""
        for part in os.listdir(self._folder) if self._form else []:
            found = parse_name(part)
            if found is not None and found.archived and not found.sealed:
                with suppress(OSError):
                    self._remove(part)

    def _is_there(self, name: str) -> bool:
        with suppress(OSError):
            os.close(open_own(name, self._folder))
            return True
        return False

    def _remove(self, name: str) -> None:
        """Remove an archive that was not finished. OSError where another keeper makes it now, or
        it is none of ours."""
        fd = open_own(name, self._folder)
        try:
            if not keep_from_repair(fd):
                raise BlockingIOError(errno.EAGAIN, "another process makes it now")
            os.unlink(name, dir_fd=self._folder)
        finally:
            os.close(fd)

    @contextmanager
    def _create(self, name: str, like: os.stat_result) -> Iterator[BinaryIO]:
        """A new file, which gets its name when nothing went wrong; with `like`'s owner and mode."""
        part, folder = hidden(name), self._folder
        for old in (part, name):  # of a keeper that was killed
            with suppress(FileNotFoundError):
                self._remove(old)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o600, dir_fd=folder)
        made = identity(os.fstat(fd))
        try:
            with os.fdopen(fd, "wb+") as out:
                keep_from_repair(fd)
                os.fchmod(fd, like.st_mode & 0o777)
                yield out
                out.flush()
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
                if like.st_uid != os.geteuid():
                    # The last of these: without CAP_FOWNER the others need the own file.
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fsync(fd)
                rename_new(folder, part, name)
                if not has_name(name, folder, made):
                    raise OSError(errno.EPERM, f"another file has the name {name} now")
            with suppress(OSError):
                os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                if has_name(part, folder, made):
                    os.unlink(part, dir_fd=folder)
            raise

    def _pack(self, source: BinaryIO, out: BinaryIO) -> dict[str, Any]:
        """Compress it, and compare what comes out again."""
        import pyarrow

        before, after = hashlib.sha256(), hashlib.sha256()
        file = pyarrow.PythonFile(_Open(out), "w")
        with pyarrow.CompressedOutputStream(file, "zstd") as packed:
            while block := source.read(BLOCK_BYTES):
                before.update(block)
                packed.write(block)
        out.flush()
        out.seek(0)
        file = pyarrow.PythonFile(_Open(out), "r")
        with pyarrow.CompressedInputStream(file, "zstd") as unpacked:
            while block := unpacked.read(BLOCK_BYTES):
                after.update(block)
        if before.digest() != after.digest():
            raise OSError("what was compressed does not come out again")
        return {"sha256": before.hexdigest(), "bytes": os.fstat(out.fileno()).st_size}


def tell(text: str) -> None:
    """Print a line of what the processes do that keep files."""
    print(f"collect: files: {text}", file=sys.stderr, flush=True)


class _Open:
    """A file that pyarrow does not close."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read, self.write, self.seek = file.read, file.write, file.seek
        self.tell, self.flush = file.tell, file.flush

    def close(self) -> None:
        self.flush()
