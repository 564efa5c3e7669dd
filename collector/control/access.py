# SPDX-License-Identifier: Apache-2.0
"""Where collectors listen and who may speak to them: under collector/control/server.py."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import re
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from formats.base.errors import FileError, PrivilegeError, TcpkmonError, UsageError

FOLDER = "/run/tcpkmon"
_NAME = re.compile(r"([1-9][0-9]{0,9})\.sock", re.ASCII)
_BACKLOG = 16
_SO_PEERGROUPS = 59
_MOST_GROUPS = 65536  # NGROUPS_MAX
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as it was when it connected."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]

    def may_control(self, gid: int | None) -> bool:
        """Whether it is root, the collector's own user, or in the group `gid`."""
        return self.uid in {0, os.geteuid()} or gid in {self.gid, *self.groups}


def control_folder() -> Path:
    """/run/tcpkmon, or what TCPKMON_RUN names."""
    return Path(os.environ.get("TCPKMON_RUN") or FOLDER)


def socket_pid(name: str) -> int | None:
    """The process that a socket of this name belongs to; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def exists(pid: int) -> bool:
    """Whether there is a process of that number."""
    return Path("/proc", str(pid)).exists()


def find_group(name: str) -> int:
    """A group's number. Raises UsageError."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {name!r}", f"groupadd --system {name}") from None


def group_name(gid: int) -> str:
    """A group's name, or its number when it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def peer_of(connection: socket.socket) -> Peer:
    """Who connected, by SO_PEERCRED and SO_PEERGROUPS. OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("=iII", raw)
    # Python's getsockopt takes 1024 bytes at most.
    groups = (ctypes.c_uint32 * _MOST_GROUPS)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    fd, level = connection.fileno(), socket.SOL_SOCKET
    if _libc.getsockopt(fd, level, _SO_PEERGROUPS, groups, ctypes.byref(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return Peer(pid, uid, gid, tuple(groups[: size.value // 4]))


def listen(folder: Path, gid: int | None) -> tuple[Path, socket.socket]:
    """This process's socket in the folder, 0660 with that group (None: root's alone), listening.

    The folder is made if it is not there; it must be this user's, and only this user's to write.
    Sockets that dead collectors left in it go. Raises FileError or PrivilegeError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = folder / f"{os.getpid()}.sock"
    try:
        _prepare(folder)
        listener.setblocking(False)
        # Before bind, so that nobody gets in meanwhile: the new file takes the socket's mode.
        os.fchmod(listener.fileno(), 0o600)
        with suppress(FileNotFoundError):
            path.unlink()  # a dead process's: the number is ours now
        listener.bind(os.fspath(path))
        if gid is not None:
            os.chown(path, -1, gid, follow_symlinks=False)
        os.chmod(path, 0o660 if gid is not None else 0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _explained(error, path) from error
    except TcpkmonError:
        listener.close()
        raise
    return path, listener


def _prepare(folder: Path) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755, follow_symlinks=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise FileError(
                f"{folder}: others may write there, so no control socket goes there",
                "remove it, or give it to root with the mode 0755",
            )
        _remove_stale(opened)
    finally:
        os.close(opened)


def _remove_stale(folder: int) -> None:
    for name in os.listdir(folder):
        pid = socket_pid(name)
        if pid is None or exists(pid):
            continue
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                os.unlink(name, dir_fd=folder)


def _explained(error: OSError, path: Path) -> TcpkmonError:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return PrivilegeError(f"{path}: {error.strerror}", "run it as root")
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return FileError(f"{path.parent}: not a folder", "remove it")
    return FileError(f"{path}: {error.strerror or error}")
