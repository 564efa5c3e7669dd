# SPDX-License-Identifier: Apache-2.0
"""Moves what a capture wrote in memory to its folder on the disk; a process of its own.

    python -m tcpkmon.collector.daemon.moving SOURCE FOLDER

A file is copied under a hidden name, put on the disk, and gets its name; then that in memory goes.
So a file of this name is whole, and one that is not there yet is in memory, wherever it is killed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from tcpkmon.collector.linux.trusted_files import open_folder
from tcpkmon.collector.writer.own_files import append_line
from tcpkmon.collector.writer.segment_folder import rename_new
from tcpkmon.formats.base.cli import run, say
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import INDEX, parse_name

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def move(source: str, folder: str) -> list[str]:
    """Move the sealed files, and the lines of the index; their names. OSError, FileError.

    Where the folder has a file of one of these names (a machine without a clock of its own begins
    at the same time again), all go into a folder in it, which has the boot's name.
    """
    found = [each for each in map(parse_name, os.listdir(source)) if each is not None]
    names = [each.name for each in sorted(found) if each.sealed]
    target = Path(folder)
    if any(os.path.lexists(target / name) for name in names):
        target /= f"boot-{_BOOT.read_text()[:8]}"
    target.mkdir(0o750, parents=True, exist_ok=True)
    place = open_folder(str(target))
    try:
        for name in names:
            _copy(Path(source, name), name, place)
            rename_new(place, _hidden(name), name)
            os.fsync(place)
            _remove(Path(source, name))
        index = Path(source, INDEX)
        if index.exists():
            for line in index.read_text().splitlines():
                append_line(place, json.loads(line))
            index.unlink()
    finally:
        os.close(place)
    with suppress(OSError):  # what is not sealed is still there
        Path(source).rmdir()
    say(f"tcpkmon daemon: {len(names)} files of the time before the disks are in {target}")
    return names


def _hidden(name: str) -> str:
    return f".{name}.moving"


def _copy(path: Path, name: str, place: int) -> None:
    """Copy a file, or a log's folder, with owner and mode, and put it on the disk."""
    hidden = _hidden(name)
    _clear(hidden, place)
    if not path.is_dir():
        _copy_file(path, hidden, place)
        return
    os.mkdir(hidden, 0o700, dir_fd=place)
    inside = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    try:
        for one in sorted(path.iterdir()):
            _copy_file(one, one.name, inside)
        like = path.stat()
        os.fchown(inside, like.st_uid, like.st_gid)
        os.fchmod(inside, like.st_mode & 0o7777)
        os.fsync(inside)
    finally:
        os.close(inside)


def _copy_file(path: Path, name: str, place: int) -> None:
    fd = os.open(name, _NEW, 0o600, dir_fd=place)
    with path.open("rb") as old, os.fdopen(fd, "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        like = os.fstat(old.fileno())
        if os.fstat(fd).st_size != like.st_size:
            raise FileError(f"{path} was written while it was copied")
        os.fchown(fd, like.st_uid, like.st_gid)
        os.fchmod(fd, like.st_mode & 0o7777)
        os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.fsync(fd)


def _clear(name: str, place: int) -> None:
    """Remove what a process left that was killed."""
    try:
        os.unlink(name, dir_fd=place)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in {errno.EISDIR, errno.EPERM}:
            raise
        shutil.rmtree(f"/proc/self/fd/{place}/{name}")  # Python 3.10 has no dir_fd


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def main(words: Sequence[str] | None = None) -> None:

    @click.command()
    @click.argument("source")
    @click.argument("folder")
    def command(source: str, folder: str) -> int:
        try:
            move(source, folder)
        except OSError as error:
            raise FileError(f"{source} cannot be moved to {folder}: {error.strerror}") from error
        return 0

    sys.exit(run(command, words, prog="tcpkmon daemon"))


if __name__ == "__main__":
    main()
