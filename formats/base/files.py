# SPDX-License-Identifier: Apache-2.0
"""Opens input files, and creates output files: complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import stat
import sys
import tempfile
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import DamagedError, FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.limits import (
    FEW_UNPACKED_BYTES,
    MOST_HOLE_BYTES,
    MOST_UNPACKED_BYTES,
    MOST_UNPACKED_TIMES,
)

ZSTD = b"\x28\xb5\x2f\xfd"
"""With it begins what zstd compressed."""
_TABLES = {b"PAR1": "a Parquet file", b"ARRO": "an Arrow file",
           b"\xff\xff\xff\xff": "an Arrow stream"}  # fmt: skip
"""What begins with these is no capture. Until experiments-2026-11 some were."""
_BLOCK_BYTES = 1 << 20
_NAME_BYTES = 200
"""Of a file's name in that of a temporary one: 255 are the most."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class InputFile(Closing):
    """A regular file, open for reading. Raises FileError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file = open_plain(path)
            self._finalizer = weakref.finalize(self, self._file.close)
            self._size = os.fstat(self._file.fileno()).st_size
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FileError(f"cannot open {self.path}: {reason}") from error

    def close(self) -> None:
        self._finalizer()

    def read_at(self, at: int, size: int) -> bytes:
        """So many bytes, fewer at the end of the file."""
        parts = []
        try:
            while size and (part := os.pread(self._file.fileno(), size, at)):
                parts.append(part)
                at += len(part)
                size -= len(part)
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextlib.contextmanager
    def reading_header(self) -> Iterator[None]:
        """An error of the block closes the file; a DamagedError names it."""
        try:
            yield
        except DamagedError as error:
            self.close()
            raise DamagedError(f"{self.path}: {error.message}", error.hint) from error
        except TcpkmonError:
            self.close()
            raise


def open_plain(path: str | os.PathLike[str]) -> FileIO:
    """A file, open for reading; one that was archived as a file that has what is in it.

    That one is in the folder for temporary files, and has no name but a number. OSError, FileError
    for what is no regular file (a pipe is not waited for), DamagedError; UsageError for a table.
    """
    file = _open_regular(path)
    try:
        begin = os.pread(file.fileno(), 4, 0)
        _refuse_table(begin, path)
        if begin != ZSTD:
            return file
        plain = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
        _allow_more(plain.fileno())
        try:
            for block in _unpack(file, path):
                view = memoryview(block)
                while view:
                    view = view[plain.write(view) or 0 :]
        except BaseException:
            plain.close()
            raise
        file.close()
        plain.seek(0)
        return plain
    except BaseException:
        file.close()
        raise


def _allow_more(fd: int) -> None:
    """A reader holds one descriptor for each archive: more than the 1,024 that are usual, if the
    process may have more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if fd > soft // 2 and soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_unpacked(file: FileIO) -> bool:
    """Whether open_plain() made this file: its name is not that of the archive."""
    return isinstance(file.name, int)


def read_head(path: str | os.PathLike[str], size: int) -> bytes:
    """At most so many bytes from the beginning of what open_plain() opens; no more is unpacked.

    OSError, FileError, DamagedError; UsageError for a table.
    """
    with _open_regular(path) as file:
        begin = os.pread(file.fileno(), size, 0)
        _refuse_table(begin[:4], path)
        if begin[:4] != ZSTD:
            return begin
        data = b""
        for block in _unpack(file, path):
            data += block
            if len(data) >= size:
                break
        return data[:size]


def table_error(path: str | os.PathLike[str], what: str) -> UsageError:
    """The error for a table in the place of a capture."""
    hint = (
        "name the capture itself; tcpkmon of the tag experiments-2026-11 (a475560f) reads archives "
        "as Parquet and Arrow streams that earlier versions wrote"
    )
    return UsageError(f"{os.fspath(path)} is {what}, not a capture", hint)


def _refuse_table(begin: bytes, path: str | os.PathLike[str]) -> None:
    if (what := _TABLES.get(begin)) is not None:
        raise table_error(path, what)


def _check_unpacked(size: int, packed: int, path: object) -> None:
    """DamagedError if an archive of `packed` bytes holds `size` bytes, more than it may."""
    most = min(MOST_UNPACKED_BYTES, max(FEW_UNPACKED_BYTES, packed * MOST_UNPACKED_TIMES))
    if size > most:
        raise DamagedError(f"{path} has {packed} bytes, but holds more than {most}")


