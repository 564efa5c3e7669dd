# SPDX-License-Identifier: Apache-2.0
"""Opens what tcpkmon made in a folder that another user may write: it, and nothing in its place.

A file is opened once, and what is checked and read is that descriptor: no link, no pipe, and no
other user's file under another name.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tcpkmon.collector.writer.output_file import MODE, Owner, give_to, trusted_users
from tcpkmon.formats.base.segments import INDEX

Identity = tuple[int, int]
"""Device and inode: those of a file while somebody has it open, or it has a name."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TRIES = 3
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def identity(status: os.stat_result) -> Identity:
    """Of what fstat() tells."""
    return status.st_dev, status.st_ino


def others_may_write(folder: os.stat_result, trusted: Iterable[int] = ()) -> bool:
    """Whether another user than root, this one and those `trusted` may give names in a folder."""
    return folder.st_uid not in {0, os.geteuid(), *trusted} or bool(folder.st_mode & _OTHERS)


def swappable(path: str, trusted: Iterable[int] = ()) -> str | None:
    """The folder, `path` or one above it, in which another user may put something else in its
    place; None where nobody but root, this user and those `trusted` can. OSError.

    In a sticky folder like /tmp others cannot rename what is root's.
    """
    real = os.path.realpath(path)
    at = real
    while True:
        status = os.stat(at)
        is_sticky = at != real and status.st_uid in {0, *trusted} and status.st_mode & stat.S_ISVTX
        if not is_sticky and others_may_write(status, trusted):
            return at
        if at == os.path.dirname(at):
            return None
        at = os.path.dirname(at)


def is_own(
    found: os.stat_result, folder: os.stat_result, users: Collection[int] = ()
) -> bool:
    """Whether tcpkmon may have made a file or folder that is in `folder`.

    Where others may write there, it belongs to this user, to who called sudo, or to one of `users`;
    a file has no other name, and others may not write in a folder.
    """
    if not others_may_write(folder):
        return True
    if found.st_uid not in {os.geteuid(), *trusted_users(), *users}:
        return False
    return not found.st_mode & _OTHERS if stat.S_ISDIR(found.st_mode) else found.st_nlink == 1


def open_own(
    name: str, folder: int, known: Identity | None = None, *, is_folder: bool = False,
    users: Collection[int] = (),
) -> int:  # fmt: skip
    """A descriptor to read a file, or a folder, of a folder (a descriptor). OSError.

    known: it is this one. Without that it is one that is_own().
    """
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{name} is a symbolic link") from error
        raise
    try:
        found = os.fstat(fd)
        why = ""
        if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(found.st_mode):
            why = f"{name} is no ordinary {'folder' if is_folder else 'file'}"
        elif known is not None:
            if identity(found) != known:
                why = f"another file has the name {name} now"
        elif not is_own(found, os.fstat(folder), users):
            why = f"{name} is another user's, or has another name too, in a folder of others"
        if why:
            raise OSError(errno.EPERM, why)
    except OSError:
        os.close(fd)
        raise
    return fd


def has_name(name: str, folder: int, known: Identity) -> bool:
    """Whether this file has that name now."""
    try:
        return identity(os.stat(name, dir_fd=folder, follow_symlinks=False)) == known
    except FileNotFoundError:
        return False


def append_line(folder: int, line: Mapping[str, Any], owner: Owner | None = None) -> None:
    """Add a line to the folder's index. OSError; also for a file that has another name, too, where
    others may give it that.

    Where a shorter index got the name meanwhile, the line is added to that one.
    """
    for _ in range(_TRIES):
        try:
            fd = os.open(INDEX, _APPEND | os.O_CREAT | os.O_EXCL, MODE, dir_fd=folder)
            give_to(fd, owner)
        except FileExistsError:
            fd = os.open(INDEX, _APPEND, dir_fd=folder)
        try:
            found = os.fstat(fd)
            linked = found.st_nlink > 1 and others_may_write(os.fstat(folder))
            if not stat.S_ISREG(found.st_mode) or linked:
                raise OSError(errno.EINVAL, f"{INDEX} is no ordinary file, or has another name")
            os.write(fd, json.dumps(line).encode() + b"\n")
            if has_name(INDEX, folder, identity(found)):
                return
        finally:
            os.close(fd)
