# SPDX-License-Identifier: Apache-2.0
"""One run of the benchmark: rounds, folder, results, lab and load, as the sections use them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.experiments.load import Load
from scripts.experiments.results import Results
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.base.errors import LossError, TcpkmonError

ROOT = Path(__file__).absolute().parents[2]
BIN = ROOT / ".venv" / "bin"


@dataclass(frozen=True)
class Sample:
    """A file (or a folder) with records of some traffic; its size in bytes."""

    path: Path
    records: int
    bytes: int


@dataclass(frozen=True)
class Pair:
    """Two files of one tool: nearly empty, and with many records."""

    few: Sample
    many: Sample


@dataclass
class Context:
    """One run of the benchmark; `folder` is a new one, on a disk."""

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

    def each_round(self, section: str, times: int = 1) -> Iterator[int]:
        """The numbers of the rounds (`times` as many), each of them announced."""
        for number in range(self.rounds * times):
            self.say(f"{section}: round {number + 1} of {self.rounds * times}")
            yield number

    @contextlib.contextmanager
    def lab(self) -> Iterator[tuple[Lab, Load]]:
        """Two namespaces and the load between them."""
        with Lab() as lab:
            lab.a.run(many_ports)
            with Load(self.load_program, lab) as load:
                yield lab, load


def tell(*words: object) -> str:
    """What a command of tcpkmon prints, of a capture with losses too. TcpkmonError: it fails."""
    command = [str(BIN / "tcpkmon"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, LossError.exit_code):
        raise TcpkmonError(f"tcpkmon {words[0]} ends with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def cpus() -> tuple[int, int]:
    """CPUs for the two ends of a load; the same one twice where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def many_ports() -> None:
    """Room for connections that come and go, and for 100,000 that stay."""
    settings = {"ip_local_port_range": "1024 65535", "tcp_tw_reuse": "1"}
    for name, value in settings.items():
        Path("/proc/sys/net/ipv4", name).write_text(value, encoding="ascii")
