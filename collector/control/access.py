# SPDX-License-Identifier: Apache-2.0
"""The sockets of a collector: their folder, their permissions, and who connected."""

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

from tcpkmon.collector.linux.syscalls import call_libc
from tcpkmon.formats.base.errors import FileError, PrivilegeError, TcpkmonError, UsageError

FOLDER = "/run/tcpkmon"
_NAME = re.compile(r"([1-9][0-9]{0,9})\.(sock|status|owner|name)", re.ASCII)
_MOST_NAME_BYTES = 512
_NAMELESS = "capture"
_BACKLOG = 16
_SO_PEERGROUPS = 59
_FEW_GROUPS, _MOST_GROUPS = 64, 65536  # NGROUPS_MAX


@dataclass(frozen=True)
class Peer:
    """The process that connected, with the identity that it had then."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def is_owner(self) -> bool:
        """Whether it is root, or has the collector's user."""
        return self.uid in {0, os.geteuid()}

    def may_control(self, gid: int | None) -> bool:
        """Whether it is root, has the collector's user, or is in the group `gid`."""
        return self.is_owner or gid in {self.gid, *self.groups}


def control_folder() -> Path:
    """/run/tcpkmon, or the value of TCPKMON_RUN."""
    return Path(os.environ.get("TCPKMON_RUN") or FOLDER)


def socket_pid(name: str) -> int | None:
    """The PID in the name of a control socket; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and match[2] == "sock" else None


def exists(pid: int) -> bool:
    """Whether a process has that PID."""
    return Path("/proc", str(pid)).exists()


def socket_path(folder: Path) -> Path:
    """Where this process's socket is."""
    return folder / f"{os.getpid()}.sock"


def daemon_path() -> Path:
    """Where the daemon's socket is."""
    return control_folder() / "daemon.sock"


def status_path(control: Path) -> Path:
    """Where the socket is that tells everybody the status, beside a control socket."""
    return control.with_suffix(".status")


def owner_path(control: Path) -> Path:
    """Where root and the collector's user ask, if a group may ask at a control socket."""
    return control.with_suffix(".owner")


def name_path(control: Path) -> Path:
    """Where the capture's name is, for everybody, beside a control socket."""
    return control.with_suffix(".name")


def own_name(name: str | None, output: object) -> str:
    """The name of a capture: what the daemon calls it, else the last part of its output's path."""
    return str(name or Path(str(output or _NAMELESS)).name or _NAMELESS)


def write_name(control: Path, name: str) -> None:
    """Put the capture's name beside its control socket. FileError."""
    path = name_path(control)
    with suppress(FileNotFoundError):
        path.unlink()  # of a dead process with the same PID
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, os.fsencode(name)[:_MOST_NAME_BYTES])
        finally:
            os.close(fd)
    except OSError as error:
        raise _explained(error, path) from error


def read_name(control: Path) -> tuple[str, int] | None:
    """The capture's name, and when it was given [ns]; None: there is none, as of older versions."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name_path(control), flags)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        text = os.read(fd, _MOST_NAME_BYTES).decode(errors="replace")
        return (text, status.st_mtime_ns) if text else None
    except OSError:
        return None
    finally:
        os.close(fd)


def find_group(name: str) -> int:
    """A group's number. UsageError when it does not exist."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {name!r}", f"groupadd --system {name}") from None


def group_name(gid: int) -> str:
    """A group's name, or its number if it has no name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def peer_of(connection: socket.socket) -> Peer:
    """Who connected, by SO_PEERCRED and SO_PEERGROUPS. OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("=iII", raw)
    return Peer(pid, uid, gid, _groups_of(connection.fileno(), _FEW_GROUPS))


def _groups_of(fd: int, most: int) -> tuple[int, ...]:
    # Python's getsockopt returns 1024 bytes at most.
    groups = ctypes.create_string_buffer(4 * most)
    size = ctypes.create_string_buffer(struct.pack("=I", len(groups)), 4)
    try:
        call_libc("getsockopt", fd, socket.SOL_SOCKET, _SO_PEERGROUPS, groups, size)
    except OSError as error:
        if error.errno != errno.ERANGE or most == _MOST_GROUPS:
            raise
        return _groups_of(fd, _MOST_GROUPS)
    count = struct.unpack("=I", size)[0] // 4
    return struct.unpack_from(f"={count}I", groups)


def listen(folder: Path, gid: int | None) -> tuple[Path, socket.socket]:
    """This process's socket in the folder, listening; mode 0660 with the group, else 0600.

    Makes the folder if it does not exist. Only this user may own it and write to it. Removes the
    sockets of dead collectors. FileError or PrivilegeError.
    """
    path = socket_path(folder)
    listener = listen_at(path, 0o660 if gid is not None else 0o600, gid)
    return path, listener


def listen_at(path: Path, mode: int = 0o600, gid: int | None = None) -> socket.socket:
    """A socket at a path in the folder of sockets, listening; see listen()."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        prepare_folder(path.parent)
        _bind(listener, path, mode, gid)
    except OSError as error:
        listener.close()
        raise _explained(error, path) from error
    except TcpkmonError:
        listener.close()
        raise
    return listener


def _bind(listener: socket.socket, path: Path, mode: int, gid: int | None = None) -> None:
    listener.setblocking(False)
    # Before bind(), because the new file gets the socket's mode: nobody else can connect.
    os.fchmod(listener.fileno(), 0o600)
    with suppress(FileNotFoundError):
        path.unlink()  # of a dead process with the same PID
    listener.bind(os.fspath(path))
    if gid is not None:
        os.chown(path, -1, gid, follow_symlinks=False)
    os.chmod(path, mode)
    listener.listen(_BACKLOG)


def prepare_folder(folder: Path) -> None:
    """Make the folder if it does not exist, and remove the sockets of dead collectors.

    FileError where others may write to it, OSError.
    """
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
        match = _NAME.fullmatch(name)
        pid = int(match[1]) if match else None
        if pid is None or exists(pid):
            continue
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_ours = stat.S_ISREG if match and match[2] == "name" else stat.S_ISSOCK
            if is_ours(status.st_mode) and status.st_uid == os.geteuid():
                os.unlink(name, dir_fd=folder)


def _explained(error: OSError, path: Path) -> TcpkmonError:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return PrivilegeError(f"{path}: {error.strerror}", "run it as root")
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return FileError(f"{path.parent}: not a folder", "remove it")
    return FileError(f"{path}: {error.strerror or error}")
