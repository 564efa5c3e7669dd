# SPDX-License-Identifier: Apache-2.0
"""Opens files that nobody but root and this user can change.

The path is opened folder by folder, each below the descriptor of the one before, and each is
checked by its descriptor. So what was checked is what is read.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path

from formats.base.errors import FileError, PrivilegeError

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


RISK = "what it holds would run in the kernel"
ELSEWHERE = "copy the schema to where only root writes, /etc/tcpkmon say"


def open_trusted(path: Path, risk: str = RISK, elsewhere: str = ELSEWHERE) -> int:
    """A descriptor to read the file `path` (absolute, without ..); the caller closes it.

    PrivilegeError unless only root and this user can change it and each folder above it. A sticky
    folder like /tmp, where others can add files but not replace this user's, may be above the
    file's own folder, but not be that folder: files are looked up there by name. risk: why that
    matters; elsewhere: what to do; both for the error. FileError.
    """
    opened = None
    try:
        for each in (*reversed(path.parents), path):
            below = os.open(each.name or "/", _LOOK, dir_fd=opened)
            if opened is not None:
                os.close(opened)
            opened = below
            _check(each, path, os.fstat(opened), risk, elsewhere)
        return os.open(f"/proc/self/fd/{opened}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise FileError(f"cannot read {each}: {reason}") from error
    finally:
        if opened is not None:
            os.close(opened)


def _check(each: Path, path: Path, status: os.stat_result, risk: str, elsewhere: str) -> None:
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        real = os.path.realpath(path)
        raise PrivilegeError(f"{each} is a symbolic link, which is not followed", f"use {real}")
    if each != path and not stat.S_ISDIR(mode):
        raise PrivilegeError(f"{each} is no folder")
    if each == path and not stat.S_ISREG(mode):
        raise PrivilegeError(f"{each} is no regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise PrivilegeError(
            f"{each} belongs to {_user(status.st_uid)}, and {risk}",
            _remedy(each, path, f"chown root: {each}", elsewhere),
        )
    is_above = each not in (path, path.parent)
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (is_above and mode & stat.S_ISVTX):
        raise PrivilegeError(
            f"{each} may be written by others than root, and {risk}",
            _remedy(each, path, "" if mode & stat.S_ISVTX else f"chmod go-w {each}", elsewhere),
        )


def _remedy(each: Path, path: Path, command: str, elsewhere: str) -> str:
    if not command:
        return elsewhere
    return command if each in (path, path.parent) else f"{command}, or {elsewhere}"


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"
