# SPDX-License-Identifier: Apache-2.0
"""The client of running collectors: finds their sockets and sends requests to them.

Used by the commands status, enable, disable, mark, buffer-size and lowwater.
"""

from __future__ import annotations

import errno
import getpass
import json
import math
import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpkmon.collector.control.access import (
    control_folder,
    exists,
    group_name,
    owner_path,
    peer_of,
    socket_pid,
    status_path,
)
from tcpkmon.formats.base.errors import (
    DamagedError,
    KernelError,
    LossError,
    PrivilegeError,
    TcpkmonError,
    UsageError,
)

ANSWER_BYTES = 4 << 20
TIME_LIMIT_S = 30.0
STRANGER = "another user listens there"
_RETRY_S = 0.02
ERRORS: dict[object, type[TcpkmonError]] = {
    error.exit_code: error for error in (UsageError, LossError, KernelError, DamagedError)
}
"""The errors by a collector's exit code, which is also in its answers."""


@dataclass(frozen=True)
class Collector:
    """A running collector and the socket it listens at."""

    pid: int
    path: Path


def find_collectors(folder: Path | None = None) -> tuple[Collector, ...]:
    """The collectors that run here, by PID. Sockets of dead ones are ignored. PrivilegeError where
    this user may not look."""
    folder = folder or control_folder()
    try:
        names = os.listdir(folder)
    except PermissionError as error:
        raise PrivilegeError(
            f"{folder}, where captures listen: {error.strerror}",
            "who asks them must be able to enter it and the folders above",
        ) from error
    except OSError:
        return ()
    found = []
    for name in names:
        pid = socket_pid(name)
        if pid is not None and exists(pid) and _listens(folder / name):
            found.append(Collector(pid, folder / name))
    return tuple(sorted(found, key=lambda collector: collector.pid))


class Client:
    """Sends requests to one collector, each in a connection of its own.

    PrivilegeError when this user may not control it, TcpkmonError when it ends or does not
    answer, and each error in its answer.
    """

    def __init__(self, collector: Collector, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.collector = collector
        self._time_limit_s = time_limit_s

    def status(self) -> dict[str, Any]:
        """The collector's state and counts; of these less for a user who may not control it."""
        try:
            return self.ask({"op": "status"})
        except PrivilegeError:
            public = status_path(self.collector.path)
            if not _listens(public):
                raise
            return self._ask_at(public, b"")

    def metrics(self) -> dict[str, Any]:
        """Its counts; those of TCP begin with the first such question."""
        return self.ask({"op": "metrics"})

    def top(self, sort: str, most: int, by: str = "", wanted: str = "") -> dict[str, Any]:
        """The first connections that have a text, or groups of them: see Watching.top()."""
        return self.ask({"op": "top", "sort": sort, "most": most, "by": by, "wanted": wanted})

    def enable(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Switch these events on; None: switch logging on."""
        return self.ask({"op": "enable", "events": names})

    def disable(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Switch these events off; None: switch logging off."""
        return self.ask({"op": "disable", "events": names})

    def mark(self, number: int) -> dict[str, Any]:
        """Log MARK with this number (below 2^64, in PSC below 2^32) and this process's PID."""
        return self.ask({"op": "mark", "number": number})

    def dump(self) -> dict[str, Any]:
        """Let the flight recorder write what it keeps: dump (its number), folder, after_s."""
        return self.ask({"op": "dump"})

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        """Set the size of each CPU's ring."""
        return self.ask({"op": "buffer-size", "bytes": n})

    def set_low_water(self, percent: int) -> dict[str, Any]:
        """Set the wake-up threshold: a ring is drained when less than this share of it is free."""
        return self.ask({"op": "lowwater", "percent": percent})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, which collector/control/server.py describes; its result."""
        own = owner_path(self.collector.path)
        path = own if os.access(own, os.W_OK) else self.collector.path
        return self._ask_at(path, json.dumps(request).encode() + b"\n")

    def _ask_at(self, path: Path, request: bytes) -> dict[str, Any]:
        name = f"the collector {self.collector.pid}"
        try:
            line = exchange(path, request, self._time_limit_s)
        except PermissionError as error:
            if error.strerror == STRANGER:
                raise TcpkmonError(f"{name} does not listen: {STRANGER}") from None
            raise _not_allowed(self.collector) from None
        except TimeoutError:
            limit = f"{self._time_limit_s:g} s"
            raise TcpkmonError(f"{name} did not answer within {limit}") from None
        except OSError as error:
            raise TcpkmonError(f"{name} does not listen: {error.strerror}") from None
        try:
            answer = parse_answer(line)
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


def exchange(path: Path, line: bytes, time_limit_s: float) -> bytes:
    """Send a line to a socket of root or this user; the answer, whole or not. The time limit is for
    all of it. OSError."""
    until_s = time.monotonic() + time_limit_s

    def left_s() -> float:
        if (left := until_s - time.monotonic()) > 0:
            return left
        raise TimeoutError

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        while True:
            connection.settimeout(left_s())
            try:
                connection.connect(os.fspath(path))
                break
            except BlockingIOError:  # too many others wait
                time.sleep(min(_RETRY_S, left_s()))
        if not peer_of(connection).is_owner:
            raise PermissionError(errno.EPERM, STRANGER)
        with suppress(BrokenPipeError):  # it refused before it read the request
            connection.sendall(line)
        answer = bytearray()
        while len(answer) <= ANSWER_BYTES and not answer.endswith(b"\n"):
            connection.settimeout(left_s())
            try:
                part = connection.recv(1 << 16)
            except ConnectionResetError:
                break
            if not part:
                break
            answer += part
    return bytes(answer)


def parse_answer(line: bytes) -> Any:
    """What an answer holds. ValueError, also for numbers that no collector tells: those of more
    than 64 bits, infinite ones."""
    return json.loads(line, parse_int=_whole, parse_float=_finite, parse_constant=_finite)


@contextmanager
def making_sense() -> Iterator[None]:
    """What is made of an answer inside a `with`: TcpkmonError where it has another shape than
    collectors give it. One that was taken over may answer anything."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise TcpkmonError("the collector gave no answer that makes sense") from None


def _whole(text: str) -> int:
    number = int(text) if len(text) < 21 else 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError("no number of 64 bits")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("no finite number")
    return number


def _listens(path: Path) -> bool:
    """Whether a process listens at a socket of root or this user."""
    try:
        status = os.lstat(path)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            connection.connect(os.fspath(path))
    except (PermissionError, BlockingIOError):
        return True  # this user may not connect, or it is busy
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
