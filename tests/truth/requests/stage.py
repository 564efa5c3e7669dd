# SPDX-License-Identifier: Apache-2.0
"""Where a case is played: namespaces, processors, and a capture of what happens there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.base.errors import TcpkmonError

T = TypeVar("T")


@dataclass
class Stage:
    """far: the server is in the other namespace, behind the link. pinned: a CPU for each side.

    path: the capture's file. options: of the capture.
    """

    lab: Lab
    folder: Path
    far: bool = False
    pinned: bool = False
    options: Sequence[str] = ("--requests",)

    @property
    def path(self) -> Path:
        return self.folder / "run.pm"

    @property
    def address(self) -> str:
        return str(self.lab.b.address4) if self.far else "127.0.0.1"

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """A program on the server's side."""
        side = self.lab.b if self.far else self.lab.a
        pin = ["taskset", "-c", "0"] if self.pinned else []
        given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        return side.start([*pin, *command], **given)

    def client(self, call: Callable[[], T]) -> T:
        """Calls it on the client's side."""

        def pinned() -> T:
            # This thread alone. Where others are busy too, it would wait between clock and call.
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            if self.pinned:
                os.sched_setaffinity(0, {1})
            return call()

        return self.lab.a.run(pinned)

    def run(self, command: Sequence[str], **options: Any) -> str:
        """A program on the client's side, to its end; what it printed."""
        pin = ["taskset", "-c", "1"] if self.pinned else []
        with self.lab.a.start([*pin, *command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **options) as process:  # fmt: skip
            said, _ = process.communicate(timeout=600)
        if process.returncode:
            raise TcpkmonError(f"{command[0]} failed: {said.strip()[-300:]}")
        return said

    @contextmanager
    def serving(self, command: Sequence[str], port: int) -> Iterator[subprocess.Popen[str]]:
        """A server, from when it listens; then it is told to end."""
        said = self.folder / "server.err"
        with said.open("w") as errors, self.start(command, stderr=errors) as process:
            try:
                side = self.lab.b if self.far else self.lab.a
                until = time.monotonic() + 30
                while f":{port} " not in side.command(["ss", "-Hltn"]):
                    if process.poll() is not None or time.monotonic() > until:
                        raise TcpkmonError(f"{command[0]} does not listen: {said.read_text()}")
                    time.sleep(0.02)
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Captures both namespaces meanwhile."""
        options = [*self.options, "--format", "psc"]
        options += [word for side in (self.lab.a, self.lab.b) for word in ("--netns", side.name)]
        with start("tcp", self.path, buffer_mb=64, force=True, options=options):
            yield
            time.sleep(0.1)  # the last segments of a close
