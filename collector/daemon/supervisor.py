# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts a process for each capture, and starts it again if it dies.

It attaches nothing and imports nothing large. The configuration is read by a process of its own.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tcpkmon.collector.daemon.child import Child, State
from tcpkmon.collector.daemon.held import Stored
from tcpkmon.collector.daemon.mending import Mending, left_in
from tcpkmon.collector.daemon.metrics_process import MetricsProcess
from tcpkmon.collector.daemon.plans import Plans
from tcpkmon.collector.daemon.reloading import Change, Reloads
from tcpkmon.collector.daemon.requests import Requests
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.daemon.telling import Telling
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.formats.base.cli import say as say_line
from tcpkmon.formats.base.errors import TcpkmonError

ROUND_S = 0.5
END_S = 60.0
"""How long the captures may take to finish their files."""


def say(text: str) -> None:
    """Print a line on stderr, which under systemd is the journal."""
    say_line(f"tcpkmon daemon: {text}")


def run(config: Path, *, early: bool = False) -> int:
    """Run the captures until SIGTERM or SIGINT; the exit code: that of a capture which could not be
    attached at the start, else 0. Refused where the configuration has mistakes; UsageError."""
    plan = (plans := Plans(config, early)).read()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for what the captures park
    with ExitStack() as stack:
        requests = stack.enter_context(Requests())
        return Supervisor(plans, plan, requests, Systemd()).run()


