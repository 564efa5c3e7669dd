# SPDX-License-Identifier: Apache-2.0
"""What a reload waits for, in threads: the process that reads the configuration, and the captures
that are asked for other filters. The supervisor goes on meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from tcpkmon.collector.daemon.child import Child
from tcpkmon.collector.daemon.requests import Answer
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import TcpkmonError

_T = TypeVar("_T")


class Work(Generic[_T]):
    """A call in a thread. wake: called when it is done."""

    def __init__(self, call: Callable[[], _T], wake: Callable[[], None]) -> None:
        self._call, self._wake = call, wake
        self._done: queue.SimpleQueue[_T | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tcpkmon-reload", daemon=True).start()

    def _run(self) -> None:
        try:
            self._done.put(self._call())
        except Exception as error:  # result() raises it
            self._done.put(error)
        self._wake()

    @property
    def is_done(self) -> bool:
        return not self._done.empty()

    def result(self) -> _T:
        """Once, when it is done: what the call returned. Raises what it raised."""
        found = self._done.get_nowait()
        if isinstance(found, Exception):
            raise found
        return found


class Change:
    """A capture that is asked for what may change while it goes on. TcpkmonError where it cannot be
    asked now."""

    def __init__(self, child: Child, plan: Mapping[str, Any], wake: Callable[[], None]) -> None:
        self.child, self.plan = child, plan
        self._pid = child.pid
        self._work = Work(child.asking(plan), wake)

    @property
    def is_done(self) -> bool:
        return self._work.is_done

    def finish(self) -> str:
        """Once, when it is done: what changed. TcpkmonError where the capture refuses, or is
        another process by now: then it has to be relieved."""
        done = self._work.result()
        if self.child.pid != self._pid:
            raise TcpkmonError("its process ended meanwhile")
        self.child.adopt(self.plan)
        return f"changed while it goes on: {', '.join(done)}"


class Reloads:
    """The reloads, one at a time. read() makes a plan; adopt(plan) says what was done with each
    capture, where a Change is still to be waited for; finish(name, change) what was done by it.
    """

    def __init__(
        self,
        read: Callable[[], dict[str, Any]],
        adopt: Callable[[Mapping[str, Any]], Mapping[str, str | Change]],
        finish: Callable[[str, Change], str],
        wake: Callable[[], None],
        systemd: Systemd,
    ) -> None:
        self._read, self._adopt, self._finish = read, adopt, finish
        self._wake, self._systemd = wake, systemd
        self._asked: list[Answer] = []
        """Who wait for the next one; and for the one that is under way."""
        self._answers: list[Answer] = []
        self._reading: Work[dict[str, Any]] | None = None
        self._done: dict[str, str | Change] | None = None

    def ask(self, answer: Answer) -> None:
        """Read the configuration again and apply it; the answer has what was done, by capture.

        Refused with the mistakes in it: then nothing changes.
        """
        self._asked.append(answer)

    def step(self) -> None:
        """Begin one that was asked for, or go on with the one under way."""
        if self._reading is None and self._done is None:
            if not self._asked:
                return
            self._answers, self._asked = self._asked, []
            self._systemd.reloading()
            self._reading = Work(self._read, self._wake)
        if self._reading is not None and self._reading.is_done:
            reading, self._reading = self._reading, None
            try:
                self._done = {**self._adopt(reading.result())}
            except TcpkmonError as error:
                self._end(error)
        if self._done is None:
            return
        for name, what in self._done.items():
            if isinstance(what, Change) and what.is_done:
                self._done[name] = self._finish(name, what)
        told = {name: what for name, what in self._done.items() if isinstance(what, str)}
        if len(told) == len(self._done):
            for name, what in told.items():
                say(f"tcpkmon daemon: capture {name}: {what}")
            self._end(told)

    def _end(self, found: dict[str, str] | TcpkmonError) -> None:
        self._done = None
        self._systemd.tell("READY=1")
        for answer in self._answers:
            answer(found)
