# SPDX-License-Identifier: Apache-2.0
"""Turns sealed segments into Parquet or compresses them. The original goes when the new file is
verified and on the disk."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from collector.writer.segment_folder import append_line, rename_new
from formats.base.errors import TcpkmonError
from formats.base.segments import hidden

BLOCK_BYTES = 1 << 20
ENDINGS = {"parquet": ".parquet", "zst": ".zst"}


class Archive:
    """form: of ENDINGS; "" leaves segments as they are. folder: a descriptor of their folder.

    Make it before its process gives up its privileges: it imports what it needs.
    """

    def __init__(self, form: str, folder: int) -> None:
        self._form = form
        self._folder = folder
        if form:
            import pyarrow.parquet  # noqa: F401

            import formats.base.restore
            import formats.export.table_file
            import formats.psc.archive
            import formats.verify  # noqa: F401

    def take(self, name: str) -> str:
        """Archive a segment; the name that it has now: the old one where that failed."""
        if not self._form:
            return name
        new = name + ENDINGS[self._form]
        try:
            before = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            with self._create(new, before) as out:
                line = self._pack(name, out) if self._form == "zst" else self._export(name, out)
            os.unlink(name, dir_fd=self._folder)
        except (OSError, TcpkmonError) as error:
            print(f"collect: {name} is not archived: {error}", file=sys.stderr, flush=True)
            return name
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            append_line(self._folder, {"time": now, "what": "archived", "name": new, **line})
        return new

    @contextmanager
    def _create(self, name: str, like: os.stat_result) -> Iterator[BinaryIO]:
        """A new file, which gets its name when nothing went wrong; with `like`'s owner and mode."""
        part, folder = hidden(name), self._folder
        with suppress(FileNotFoundError):  # of a keeper that was killed
            os.unlink(part, dir_fd=folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb+") as out:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
                yield out
                out.flush()
                os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
                if like.st_uid != os.geteuid():
                    # The last of these: without CAP_FOWNER the others need the own file.
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fsync(fd)
            rename_new(folder, part, name)
            with suppress(OSError):
                os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise

    def _open(self, name: str) -> BinaryIO:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        return os.fdopen(fd, "rb")

    def _pack(self, name: str, out: BinaryIO) -> dict[str, Any]:
        """Compress it, and compare what comes out again."""
        import pyarrow

        before, after = hashlib.sha256(), hashlib.sha256()
        file = pyarrow.PythonFile(_Open(out), "w")
        with self._open(name) as source, pyarrow.CompressedOutputStream(file, "zstd") as packed:
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

    def _export(self, name: str, out: BinaryIO) -> dict[str, Any]:
        """Write its snapshots as Parquet, and make the file again of them. It is verified first."""
        from formats.base.restore import restore
        from formats.export.table_file import write_parquet
        from formats.psc.archive import describe
        from formats.psc.reader import open_capture
        from formats.verify import DOES_NOT_ADD_UP, verify_file

        path = Path(f"/proc/self/fd/{self._folder}", name)
        report = verify_file(path)
        if report.exit_code == DOES_NOT_ADD_UP:
            raise OSError("it does not add up, so it stays as it is")
        with open_capture(path) as capture:
            records = capture.for_export("parquet")
            metadata = describe(capture, records)
            write_parquet(records, out, metadata)
        with self._nameless(name) as again, FileIO(out.fileno(), "rb", closefd=False) as file:
            restore(file, path, again)
        part = report.part.as_json() if report.part is not None else {}
        return {**part, "records": report.totals.in_file, "exit_code": report.exit_code,
                "bytes": os.fstat(out.fileno()).st_size}  # fmt: skip

    def _nameless(self, name: str) -> FileIO:
        """A new file in the folder that goes when it is closed: what comes out of an archive."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        name = f".{name}.again"
        with suppress(FileNotFoundError):  # of a keeper that was killed
            os.unlink(name, dir_fd=self._folder)
        fd = os.open(name, flags, 0o600, dir_fd=self._folder)
        os.unlink(name, dir_fd=self._folder)
        return FileIO(fd, "rb+")


class _Open:
    """A file that pyarrow does not close."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read, self.write, self.seek = file.read, file.write, file.seek
        self.tell, self.flush = file.tell, file.flush

    def close(self) -> None:
        self.flush()
