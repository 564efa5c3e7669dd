# SPDX-License-Identifier: Apache-2.0
"""`collect` for a guest: forked from a process that has imported it, which takes seconds there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from tcpkmon.collector.commands import collect
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session import session

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class Forked:
    """A `collect` under way, as far as a subprocess.Popen's attributes and methods are needed.

    kinds: the ways to attach, parted by commas; all when empty.
    """

    def __init__(self, kinds: str, arguments: Sequence[str], ready: Connection) -> None:
        """Closes `ready`, which becomes --ready-fd."""
        self._errors = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115
        self._process = _CONTEXT.Process(
            target=_collect,
            args=(kinds, tuple(arguments), dict(os.environ), self._errors.name, ready),
        )
        self._process.start()
        ready.close()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("collect", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Its end, and what it said on standard error."""
        self.wait(timeout)
        return None, self._errors.read()


def _collect(
    kinds: str,
    arguments: Sequence[str],
    environment: dict[str, str],
    errors: str,
    ready: Connection,
) -> None:
    """In the new process: the command line's own entry."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(Path(__file__).resolve().parents[2])
    os.environ.clear()
    os.environ.update(environment)
    for fd, path in ((1, os.devnull), (2, errors)):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv = ["collect", "--ready-fd", str(os.dup(ready.fileno())), *arguments]
    ready.close()
    if kinds:
        collect.run = lambda request: _run(request, kinds)
    collect.main()


def _run(request: Request, kinds: str) -> int:
    return session.run(replace(request, kinds=tuple(kinds.split(","))))
