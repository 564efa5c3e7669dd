# SPDX-License-Identifier: Apache-2.0
"""Asks running collectors: finds their sockets and speaks to collector/control/server.py.

Used by the commands status, enable, disable, mark, buffer-size and lowwater.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.control.access import control_folder, exists, group_name, socket_pid
from formats.base.errors import (
    DamagedError,
    KernelError,
    LossError,
    PrivilegeError,
    TcpkmonError,
    UsageError,
)

ANSWER_BYTES = 4 << 20
TIME_LIMIT_S = 30.0
_SHOWN_CHARACTERS = 60
_HOW_TO_START = "start one: sudo collect --schema NAME -o FOLDER"
ERRORS: dict[object, type[TcpkmonError]] = {
    error.exit_code: error for error in (UsageError, LossError, KernelError, DamagedError)
}
"""The kinds of error that a collector's exit code, or its answer, stands for."""


@dataclass(frozen=True)
class Collector:
    """A running collector and the socket it listens at."""

    pid: int
    path: Path

    def command_line(self) -> str:
        """How it was called, as far as it can be seen, cut short; not yet fit for a terminal."""
        with suppress(OSError):
            words = Path("/proc", str(self.pid), "cmdline").read_bytes().split(b"\0")
            text = " ".join(os.fsdecode(word) for word in words if word)
            return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
        return ""


def find_collectors(folder: Path | None = None) -> tuple[Collector, ...]:
    """The collectors that run here, by PID; sockets that dead ones left are passed over."""
    folder = folder or control_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    found = []
    for name in names:
        pid = socket_pid(name)
        if pid is not None and exists(pid) and _listens(folder / name):
            found.append(Collector(pid, folder / name))
    return tuple(sorted(found, key=lambda collector: collector.pid))


def choose(pid: int | None = None, folder: Path | None = None) -> Collector:
    """The collector of that PID, or the only one there is. UsageError when that is not clear."""
    running = find_collectors(folder)
    if pid is not None:
        for collector in running:
            if collector.pid == pid:
                return collector
    if not running:
        which = "no collector runs here" if pid is None else f"no collector runs as process {pid}"
        raise UsageError(which, _HOW_TO_START)
    if pid is None and len(running) == 1:
        return running[0]
    listed = ", ".join(f"{one.pid} ({one.command_line()})" for one in running)
    if pid is not None:
        raise UsageError(f"no collector runs as process {pid}", f"these run: {listed}")
    raise UsageError(f"{len(running)} collectors run here: {listed}", "add --collector PID")


class Client:
    """Asks one collector; each call is a connection of its own.

    Raises PrivilegeError where it does not listen to this user, TcpkmonError when it ends or does
    not answer, and the error that it answers with.
    """

    def __init__(self, collector: Collector, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.collector = collector
        self._time_limit_s = time_limit_s

    def status(self) -> dict[str, Any]:
        """What the collector tells of itself."""
        return self.ask({"op": "status"})

    def enable(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Log these events again; None: log at all."""
        return self.ask({"op": "enable", "events": None if names is None else list(names)})

    def disable(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Do not log these events; None: log nothing."""
        return self.ask({"op": "disable", "events": None if names is None else list(names)})

    def mark(self, number: int) -> dict[str, Any]:
        """Log MARK with this number (0 to 2^64 - 1) and this process's PID."""
        return self.ask({"op": "mark", "number": number})

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        """Give each CPU's ring that size."""
        return self.ask({"op": "buffer-size", "bytes": n})

    def set_low_water(self, percent: int) -> dict[str, Any]:
        """Empty the rings when less than this share of one is free."""
        return self.ask({"op": "lowwater", "percent": percent})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request as collector/control/server.py describes it; its result."""
        name = f"the collector {self.collector.pid}"
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        except PermissionError:
            raise _not_allowed(self.collector) from None
        except TimeoutError:
            limit = f"{self._time_limit_s:g} s"
            raise TcpkmonError(f"{name} did not answer within {limit}") from None
        except OSError as error:
            raise TcpkmonError(f"{name} does not listen: {error.strerror}") from None
        try:
            answer = json.loads(line)
            if answer["ok"] is True:
                result: dict[str, Any] = dict(answer["result"])
                return result
            refusal = answer["error"]
            kind = ERRORS.get(refusal["code"], TcpkmonError)
            raise kind(str(refusal["message"]), str(refusal["hint"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            ended = not line.endswith(b"\n")
            what = "ended before it answered" if ended else "gave no answer that makes sense"
            raise TcpkmonError(f"{name} {what}") from None

    def _exchange(self, line: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._time_limit_s)
            connection.connect(os.fspath(self.collector.path))
            with suppress(BrokenPipeError):  # it answered before it was asked: a refusal
                connection.sendall(line)
            said = bytearray()
            while len(said) <= ANSWER_BYTES and not said.endswith(b"\n"):
                try:
                    part = connection.recv(1 << 16)
                except ConnectionResetError:
                    break
                if not part:
                    break
                said += part
        return bytes(said)


def _listens(path: Path) -> bool:
    """Whether somebody answers at a socket that root, or this user, put there."""
    try:
        status = os.lstat(path)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            connection.connect(os.fspath(path))
    except (PermissionError, BlockingIOError):
        return True  # not for us to ask, or busy
    except OSError:
        return False
    return True


def _not_allowed(collector: Collector) -> PrivilegeError:
    try:
        status = os.stat(collector.path)
    except OSError:
        return PrivilegeError(f"the collector {collector.pid} may not be asked", "run it as root")
    if not status.st_mode & 0o020:
        message = f"the collector {collector.pid} listens to root only"
        return PrivilegeError(message, "run this as root, or collect with --control-group GROUP")
    group = group_name(status.st_gid)
    return PrivilegeError(
        f"the collector {collector.pid} listens to root and the members of the group {group}",
        f"run this as root, or join: sudo usermod -aG {group} {_own_name()}, then log in again",
    )


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "USER"
