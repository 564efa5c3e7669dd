# SPDX-License-Identifier: Apache-2.0
"""One run of the benchmark: its programs, folder, machine and load, and sections one by one."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark import peers
from scripts.benchmark.load import Load, compile_load
from scripts.benchmark.results import Results
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux.machine import describe_kernel, describe_machine
from tcpkmon.collector.loader.prepare import check_privilege
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

ROOT = Path(__file__).absolute().parents[2]
BIN = ROOT / ".venv" / "bin"
UNFINISHED = "the rest of this section"


@dataclass
class Session:
    """`folder` is a new one, on a disk. missing: peers that cannot be used here, and why."""

    rounds: int
    quick: bool
    folder: Path
    results: Results
    missing: dict[str, str] = field(default_factory=dict)
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
            lab.a.run(_many_ports)
            with Load(self.load_program, lab) as load:
                yield lab, load


def cpus() -> tuple[int, int]:
    """CPUs for the two ends of a load; the same one twice where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def _many_ports() -> None:
    """Room for connections that come and go."""
    settings = {"ip_local_port_range": "1024 65535", "tcp_tw_reuse": "1"}
    for name, value in settings.items():
        Path("/proc/sys/net/ipv4", name).write_text(value, encoding="ascii")


def chosen(only: str | None, known: Collection[str], what: str) -> list[str]:
    """The names in --only, in their usual order; [] without it."""
    wanted = [name.strip() for name in (only or "").split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"no such {what}: {unknown[0]}", f"there are {', '.join(known)}")
    return [name for name in known if name in wanted]


@contextlib.contextmanager
def session(results: Results, folder: str | None, programs: Sequence[str]) -> Iterator[Session]:
    """A run with these programs, installed, and the load, compiled."""
    check_privilege()
    with tempfile.TemporaryDirectory(prefix="tcpkmon-bench-", dir=folder or "/var/tmp") as place:
        found = Session(results.rounds, results.quick, Path(place), results)
        found.missing = peers.install(programs, found.say)
        for name, reason in found.missing.items():
            found.say(f"{name}: {reason}")
        results.machine = describe()
        found.load_program = compile_load(found.folder)
        yield found


def measure(
    results: Results,
    measures: Mapping[str, Callable[[Session], None]],
    folder: str | None,
    programs: Sequence[str],
) -> None:
    """Runs these, by the names of their sections, and adds what they took to the results."""
    with session(results, folder, programs) as one:
        for name, section in measures.items():
            begun = time.monotonic()
            try:
                section(one)
            except (TcpkmonError, ValueError, OSError, subprocess.SubprocessError) as error:
                # The values so far are kept.
                one.say(f"{name}: {error}")
                results.skip(name, UNFINISHED, str(error))
            results.seconds[name] = round(time.monotonic() - begun, 1)
    each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in results.seconds.items())
    results.machine["time taken"] = f"{sum(results.seconds.values()):.0f} s ({each})"


def describe() -> dict[str, str]:
    """What can make a difference, by name, in the order of the report."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    megahertz = _first(r"^cpu MHz\s*:\s*(.*)$", cpu)
    flags = _first(r"^flags\s*:\s*(.*)$", cpu).split()
    machine = describe_machine()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "tcpkmon": importlib.metadata.version("tcpkmon"),
        "tree": commit(ROOT),
        "CPU model": machine["cpu_model"],
        "CPU": f"{os.cpu_count()} CPUs at {megahertz or '?'} MHz"
        + (", virtual machine" if "hypervisor" in flags else ""),
        "memory": f"{machine['memory_bytes'] / (1 << 30):.0f} GiB",
        "kernel": describe_kernel(),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()) + " when it began",
        "Python": platform.python_version(),
        "versions": "; ".join(filter(None, map(_version, ("perf", "tcpdump", "bpftrace")))),
    }


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[0] if said else ""


def commit(root: Path) -> str:
    """The tree's commit, with -dirty if files have changed; unknown outside of git."""
    try:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
