# SPDX-License-Identifier: Apache-2.0
"""The tools under measurement: starts each, waits for it, counts what it recorded and lost."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark import peers
from scripts.benchmark.load import BenchError
from scripts.benchmark.session import BIN, Session
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.formats.base.errors import TcpkmonError

RING_PAGES = 1024
"""4 MiB a CPU for every tool: the default of collect."""
WAIT_S = 60.0
REASON_CHARACTERS = 200
# perf and bpftrace need tracefs: a mount that only they see.
IN_TRACEFS = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'mount -t tracefs none /sys/kernel/tracing 2>/dev/null; exec "$@"',
    "sh",
)


@dataclass(frozen=True)
class Outcome:
    """What a tool recorded, lost by its own count and wrote, and its CPU time meanwhile."""

    records: int
    lost: int
    bytes: int
    cpu_s: float


@dataclass
class Running:
    """A tool that is ready; end() stops it."""

    process: subprocess.Popen[bytes]
    file: Path
    said: Path
    _count: Callable[[Path, str], tuple[int, int]]
    _signal: int
    _cpu_before_s: float = 0.0
    _outcome: Outcome | None = None

    def mark(self) -> None:
        """CPU time counts from here on."""
        self._cpu_before_s = cpu_seconds(self.process.pid)

    def cpu_s(self) -> float:
        return cpu_seconds(self.process.pid) - self._cpu_before_s

    def end(self) -> Outcome:
        """Stops it, once, and counts; BenchError when it does not end."""
        if self._outcome is None:
            cpu_s = self.cpu_s()
            self.process.send_signal(self._signal)
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                raise BenchError(f"{self.process.args!r} does not end") from None
            text = self.said.read_text(encoding="utf-8", errors="replace")
            records, lost = self._count(self.file, text)
            self._outcome = Outcome(records, lost, size_of(self.file), cpu_s)
        return self._outcome


@dataclass(frozen=True)
class Tool:
    """How a tool is started. `argv` makes its command for an output file."""

    name: str
    argv: Callable[[Path], Sequence[str]]
    count: Callable[[Path, str], tuple[int, int]]
    program: str = ""
    """What peers.install() looked for; empty for collect."""
    signal: int = signal.SIGINT
    ready: str = ""
    """What it prints when it is ready; if empty, it writes a byte to the descriptor in argv."""
    side: Side | None = None
    """The end of the lab in which it runs; None: where the benchmark runs."""
    file_grows: bool = False
    """It is ready when its file grows; `warm` makes the traffic for that."""
    prepare: Callable[[int], object] = lambda pid: None
    """Called with its process ID once it is ready."""

    @contextlib.contextmanager
    def running(
        self, folder: Path, warm: Callable[[], object] = lambda: None
    ) -> Iterator[Running]:
        """Runs it from ready to ended; removes what it wrote."""
        file, said = folder / "output", folder / "said"
        order, orders = os.pipe()
        answers, answer = os.pipe()
        words = {"ORDER": str(order), "ANSWER": str(answer)}
        argv = [re.sub("ORDER|ANSWER", lambda m: words[m[0]], a) for a in self.argv(file)]
        # A file, not a pipe: nobody reads what it prints while it runs.
        with said.open("wb") as sink:
            start = self.side.start if self.side is not None else subprocess.Popen
            process: subprocess.Popen[bytes] = start(  # type: ignore[assignment]
                argv,
                pass_fds=(order, answer),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        os.close(order)
        os.close(answer)
        try:
            os.write(orders, b"enable\n")
            running = Running(process, file, said, self.count, self.signal)
            self._wait(running, answers, warm)
            self.prepare(process.pid)
            running.mark()
            yield running
            running.end()
        finally:
            process.kill()
            process.wait()
            os.close(orders)
            os.close(answers)
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)

    def _wait(self, running: Running, answers: int, warm: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and running.process.poll() is None:
            if self.file_grows:
                warm()
                if running.file.exists() and running.file.stat().st_size > len(peers.ATTACHING):
                    return
            elif self.ready:
                if self.ready in running.said.read_text(errors="replace"):
                    return
                select.select([], [], [], 0.01)
            elif select.select([answers], [], [], 0.1)[0] and os.read(answers, 16):
                return
        raise BenchError(f"{self.name} does not start: {peers.complaint(running.said)}")


def usable(session: Session, section: str, tools: Sequence[Tool]) -> list[Tool]:
    """The tools whose programs are here; the others become skipped cases of the section."""
    for tool in tools:
        if tool.program in session.missing:
            session.results.skip(section, tool.name, session.missing[tool.program])
    return [tool for tool in tools if tool.program not in session.missing]


@contextlib.contextmanager
def tolerating(session: Session, section: str, tool: Tool) -> Iterator[None]:
    """A peer that fails becomes a skipped case of the section; an error of collect is raised."""
    try:
        yield
    except (TcpkmonError, ValueError, subprocess.SubprocessError) as error:
        if not tool.program:
            raise
        session.results.skip(section, tool.name, str(error)[:REASON_CHARACTERS])


def size_of(file: Path) -> int:
    """Bytes of a file, or of all the files in a folder."""
    inside = file.iterdir() if file.is_dir() else [file]
    return sum(one.stat().st_size for one in inside)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process with all its threads: its CPU-time clock (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def collect(name: str, *options: str, programs: Path = BIN) -> Tool:
    """A capture with these options; programs: the folder of `collect`."""

    def argv(file: Path) -> Sequence[str]:
        return [
            *(str(programs / "collect"), "--force", "-o", str(file), "--ready-fd", "ANSWER"),
            *options,
        ]

    def count(_file: Path, said: str) -> tuple[int, int]:
        return peers.parse_collect(said)

    return Tool(name, argv, count)


def perf(name: str, event: str) -> Tool:
    """perf record of one tracepoint on all CPUs."""

    def argv(file: Path) -> Sequence[str]:
        return [
            *IN_TRACEFS, "perf", "record", "-q", "-a", "-m", str(RING_PAGES), "-D", "-1",
            "--control=fd:ORDER,ANSWER", "-e", event, "-o", str(file),
        ]  # fmt: skip

    def count(file: Path, _said: str) -> tuple[int, int]:
        done = subprocess.run(
            ["perf", "report", "--stats", "-i", str(file)],
            capture_output=True,
            text=True,
            check=True,
        )
        return peers.parse_perf_stats(done.stdout)

    return Tool(name, argv, count, "perf", signal.SIGTERM)


def tcpdump(name: str, side: Side, *options: str) -> Tool:
    """tcpdump of the first 96 bytes of each packet at one end of the lab.

    Without --immediate-mode it does not see the packets of the last second before its end.
    """

    def argv(file: Path) -> Sequence[str]:
        return [
            "tcpdump", "-i", "veth0", "-s", "96", "-n", "-B", str(4 * RING_PAGES), "-Z", "root",
            "-w", str(file), *options, "tcp",
        ]  # fmt: skip

    def count(_file: Path, said: str) -> tuple[int, int]:
        return peers.parse_tcpdump(said)

    return Tool(name, argv, count, "tcpdump", ready="listening on", side=side)


def bpftrace(name: str) -> Tool:
    """bpftrace printing eight fields of each tcp_probe to a file."""

    def argv(file: Path) -> Sequence[str]:
        return [*IN_TRACEFS, "bpftrace", "-o", str(file), "-e", peers.BPFTRACE_PROGRAM]

    def count(file: Path, said: str) -> tuple[int, int]:
        with file.open("rb") as lines:
            printed = sum(line.startswith(b"probe ") for line in lines)
        return printed, peers.parse_bpftrace_lost(said + _tail(file))

    return Tool(name, argv, count, "bpftrace", file_grows=True)


def _tail(file: Path) -> str:
    """The lines about losses, anywhere in the file."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        return "".join(line for line in lines if line.startswith("Lost "))
