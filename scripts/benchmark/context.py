# SPDX-License-Identifier: Apache-2.0
"""What the sections of the benchmark work with: rounds, folder, lab, load, the tools there are."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collector.lab.lab import Lab
from formats.base.errors import TcpkmonError
from scripts.benchmark.results import Results

ROOT = Path(__file__).absolute().parents[2]
LOAD_SOURCE = Path(__file__).with_name("load.c")
ANSWER_S = 120.0


class BenchError(TcpkmonError):
    """A part of the benchmark could not be run."""


@dataclass(frozen=True)
class Sample:
    """A file (or a folder) of some traffic, how many records are in it, and its bytes."""

    path: Path
    records: int
    bytes: int


@dataclass(frozen=True)
class Pair:
    """Files of one tool: with next to nothing in it, and with much."""

    few: Sample
    many: Sample


@dataclass
class Context:
    """One run of the benchmark. `folder` is a new one on a disk; `tools` the peers that work."""

    rounds: int
    quick: bool
    folder: Path
    results: Results
    missing: dict[str, str] = field(default_factory=dict)
    """Peers that cannot be used here, and why."""
    samples: dict[str, Pair] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    load_program: Path = Path()

    def say(self, text: str) -> None:
        print(f"bench {time.monotonic() - self.began:4.0f}s: {text}", file=sys.stderr, flush=True)

    def pick(self, full: float, quick: float) -> float:
        """A size: of the full run, or of --quick."""
        return quick if self.quick else full

    @contextlib.contextmanager
    def lab(self) -> Iterator[tuple[Lab, Load]]:
        """Two namespaces and the load between them."""
        with Lab() as lab:
            lab.a.run(many_ports)
            with Load(self.load_program, lab) as load:
                yield lab, load


@dataclass(frozen=True)
class Done:
    """What an order to the load came to: a count, the seconds it took, CPU seconds of both ends."""

    count: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """What was done in a second."""
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds for each."""
        return 1e6 * self.cpu_s / max(1, self.count)


class Load:
    """The program load.c between the two ends of a lab; a context manager."""

    def __init__(self, program: Path, lab: Lab, port: int = 7000) -> None:
        """It takes nine ports from `port` on."""
        self._arguments = [
            str(program), str(lab.a.namespace.fd), str(lab.b.namespace.fd), lab.b.address4,
            str(port),
        ]  # fmt: skip
        self._fds = (lab.a.namespace.fd, lab.b.namespace.fd)
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
        """Gives an order as load.c describes them; finish() waits for its end."""
        self._order(order)

    def finish(self) -> Done:
        """What the order came to."""
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
    """The load as a program in that folder; BenchError without a C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise BenchError("there is no C compiler for the load", "apt install gcc libc6-dev")
    program = folder / "load"
    done = subprocess.run(
        [compiler, "-O2", "-o", str(program), str(LOAD_SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"the load does not compile: {done.stderr.strip()}")
    return program


def cpus() -> tuple[int, int]:
    """Two CPUs for the two ends of a load: the same one where there is no second."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def many_ports() -> None:
    """Room for connections that come and go, and for 100,000 that stay."""
    settings = {"ip_local_port_range": "1024 65535", "tcp_tw_reuse": "1"}
    for name, value in settings.items():
        Path("/proc/sys/net/ipv4", name).write_text(value, encoding="ascii")
