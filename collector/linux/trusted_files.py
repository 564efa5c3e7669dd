# SPDX-License-Identifier: Apache-2.0
"""Opens files that nobody but root and this user can change, and folders that no other chose.

The path is opened folder by folder, each below the descriptor of the one before, and each is
checked by its descriptor. So what was checked is what is read.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path, PurePath

from tcpkmon.formats.base.errors import FileError, PrivilegeError

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LINKS = 40

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


def open_folder(path: str, trusted: Iterable[int] = ()) -> int:
    """A descriptor of a folder. OSError; FileError for a link that another user may have put there.

    For root alone: a link is followed only where none but root and the users `trusted` may give
    names. A sticky folder like /tmp has links of theirs.
    """
    if os.geteuid() != 0:
        return os.open(path, _FOLDER)
    names = deque(PurePath(path).parts)
    users = {0, *trusted}
    with ExitStack() as stack:
        at = os.open("/" if path.startswith("/") else ".", _FOLDER)
        stack.callback(lambda: os.close(at))
        links = 0
        while names:
            name = names.popleft()
            below = os.open(name, _LOOK, dir_fd=at)
            link, above = os.fstat(below), os.fstat(at)
            if stat.S_ISLNK(link.st_mode):
                target = os.readlink("", dir_fd=below)
                os.close(below)
                others = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                may = above.st_uid in users and (
                    not others or (above.st_mode & stat.S_ISVTX and link.st_uid in users)
                )
                if not may:
                    why = f"{name} in {path} is a symbolic link in a folder that others may write"
                    raise FileError(why, f"name the folder itself: {os.path.realpath(path)}")
                if (links := links + 1) > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if link.st_dev != os.stat("/proc").st_dev:
                    names.extendleft(reversed(PurePath(target).parts))
                    continue
                # The kernel's own links: /proc/PID/fd/N may lead to another mount namespace.
                below = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(".", _FOLDER, dir_fd=at)


def open_no_link(path: str, flags: int, trusted: Iterable[int] = ()) -> int:
    """Open a file or folder that is no link, in a folder as open_folder() opens it. OSError,
    FileError."""
    above, name = os.path.split(path.rstrip("/") or "/.")
    folder = open_folder(above or ".", trusted)
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
