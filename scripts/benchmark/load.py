# SPDX-License-Identifier: Apache-2.0
"""The load: the program load.c between the two ends of a lab, and orders to it."""

from __future__ import annotations

import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.base.errors import TcpkmonError

SOURCE = Path(__file__).with_name("load.c")
ANSWER_S = 120.0


class BenchError(TcpkmonError):
    """A part of the benchmark could not be run."""


@dataclass(frozen=True)
class Done:
    """What an order to the load did: a count, its seconds, CPU seconds of both ends together."""

    count: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """The count per second."""
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per count."""
        return 1e6 * self.cpu_s / max(1, self.count)


class Load:
    """The program load.c in the namespaces of a lab; a context manager."""

    def __init__(self, program: Path, lab: Lab, port: int = 7000) -> None:
        """It uses two ports from `port` on."""
        self._fds = (lab.a.namespace.fd, lab.b.namespace.fd)
        self._arguments = [str(program), *map(str, self._fds), lab.b.address4, str(port)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Load:
        self._process = subprocess.Popen(
            self._arguments,
            pass_fds=self._fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pin(self, client: int, server: int) -> None:
        """The CPUs of the two ends from now on."""
        self._order(f"pin {client} {server}")
        self._answer()

    def start(self, order: str) -> None:
        """Sends an order, see load.c; finish() waits for its end."""
        self._order(order)

    def finish(self) -> Done:
        """What the order did."""
        count, seconds, cpu_s = self._answer().split()
        return Done(int(count), float(seconds), float(cpu_s))

    def run(self, order: str) -> Done:
        self.start(order)
        return self.finish()

    def _order(self, text: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise BenchError("the load ended or hangs")
        return line.strip()


def compile_load(folder: Path) -> Path:
    """Compiles the load into that folder; BenchError without a C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise BenchError("there is no C compiler for the load", "apt install gcc libc6-dev")
    program = folder / "load"
    done = subprocess.run(
        [compiler, "-O2", "-o", str(program), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"the load does not compile: {done.stderr.strip()}")
    return program
