# SPDX-License-Identifier: Apache-2.0
"""The process of one capture, as the supervisor sees it: it is started, heard of, ended."""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tcpkmon.collector.control.access import control_folder
from tcpkmon.collector.control.client import Client, Collector
from tcpkmon.collector.daemon.channel import Channel, pair
from tcpkmon.collector.daemon.held import Held
from tcpkmon.collector.daemon.messages import Drained, Ear, Misbehaved, Park, Ready, Told, WentOn
from tcpkmon.collector.linux import isolated
from tcpkmon.collector.linux.syscalls import close_aside
from tcpkmon.formats.base.errors import TcpkmonError

BACK_OFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""How long to wait before a capture that died is started again: longer each time."""
STEADY_S = 60.0
"""A capture that was attached for so long begins at the first of BACK_OFF_S again."""
TAKEOVERS = 3
"""How many processes may try to go on where one was killed."""
_ASK_S = 5.0
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""Threads of a library would keep all privileges: see collector/commands/collect.py."""


class State(enum.Enum):
    """Of a capture's process."""

    WAITING = "waits to be started"
    STARTING = "starts"
    ATTACHED = "is attached"
    ENDING = "ends"
    GONE = "has ended"


class Child:
    """A capture by its name. plan: see collector/daemon/checking.py; group: who may control it."""

    def __init__(
        self, name: str, plan: Mapping[str, Any], group: str | None, held: Held
    ) -> None:
        self.name = name
        self.plan = plan
        self.group = group
        self.state = State.WAITING
        self.wanted = True
        """Whether it is started again when it has ended."""
        self.was_attached = False
        self.relieves: Child | None = None
        """The capture before it, which goes on until this one is attached."""
        self.records = 0
        self.lost = 0
        self.heard_s = 0.0
        """When its process last told that it had drained its rings."""
        self.held = held
        """What its process parked, for the next one."""
        self.orphans: list[str] = []
        """Files that it left when it was killed, and that nobody goes on with."""
        self.is_sure = False
        """Its process goes on just now: of the files that it left, what it does not write is
        nobody's."""
        self._left: list[str] = []
        self.said: list[str] = []
        """What its process did that people want to know."""
        self.channel: Channel | None = None
        self.cut_off = 0
        """How often its process was killed for what it sent."""
        self.exit_code = 0
        self.was_killed = False
        self._ear = Ear()
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._start_at_s = 0.0
        self._attached_s = 0.0
        self._was_given = self._is_hurried = False
        self._given_up = 0

    @property
    def pid(self) -> int | None:
        """Of its process, if it has one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start its process, if it is time to. One that is not wanted any more has to finish what
        another left that was killed: it goes on there, and ends in order."""
        if self.state is not State.WAITING or time.monotonic() < self._start_at_s:
            return
        ours, theirs = pair()
        with theirs:
            words = isolated.command("tcpkmon.collector.daemon.worker", self.name)
            try:
                self._process = subprocess.Popen(
                    [*words, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **_ONE_THREAD},
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the supervisor, which ends it
                )
            except OSError as error:  # no process or no memory is left now
                ours.close()
                wait_s = self._wait_longer()
                self.said.append(f"cannot be started: {error.strerror}; again in {wait_s:g} s")
                return
        order = {
            "name": self.name,
            "table": self.plan["table"],
            "group": self.group,
            "stored": self.held.is_stored,
            "parked": {"state": self.held.state, "names": list(self.held.fds)},
        }
        self._was_given = bool(self.held.fds)
        self.channel, self._ear = ours, Ear(trusted=True)
        self.state = State.STARTING
        if not ours.send(order, list(self.held.fds.values())):
            self.said.append("does not take its configuration")
            self._process.kill()

    def hear(self) -> None:
        """Take a message of its process, if a whole one is there."""
        assert self.channel is not None
        try:
            heard = self._ear.hear(self.channel)
        except EOFError:
            self._hang_up()
        except Misbehaved as why:
            self._cut_off(str(why))
        else:
            self.heard_s = time.monotonic()
            if heard is not None:
                self._take(*heard)

    def _cut_off(self, why: str) -> None:
        """Its process may be another's by now: nothing of it is gone on with."""
        self.cut_off += 1
        self.said.append(f"sent {why}: its process is killed")
        self._hang_up()
        if self._process is not None:
            self._process.kill()
        self.held.close()
        self.leave([])

    def _take(self, told: Told, fds: Sequence[int]) -> None:
        if isinstance(told, Drained):
            self.records, self.lost = told.records, told.lost
        elif isinstance(told, Ready):
            self.was_attached = True
            self._attached_s = self.heard_s
            self._given_up = 0
            self.is_sure, self._left = bool(self._left), []
            if self.state is State.STARTING:
                self.state = State.ATTACHED
            if not self.wanted:
                self.end()
        elif isinstance(told, Park) and not told.names:
            close_aside(fds)
            self.held.close()
            self.said.append("starts anew if it is killed: the supervisor has too many files open")
        elif isinstance(told, Park):
            self.held.add(told.state, told.names, fds, trusted=bool(told.state))
        elif isinstance(told, WentOn):
            lost = f"{told.killed:,} records are lost by that"
            self.said.append(f"goes on where its process was killed; {lost}")
        else:
            self._begin_anew(told.why)

    def _begin_anew(self, why: str) -> None:
        self.held.close()
        self.leave([])
        if not self.wanted:  # it was to finish what was there
            if self._process is not None:
                self.state = State.ENDING
                self._process.kill()
            self.said.append(f"cannot finish where its process was killed: {why}")
            return
        self.said.append(f"starts anew, not where its process was killed: {why}")

    def leave(self, names: Sequence[str]) -> None:
        """Its process left these files. Who goes on where it was killed goes on with the last."""
        self._left += [name for name in names if name not in self._left]
        if not self.held.fds:
            self.orphans, self._left = [*self.orphans, *self._left], []

    def reap(self) -> str | None:
        """Look whether its process has ended; then start() starts it again, if it is wanted.

        Returns how it ended, "" if it was asked to; None if it has not ended.
        """
        if self._process is None or (code := self._process.poll()) is None:
            return None
        while self.channel is not None and self.channel.has_more():
            self.hear()
        self._hang_up()
        self._process = None
        asked, was_attached = self.state is State.ENDING, self.state is State.ATTACHED
        # Its rings may have records that are not in its file: the next one takes them.
        unfinished = not self._is_hurried and (code < 0 if asked else not self.wanted)
        self.was_killed = code < 0
        parks = self.was_attached or (self._was_given and self.was_killed)
        if not (parks and ((self.wanted and not asked) or unfinished)):
            self.held.close()
        elif self.state is State.STARTING and self._was_given and self.held.fds:
            self._given_up += 1
            if self._given_up == TAKEOVERS:
                self._begin_anew(f"{TAKEOVERS} processes could not take over")
        self.exit_code = 128 - code if code < 0 else code
        self.state = State.WAITING if self.wanted or self.held.fds else State.GONE
        self._start_at_s = time.monotonic()
        if asked and not self.held.fds:
            return ""
        if was_attached and time.monotonic() - self._attached_s > STEADY_S:
            self._failures = 0
        wait_s = self._wait_longer()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        again = self.was_attached or (self.was_killed and self.relieves is None)
        return f"{how}; it is started again in {wait_s:g} s" if again else how

    def _wait_longer(self) -> float:
        """How long until it is started again [s]."""
        wait_s = BACK_OFF_S[min(self._failures, len(BACK_OFF_S) - 1)]
        self._failures += 1
        self._start_at_s = time.monotonic() + wait_s
        return wait_s

    def end(self, number: int = signal.SIGTERM) -> None:
        """End its process in order: it writes what its rings hold, and finishes its file.

        Where it was killed, another goes on there first, if it is not wanted any more.
        """
        self._is_hurried = number != signal.SIGTERM
        if self._is_hurried and not self.wanted:
            self.held.close()
        if self._process is None:
            self.state = State.WAITING if self.wanted or self.held.fds else State.GONE
            self._start_at_s = min(self._start_at_s, time.monotonic())
            if self.state is State.GONE:
                self.leave([])
        elif self.state is State.STARTING and self._was_given and not self._is_hurried:
            pass  # when it goes on
        elif self.state is not State.ENDING or self._is_hurried:
            self.state = State.ENDING
            self._process.send_signal(number)

    def dump(self) -> None:
        """Ask its flight recorder, if it has one, for a dump."""
        if self._process is not None and "recorder" in self.plan["table"]:
            self._process.send_signal(signal.SIGUSR2)

    def asking(self, plan: Mapping[str, Any]) -> Callable[[], list[str]]:
        """A call, for a thread, that asks the capture for a plan which differs only in what may
        change while it runs: it returns what changed. adopt() comes after it. TcpkmonError where
        the capture refuses: then it has to be restarted."""
        if self.state is not State.ATTACHED or self.pid is None:
            raise TcpkmonError(f"it {self.state.value}")
        path = control_folder() / f"{self.pid}.sock"
        client = Client(Collector(self.pid, path), _ASK_S)
        changed = {k: plan[k] for k in ("filters", "limits") if plan[k] != self.plan[k]}

        def ask() -> list[str]:
            for key, value in changed.items():
                client.ask({"op": f"set-{key}", key: value})
            return list(changed)

        return ask

    def adopt(self, plan: Mapping[str, Any]) -> None:
        """The capture has changed."""
        self.plan = plan
        self.held.configure(plan["table"])

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