class Supervisor:
    """The captures of a plan, by name."""

    def __init__(
        self, plans: Plans, plan: Mapping[str, Any], requests: Requests, systemd: Systemd
    ) -> None:
        self._plans, self._systemd, self._requests = plans, systemd, requests
        self._children: dict[str, Child] = {}
        self._leaving: list[Child] = []
        """Captures that another took over from, or that are not in the configuration any more."""
        self._metrics, self._mending = MetricsProcess(), Mending()
        self._stored = Stored(systemd)
        self._wakener: socket.socket | None = None
        self._reloads = Reloads(
            plans.read, self._adopt, self._finish_change, self._wake, systemd
        )
        self._handlers = {"reload": self._reloads.ask, "status": lambda to: to(self.status())}
        self._adopt(plan)
        self._stored.close()
        self._signals: list[int] = []
        self._exit_code = 0
        self._is_ready = False
        self._end_by_s: float | None = None
        self._telling = Telling(systemd)

    def run(self) -> int:
        """Start the captures and go on until all have ended; the exit code."""
        with ExitStack() as stack:
            reader, writer = socket.socketpair()
            stack.enter_context(reader)
            stack.enter_context(writer)
            for end in (reader, writer):
                end.setblocking(False)
            self._wakener = writer
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer.fileno()))
            for number in (*_HANDLERS, signal.SIGCHLD):
                stack.callback(signal.signal, number, signal.signal(number, self._note))
            try:
                while self._children or self._leaving:
                    self._round(reader)
                self._mending.finish()
                self._plans.finish(self._mending)
            finally:
                self._kill_all()
                self._metrics.end()
        return self._exit_code

    def _round(self, reader: socket.socket) -> None:
        for child in self._all:
            if self._end_by_s is None or not child.wanted:
                child.start()
        if self._end_by_s is None:
            self._metrics.look_after()
        self._mending.reap()
        self._plans.look_after([one.plan["folder"] for one in self._all], self._mending)
        self._wait(reader)
        self._requests.serve(self._handlers)
        if self._end_by_s is None:
            self._reloads.step()
        while self._signals:
            _HANDLERS.get(self._signals.pop(0), _ignore)(self)
        for name in [*self._children]:
            self._look_after(name)
        for child in [one for one in self._all if one not in self._children.values()]:
            self._reap(child)
            self._mend(child)
        self._leaving = [child for child in self._leaving if child.state is not State.GONE]
        if self._end_by_s is not None and time.monotonic() > self._end_by_s:
            say(f"captures did not end within {END_S:g} s: they are killed")
            self._end_by_s = math.inf
            self._kill_all()
        self._tell()

    def _look_after(self, name: str) -> None:
        """Notice that a capture ended, or that it can relieve the one before it."""
        child = self._children[name]
        if self._reap(child):
            if child.relieves is not None:
                self._children[name], child.wanted = child.relieves, False
                say(f"capture {name} could not be attached as it is configured now; "
                    "the one before goes on")  # fmt: skip
                return
            if not self._is_ready and self._end_by_s is None and not child.was_killed:
                self._exit_code = child.exit_code
                self.end()
        self._mend(child)
        if child.relieves is not None and child.state is State.ATTACHED:
            self._dismiss(child.relieves)
            child.relieves = None
        if child.state is State.GONE:
            del self._children[name]
            if child.relieves is not None:
                self._leaving.append(child.relieves)

    def _reap(self, child: Child) -> bool:
        """Look whether its process ended by itself. What it left is repaired, or gone on with."""
        if (how := child.reap()) is None:
            return False
        if how:
            say(f"capture {child.name} ended by {how}")
        folder = child.plan["folder"]
        if child.exit_code and child.held.fds:
            child.leave(left_in(folder))
        elif child.exit_code and any(one.name == child.name for one in self._all if one != child):
            self._mending.start_quiet(folder)
        elif child.exit_code:
            child.leave(left_in(folder))
        return bool(how)

    def _mend(self, child: Child) -> None:
        while child.said:
            say(f"capture {child.name} {child.said.pop(0)}")
        self._mending.start(child.plan["folder"], child.orphans)
        child.orphans = []
        if child.is_sure:
            self._mending.start_quiet(child.plan["folder"])
            child.is_sure = False

    def _dismiss(self, child: Child) -> None:
        """End a capture that nobody waits for any more."""
        child.wanted = False
        child.end()
        self._leaving.append(child)

    @property
    def _all(self) -> list[Child]:
        """All that may have a process."""
        current = list(self._children.values())
        relieved = [child.relieves for child in current if child.relieves is not None]
        return [*current, *relieved, *self._leaving]

    def _wait(self, reader: socket.socket) -> None:
        """Wait for a signal, a request, or what a capture says, and take it."""
        calls: dict[int, Callable[[], None]] = {
            reader.fileno(): lambda: _empty(reader),
            self._requests.fileno(): lambda: None,  # _round() serves, for those who are late too
        }
        for child in self._all:
            if child.channel is not None:
                calls[child.channel.fileno()] = child.hear
        for fd in readable(calls, ROUND_S):
            calls[fd]()

    def _tell(self) -> None:
        """Tell systemd how it goes."""
        running = [one for one in self._children.values() if one.state is State.ATTACHED]
        if self._end_by_s is not None:
            return
        if not self._is_ready and len(running) == len(self._children):
            self._is_ready = True
            self._systemd.tell("READY=1")
            say(f"attached: {', '.join(self._children)}")
        self._telling.tell(self._children.values(), self._is_ready)

    def end(self) -> None:
        """End all captures in order; a second time: at once."""
        if self._end_by_s is not None:
            self._end_by_s = 0.0
            return
        self._end_by_s = time.monotonic() + END_S
        self._systemd.tell("STOPPING=1")
        for child in self._all:
            child.wanted = False
            child.end()

    def _wake(self) -> None:
        """End the wait for what happens; a thread calls this."""
        if self._wakener is not None:
            with suppress(OSError):  # it is full: then there is no wait; or all has ended
                self._wakener.send(b"!")

    def _adopt(self, plan: Mapping[str, Any]) -> dict[str, str | Change]:
        """Make the captures those of a plan. Returns what was done with each, or is under way."""
        done: dict[str, str | Change] = {}
        captures, group = plan["captures"], plan["group"]
        self._metrics.adopt(plan["metrics"], group)
        for name in [*self._children]:
            if name not in captures:
                self._drop(self._children.pop(name))
                done[name] = "ended, as it is not in the configuration any more"
        for name, new in captures.items():
            child = self._children.get(name)
            if child is None:
                child = self._make(name, new, group)
                if child.held.fds:
                    child.leave(left_in(new["folder"]))
                else:
                    self._mending.start_quiet(new["folder"])
                done[name] = "started"
            else:
                done[name] = self._change(child, new, group)
        return done

    def _make(self, name: str, plan: Mapping[str, Any], group: str | None) -> Child:
        held = self._stored.take(name, plan["table"])
        child = self._children[name] = Child(name, plan, group, held)
        return child

    def _drop(self, child: Child) -> None:
        for one in (child, child.relieves):
            if one is not None:
                self._dismiss(one)

    def _change(self, child: Child, new: Mapping[str, Any], group: str | None) -> str | Change:
        """Apply a plan to a capture; what was done.

        What cannot change in it changes in another, which is attached before this one ends.
        """
        if new == child.plan and group == child.group:
            return "unchanged"
        if new["static"] == child.plan["static"] and group == child.group:
            try:
                return Change(child, new, self._wake)
            except TcpkmonError as error:
                why = error.message
        else:
            old = child.plan["static"]
            every = {**old, **new["static"]}
            keys = [key for key in every if old.get(key) != new["static"].get(key)]
            why = f"{', '.join(keys) or 'control.group'} changed"
        return self._relieve(child, new, group, why)

    def _finish_change(self, name: str, change: Change) -> str:
        """What was done with a capture that was asked for another plan."""
        child = change.child
        try:
            return change.finish()
        except TcpkmonError as error:
            why = error.message
        if self._children.get(name) is child:
            return self._relieve(child, change.plan, child.group, why)
        self._make(name, change.plan, child.group)
        return f"started: {why}"

    def _relieve(self, child: Child, new: Mapping[str, Any], group: str | None, why: str) -> str:
        other = self._make(child.name, new, group)
        other.relieves = child
        if child.relieves is not None:  # a change that is not attached yet
            other.relieves, child.relieves = child.relieves, None
            self._dismiss(child)
        return f"relieved by another, which is attached first: {why}"

    def status(self) -> dict[str, Any]:
        """The captures and their processes."""
        return {
            "pid": os.getpid(),
            "captures": {
                name: {"pid": one.pid, "state": one.state.value, "records": one.records,
                       "lost": one.lost, "cut_off": one.cut_off}
                for name, one in self._children.items()
            },
        }  # fmt: skip

    def dump(self) -> None:
        """Pass SIGUSR2 on to the captures that have a flight recorder."""
        for child in self._children.values():
            child.dump()

    def hang_up(self) -> None:
        """Reload, and tell the mistakes."""
        self._reloads.ask(_tell_mistakes)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _kill_all(self) -> None:
        for child in self._all:
            child.wanted = False
            child.end(signal.SIGKILL)


def _ignore(_: Supervisor) -> None:
    """SIGCHLD only ends the wait."""


def _tell_mistakes(found: dict[str, Any] | TcpkmonError) -> None:
    if isinstance(found, TcpkmonError):
        for line in (*found.lines(), "nothing was changed"):
            say(line)


def _empty(reader: socket.socket) -> None:
    with suppress(BlockingIOError):
        reader.recv(4096)


_HANDLERS: dict[int, Callable[[Supervisor], None]] = {
    signal.SIGTERM: Supervisor.end,
    signal.SIGINT: Supervisor.end,
    signal.SIGHUP: Supervisor.hang_up,
    signal.SIGUSR2: Supervisor.dump,
}