def _open_regular(path: str | os.PathLike[str]) -> FileIO:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FileError(f"cannot read {os.fspath(path)}: not a regular file")
    file = FileIO(path, "rb")
    try:
        _refuse_holes(file.fileno(), path)
    except BaseException:
        file.close()
        raise
    return file


def _refuse_holes(fd: int, path: str | os.PathLike[str]) -> None:
    """DamagedError for a sparse file: it is as long as it likes to be, and takes no room."""
    size, at, absent, whole = os.fstat(fd).st_size, 0, 0, 0
    if size <= MOST_HOLE_BYTES:
        return
    with contextlib.suppress(OSError):  # it became shorter meanwhile
        while at < size and absent <= MOST_HOLE_BYTES:
            begin = os.lseek(fd, at, os.SEEK_HOLE)
            try:
                at = os.lseek(fd, begin, os.SEEK_DATA)
            except OSError:  # nothing follows
                at = size
            whole = whole or begin
            absent += max(at - begin, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    if absent > MOST_HOLE_BYTES:
        raise DamagedError(
            f"{path} has holes of {absent:,} bytes: a copy, or the file system, lost a part of it",
            f"repair what is before them: truncate -s {whole} COPY; tcpkmon repair COPY -o NEW",
        )  # fmt: skip


def _unpack(file: FileIO, path: str | os.PathLike[str]) -> Iterator[bytes]:
    """What zstd compressed in a file, a block after the other."""
    from tcpkmon.formats.base.arrow import import_pyarrow

    pyarrow = import_pyarrow()
    size, packed_bytes = 0, os.fstat(file.fileno()).st_size
    try:
        with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd") as packed:
            while block := packed.read(_BLOCK_BYTES):
                size += len(block)
                _check_unpacked(size, packed_bytes, path)
                yield bytes(block)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DamagedError(f"{path}: what zstd compressed is damaged") from error


def already_there(path: str | os.PathLike[str], hint: str = "--force overwrites it") -> FileError:
    """The error for a file that must not be overwritten."""
    return FileError(f"{path} is there already", hint)


@contextlib.contextmanager
def create_file(
    path: str | os.PathLike[str],
    force: bool = False,
    *,
    mode: int | None = None,
    hint: str = "--force overwrites it",
    folder: int | None = None,
) -> Iterator[BinaryIO]:
    """Open a new file for writing. After an error in the `with` block it does not exist.

    force: replace an existing file; otherwise that is a FileError with this hint. mode: the
    permissions, and the file is synced to disk; None: permissions by the umask, no sync. folder: a
    descriptor of the folder that `path` names, which another user may replace meanwhile. An OSError
    in the block becomes a FileError.
    """
    path = Path(path)
    name = path.name
    with contextlib.ExitStack() as stack:
        try:
            if folder is None:
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, folder)
            if force:
                _check_replaceable(path, folder)
                name = hidden_name(path.name, secrets.token_hex(6))
            descriptor = os.open(name, _NEW, 0o666 if mode is None else mode, dir_fd=folder)
        except FileExistsError as error:
            raise already_there(path, hint) from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FileError(f"{path} cannot be written: {reason}") from error
        try:
            with os.fdopen(descriptor, "wb") as out:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                yield out
                if mode is not None:
                    out.flush()
                    os.fsync(descriptor)
            if force:
                os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            if mode is not None:
                os.fsync(folder)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                raise FileError(f"{path} cannot be written: {reason}") from error
            raise


def hidden_name(name: str, tag: str) -> str:
    """The name of a temporary file beside this one, in no more bytes than a name may have."""
    return f".{os.fsencode(name)[:_NAME_BYTES].decode(errors='ignore')}.{tag}"


def _check_replaceable(path: Path, folder: int) -> None:
    """FileError for what is there and is no regular file."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path.name, dir_fd=folder).st_mode):
            raise FileError(f"{path} is no ordinary file", "choose another name")


@contextlib.contextmanager
def file_or_stdout(output: Path | None, force: bool = False) -> Iterator[BinaryIO]:
    """Standard output, or what create_file() makes."""
    if output is not None:
        with create_file(output, force) as out:
            yield out
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()
