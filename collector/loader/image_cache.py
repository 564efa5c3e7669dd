# SPDX-License-Identifier: Apache-2.0
"""A folder of files that nobody else can have changed: the cache of images and kernel's answers.

The folder and each file are opened without following symbolic links. They must belong to this
process's user, and others must have no write permission; else OSError.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

CACHE_FOLDER = "/var/cache/tcpkmon"


def cache_folder() -> str:
    """/var/cache/tcpkmon, or the value of TCPKMON_CACHE."""
    return os.environ.get("TCPKMON_CACHE") or CACHE_FOLDER


class PrivateFolder:
    """Small files NAME`suffix`. The first write() makes the folder, with mode 0700.

    The `kept` files that were written or read last stay; others are removed if their name ends in
    `suffix`.
    """

    def __init__(
        self, path: str, suffix: str, kept: int = 256, size_limit_bytes: int = 16 << 20
    ) -> None:
        self.path = path
        self.suffix = suffix
        self.kept = kept
        self.size_limit_bytes = size_limit_bytes

    def read(self, name: str) -> bytes:
        """The file's bytes; OSError where there is none or it cannot be trusted."""
        name += self.suffix
        with self._opened() as folder:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(file, "rb") as stream:
                _check(stream.fileno(), name, stat.S_ISREG)
                with contextlib.suppress(OSError):  # nothing can be written there
                    os.utime(stream.fileno())
                return stream.read(self.size_limit_bytes)

    def write(self, name: str, content: bytes) -> None:
        """Writes the whole file or nothing, and removes all but the last `kept` files."""
        name += self.suffix
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        with self._opened() as folder:
            temporary = f".{os.getpid()}.{name}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            file = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(file, "wb") as stream:
                    stream.write(content)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            self._prune(folder)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self.path, flags)
        try:
            _check(folder, self.path, stat.S_ISDIR)
            yield folder
        finally:
            os.close(folder)

    def _prune(self, folder: int) -> None:
        ages = []
        for name in os.listdir(folder):
            if not name.endswith(self.suffix):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                ages.append((status.st_mtime_ns, name))
        for _, name in sorted(ages, reverse=True)[self.kept :]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def _check(file: int, name: str, is_kind: Callable[[int], bool]) -> None:
    """PermissionError unless the open file is of that kind, is ours, and only we may write it."""
    status = os.fstat(file)
    if not is_kind(status.st_mode):
        raise PermissionError(f"{name} is no plain file or folder")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{name} belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{name} may be written by others")
