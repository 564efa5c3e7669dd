# SPDX-License-Identifier: Apache-2.0
"""The command of `collect -- COMMAND ...`: it waits at a gate until the capture is attached."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.linux.isolated import PYTHON
from tcpkmon.collector.linux.machine import read_sudo
from tcpkmon.collector.linux.netns import enter
from tcpkmon.collector.linux.privileges import Limits
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.collector.session.stop_signals import Stopping
from tcpkmon.collector.session.summary import say
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

_GATE = Path(__file__).with_name("command_gate.py")
_START_S = 60.0
_WAIT_S = 0.2
_STDERR = 2


@dataclass(frozen=True)
class Identity:
    """The user who runs the command."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base`, with this user's values of the variables that sudo changes."""
        return {**base, "HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def find_caller(environment: Mapping[str, str] = os.environ) -> Identity | None:
    """The user who called sudo; None for root, or without sudo.

    UsageError when SUDO_UID names no user: the command must not run as root by mistake.
    """
    if os.geteuid() != 0:
        return None
    hint = "collect's option to run the command as root takes it out of the question"
    try:
        ids = read_sudo(environment)
    except ValueError as error:
        raise UsageError(f"{error} is no number of a user or a group", hint) from None
    if ids is None or ids[0] == 0:
        return None
    try:
        uid, entry = ids[0], pwd.getpwuid(ids[0])
        gid = entry.pw_gid if ids[1] is None else ids[1]
    except KeyError:
        raise UsageError(f"SUDO_UID={ids[0]} is no user of this machine", hint) from None
    groups = tuple(os.getgrouplist(entry.pw_name, gid))
    return Identity(uid, gid, groups, entry.pw_name, entry.pw_dir)


class Command(Closing):
    """A command that was found and waits for go().

    Its PID is already that of the command, for filters. It has the caller's standard streams,
    environment and folder; to_stderr: its standard output is standard error. limits: those that it
    gets instead of this process's. Errors: UsageError when there is no such command, TcpkmonError
    when it cannot be started. Close it after use.
    """

    def __init__(
        self,
        argv: Sequence[str],
        identity: Identity | None = None,
        netns_fd: int | None = None,
        to_stderr: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if not argv or not argv[0]:
            raise UsageError("there is no command after --", "as in: collect -- iperf3 -c HOST")
        if any("\0" in word for word in argv):
            raise UsageError("a command cannot hold a NUL character")
        self.argv = tuple(argv)
        self._forwarded: set[int] = set()
        gate_read, self._gate = os.pipe()
        self._status, status_write = os.pipe()
        try:
            self._process = self._spawn(
                gate_read, status_write, identity, netns_fd, to_stderr, limits or {}
            )
        except BaseException:
            os.close(self._gate)
            os.close(self._status)
            raise
        finally:
            os.close(gate_read)
            os.close(status_write)
        self._gone = False
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether go() or close() was called."""
        return self._gone

    def go(self) -> None:
        """Open the gate, and return when the command runs; UsageError if it cannot."""
        self._gone = True
        with suppress(BrokenPipeError):  # it was killed at the gate: poll() returns the signal
            os.write(self._gate, b"!")
        os.close(self._gate)
        complaint = self._read_status()
        os.close(self._status)
        if complaint:
            self._process.wait()
            raise UsageError(f"{self.argv[0]} cannot be run: {complaint}")

    def poll(self) -> int | None:
        """The exit code (128 + signal if a signal ended it), None while it runs."""
        return _exit_code(self._process.poll())

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end; then like poll(). None after timeout_s."""
        try:
            return _exit_code(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def ending(self, stopping: Stopping) -> Iterator[None]:
        """Rounds while the command, which also got the signal, ends: for at most 5 s."""
        deadline = time.monotonic() + 5.0
        while self.poll() is None and time.monotonic() < deadline:
            yield
            if stopping.hurry or stopping.reason is not EndReason.ASKED:
                break

    def forward(self, number: int) -> None:
        """Send the command a signal that the collector got; no effect when it has ended.

        A terminal sends Ctrl-C to the command too, so the first SIGINT is not sent again there.
        """
        first = number not in self._forwarded
        self._forwarded.add(number)
        if number == signal.SIGINT and first and _in_foreground():
            return
        if self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        """End a command that waits: it never runs. No effect after go()."""
        if self._gone:
            return
        self._gone = True
        os.close(self._gate)
        os.close(self._status)
        self._process.kill()
        self._process.wait()

    def _spawn(
        self,
        gate: int,
        status: int,
        identity: Identity | None,
        netns_fd: int | None,
        to_stderr: bool,
        limits: Limits,
    ) -> subprocess.Popen[bytes]:
        who = ["-", "-", "-"]
        rows = (f"{name}:{soft}:{hard}" for name, (soft, hard) in limits.items())
        environment = dict(os.environ)
        if identity is not None:
            groups = ",".join(str(group) for group in identity.groups)
            who = [str(identity.uid), str(identity.gid), groups]
            environment = identity.environment(environment)
        stdout = None
        if to_stderr:
            stdout = _STDERR if sys.stderr is not None else subprocess.DEVNULL
        with ExitStack() as inside:
            if netns_fd is not None:
                inside.enter_context(enter(netns_fd))
            return subprocess.Popen(
                [
                    *(*PYTHON, "-S", str(_GATE), str(gate), str(status)),
                    *(*who, ",".join(rows) or "-", *self.argv),
                ],
                pass_fds=(gate, status),
                env=environment,
                stdout=stdout,
            )

    def _await_ready(self) -> None:
        said = ""
        if readable([self._status], _START_S):
            said = os.read(self._status, 4096).decode(errors="replace").strip()
        if said == "ready":
            return
        if said:
            raise UsageError(f"{self.argv[0]}: {said}", "the command comes after --")
        raise TcpkmonError(f"{self.argv[0]} could not be started")

    def _read_status(self) -> str:
        parts = []
        while part := os.read(self._status, 4096):
            parts.append(part)
        return b"".join(parts).decode(errors="replace").strip()


def await_exit(command: Command | None, stopping: Stopping, quiet: bool) -> int:
    """Wait for a command that runs longer than the capture; its exit code, or a signal's."""
    if command is None:
        return 0
    if (code := command.poll()) is not None:
        return code
    if not command.gone:
        return stopping.exit_code
    if not quiet:
        say(f"the capture is over; waiting for {command.argv[0]}")
    while not stopping.hurry:
        if (code := command.wait(_WAIT_S)) is not None:
            return code
    return stopping.exit_code


def _exit_code(code: int | None) -> int | None:
    return 128 - code if code is not None and code < 0 else code


def _in_foreground() -> bool:
    """Whether the terminal sends its signals to this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
