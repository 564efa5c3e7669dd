# SPDX-License-Identifier: Apache-2.0
"""What the fault tests share: a collector under control, counted floods, disks and places."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import json
import mmap
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tcpkmon
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.netns import CLONE_NEWNET, run_inside
from tcpkmon.collector.linux.syscalls import bpf
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.formats.registry import format_of
from tests.live.flooding import CALLS, MEMORY_BYTES, PERIOD, STOP

BIN = Path(sys.executable).parent
COLLECT, PMGRAPH, TCPKMON = (str(BIN / name) for name in ("collect", "pmgraph", "tcpkmon"))
FULL = os.environ.get("TCPKMON_FULL") == "1"
GUEST = "TCPKMON_GUEST" in os.environ
"""Emulated by scripts/vmtest, ten to twenty times as slow."""
_GUEST_LIMIT_S = float(os.environ.get("TCPKMON_GUEST_LIMIT", "420"))
WAIT_S = _GUEST_LIMIT_S - 180.0 if GUEST else 120.0
TIMEOUT_S = 3600.0 if FULL else _GUEST_LIMIT_S if GUEST else 300.0
"""Of a test that is longer under TCPKMON_FULL=1."""
RECEIVE_CALL = 10
COUNTED = ("--locations", "RECEIVE_CALL", "--columns", "classic,cpu,serial,time_ns")
"""Records that a flood's calls can be told from: see check_flood()."""
_FLOODING = Path(__file__).with_name("flooding.py")
_libc = ctypes.CDLL(None, use_errno=True)


def wait_until(
    condition: Callable[[], Any], what: str = "", timeout_s: float = WAIT_S, step_s: float = 0.005
) -> Any:
    """The condition's value once it is true; AssertionError if that takes too long."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        pause.wait(step_s)
    return value


def environment(**more: str) -> dict[str, str]:
    """This process's without sudo's marks, and `more`."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SUDO_")} | more


def listen() -> None:
    """In a child: signals do what they do by default, though the tests may run under nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


# Places

PLACE = Path("/mnt")
"""Where at() shows this tree."""
_MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def at(place: Path, *words: str | Path) -> list[str]:
    """The words of a command that finds this tree at a place too: it has mounts of its own."""
    mounted = ["/usr/bin/unshare", "-m", "sh", "-c", _MOUNT, "-", Path(__file__).parents[2], place]
    return [str(word) for word in (*mounted, *words)]


def as_nobody(program: str, *words: str | Path, gid: int = 65534, caps: str = "") -> list[str]:
    """The words of `tcpkmon` or `collect` as nobody runs it, who need not be able to enter the
    folder of this tree. caps: setpriv's words for capabilities."""
    who = ["setpriv", "--reuid=65534", f"--regid={gid}", "--clear-groups"]
    more = [f"--inh-caps={caps}", f"--ambient-caps={caps}"] if caps else []
    isolated = PLACE / "tcpkmon/collector/linux/isolated.py"
    module = f"tcpkmon.collector.commands.{program}"
    return at(PLACE, *who, *more, PLACE / ".venv/bin/python", "-I", isolated, module, *words)


def let_others_in(folder: Path) -> None:
    """Other users may enter a test's folder: pytest's own above it are closed to them."""
    above = itertools.takewhile(lambda one: one != Path(tempfile.gettempdir()), folder.parents)
    for one in (folder, *itertools.islice(above, 3)):
        one.chmod(0o755)


class Space:
    """A network namespace of its own, with the loopback device up; nothing of it has a name."""

    def __init__(self) -> None:
        opened: list[int] = []
        failed: list[BaseException] = []

        def make() -> None:
            try:
                if _libc.unshare(CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "unshare")
                opened.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))
            except BaseException as error:  # for the caller's thread
                failed.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        self.fd = opened[0]

    @property
    def path(self) -> str:
        """What --netns takes."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def run(self, call: Callable[[], Any]) -> Any:
        """Calls it in a thread inside."""
        return run_inside(self.fd, call)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a process inside."""
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **options}
        return self.run(lambda: subprocess.Popen(list(command), **options))  # type: ignore[no-any-return]

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.fd)


class Disk:
    """A file system of its own in memory, of a size in bytes, mounted nowhere: gone when closed."""

    def __init__(self, size_bytes: int) -> None:
        made = _syscall(430, b"tmpfs", 1)  # fsopen
        try:
            _syscall(431, made, 1, b"size", str(size_bytes).encode(), 0)  # fsconfig: set a string
            _syscall(431, made, 6, None, None, 0)  # fsconfig: create
            self.fd = _syscall(432, made, 1, 0)  # fsmount
        finally:
            os.close(made)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.fd}")

    def fill(self, name: str = "ballast") -> Path:
        """Takes all the room that is left with a file."""
        ballast = self.path / name
        with ballast.open("wb", buffering=0) as stream:
            taken = 0
            while (left := os.statvfs(self.path)).f_bavail:
                with suppress(OSError):  # somebody else took some meanwhile
                    os.posix_fallocate(stream.fileno(), taken, left.f_bavail * left.f_frsize)
                    taken += left.f_bavail * left.f_frsize
        return ballast

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.fd)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """The same, of a size like "2m", where others find it: at a new folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _syscall(*arguments: Any) -> int:
    result = int(_libc.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# The collector


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    code: int
    stdout: bytes
    stderr: str
    seconds: float = 0.0

    @property
    def lines(self) -> list[str]:
        """Those of standard error."""
        return self.stderr.splitlines()


def run(command: Sequence[str], **options: Any) -> Done:
    """Runs a program to its end, with nothing on standard input."""
    begin = time.monotonic()
    options = {"env": environment(), "stdin": subprocess.DEVNULL, "timeout": WAIT_S, **options}
    done = subprocess.run(list(command), capture_output=True, check=False, **options)
    assert "Traceback" not in done.stderr.decode(errors="replace"), done.stderr.decode()
    return Done(
        done.returncode, done.stdout, done.stderr.decode(errors="replace"),
        time.monotonic() - begin,
    )  # fmt: skip


@dataclass(frozen=True)
class Map:
    """A BPF map of a collector."""

    id: int
    value_bytes: int


class Collector:
    """A `collect` that was started; the end of its `with` kills what is left of it."""

    def __init__(
        self, *arguments: str, program: Sequence[str] = (COLLECT,), **options: Any
    ) -> None:
        self._ready, write = os.pipe()
        self._error = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the `with`
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "env": environment(),
            "preexec_fn": listen,
            **options,
        }
        try:
            self.process = subprocess.Popen(
                [*program, "--ready-fd", str(write), *arguments],
                stderr=self._error, pass_fds=(write, *options.pop("pass_fds", ())), **options,
            )  # fmt: skip
        finally:
            os.close(write)
        self.pid = self.process.pid

    def ready(self, timeout_s: float = WAIT_S) -> Collector:
        """Waits until the programs are attached."""
        readable, _, _ = select.select([self._ready], [], [], timeout_s)
        assert readable, f"collect is not ready after {timeout_s} s\n{self.stderr}"
        assert os.read(self._ready, 1), f"collect ended: {self.process.wait()}\n{self.stderr}"
        return self

    @property
    def stderr(self) -> str:
        """What it said so far."""
        size = os.fstat(self._error.fileno()).st_size
        return os.pread(self._error.fileno(), size, 0).decode(errors="replace")

    def says(self, text: str) -> None:
        """Waits until it said this."""
        wait_until(lambda: text in self.stderr or self.process.poll() is not None, f"says {text}")
        assert text in self.stderr

    def send(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stops it; returns when all its threads stand still."""
        self.send(signal.SIGSTOP)
        wait_until(lambda: all(state == "T" for state in _states(self.pid)), "all threads stopped")

    def resume(self) -> None:
        """Lets it go on."""
        self.send(signal.SIGCONT)

    def finish(self, number: int | None = signal.SIGTERM, timeout_s: float = WAIT_S) -> Done:
        """Sends a signal (if any) and waits for the end."""
        begin = time.monotonic()
        if number is not None:
            self.send(number)
        code = self.process.wait(timeout_s)
        text = self.stderr
        assert "Traceback" not in text, text
        return Done(code, b"", text, time.monotonic() - begin)

    def programs(self) -> set[int]:
        """The ids of the BPF programs that it holds."""
        found: set[int] = set()
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{self.pid}/fdinfo"):
                with suppress(OSError):
                    text = Path(entry).read_text()
                    found.update(map(int, re.findall(r"^prog_id:\s*(\d+)", text, re.M)))
        return found

    def links(self) -> int:
        """How many programs it has attached by BPF links."""
        infos = (Path(entry).read_text() for entry in os.scandir(f"/proc/{self.pid}/fdinfo"))
        return sum("link_type:" in info for info in infos)

    def maps(self, type_: int, key_bytes: int) -> list[Map]:
        """The BPF maps of a type and a key size that it holds."""
        found = []
        for entry in os.scandir(f"/proc/{self.pid}/fdinfo"):
            with suppress(OSError):
                text = Path(entry).read_text()
                facts = dict(re.findall(r"^(\w+):\s*(\S+)", text, re.M))
                if (facts.get("map_type"), facts.get("key_size")) == (str(type_), str(key_bytes)):
                    found.append(Map(int(facts["map_id"]), int(facts["value_size"])))
        return found

    def resident_bytes(self) -> int:
        """Its own memory: without files and rings."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"^RssAnon:\s*(\d+)", text, re.M)[0]) * 1024

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ready)
        self._error.close()


def _states(pid: int) -> list[str]:
    states = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            stat = Path(f"/proc/{pid}/task/{task}/stat").read_text()
            states.append(stat.rpartition(")")[2].split()[0])
    return states


def program_lives(number: int) -> bool:
    """Whether the kernel has a BPF program of this id."""
    return _object_fd(13, number) is not None


def map_fd(number: int) -> int:
    """A descriptor of the BPF map of this id; the caller closes it."""
    fd = _object_fd(14, number)
    assert fd is not None
    return fd


def _object_fd(command: int, number: int) -> int | None:
    try:
        fd = bpf(command, struct.pack("=III", number, 0, 0))[0]
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    if command == 13:
        os.close(fd)
    return fd


# Floods


@dataclass
class Flood:
    """A process that makes counted receive calls inside a namespace; see flooding.py."""

    space: Space
    phases: list[tuple[int, int]] = field(default_factory=list)
    """(CPU, calls) so far, in order."""

    def __enter__(self) -> Flood:
        fd = os.memfd_create("flood")
        os.ftruncate(fd, MEMORY_BYTES)
        self._shared = mmap.mmap(fd, MEMORY_BYTES)
        self._memory = memoryview(self._shared).cast("Q")
        self._process = self.space.start(
            [sys.executable, str(_FLOODING), str(fd)], pass_fds=(fd,), env=environment()
        )
        os.close(fd)
        self.port = int(self._answer())
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._memory.release()
        self._shared.close()

    @property
    def calls(self) -> int:
        """Calls made so far, to within the last few hundred."""
        return int(self._memory[CALLS])

    def begin(self, cpu: int, count: int = 0, rate: int = 0) -> None:
        """Starts `count` calls (0: until halt()) on a CPU, at most so many a second (0: any)."""
        self._begun = (cpu, self.calls)
        self._memory[STOP] = 0
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cpu} {count} {rate}\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Waits for the calls that begin() asked for; returns how many it were."""
        total = int(self._answer())
        cpu, before = self._begun
        self.phases.append((cpu, total - before))
        return total - before

    def halt(self) -> int:
        """Ends the calls now; returns how many it were."""
        self._memory[STOP] = 1
        return self.end()

    def burst(self, cpu: int, count: int) -> None:
        """Makes so many calls on a CPU."""
        self.begin(cpu, count)
        self.end()

    def advance(self, calls: int) -> None:
        """Waits until so many calls more were made."""
        goal = self.calls + calls
        wait_until(lambda: self.calls >= goal, f"{goal} calls", step_s=0.001)

    def totals(self) -> dict[int, int]:
        """Calls by CPU."""
        sums: dict[int, int] = {}
        for cpu, count in self.phases:
            sums[cpu] = sums.get(cpu, 0) + count
        return sums

    def numbers(self) -> dict[int, npt.NDArray[np.int64]]:
        """By CPU, the numbers of the calls that were made there, in order."""
        parts: dict[int, list[npt.NDArray[np.int64]]] = {}
        start = 0
        for cpu, count in self.phases:
            parts.setdefault(cpu, []).append(np.arange(start, start + count, dtype=np.int64))
            start += count
        return {cpu: np.concatenate(listed) for cpu, listed in parts.items()}

    def _answer(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], WAIT_S)
        line = self._process.stdout.readline() if readable else ""
        assert line, "the flood's process ended or hangs"
        return line


def cpus() -> list[int]:
    """The CPUs that tests may use, one or two."""
    return sorted(os.sched_getaffinity(0))[:2]


FORMS = {"psc": (), "klogger": ("--format", "klogger")}
"""Options of collect for each format, for tests of what writes."""


def calls_in(path: Path) -> tuple[npt.NDArray[np.int64], ...]:
    """Of the calls in a file or a folder of logs, in order: CPU, serial, number."""
    with tcpkmon.open(path) as capture:
        rows = capture.table("snapshots")
    found = [rows.column(name).to_numpy().astype(np.int64) for name in ("cpu", "serial")]
    found.append(rows.column("callvalue").to_numpy().astype(np.int64) - 1)
    is_call = np.array(rows.column("location").to_pylist()) == "RECEIVE_CALL"
    return tuple(one[is_call] for one in found)


def check_flood(path: Path, flood: Flood) -> int:
    """Every record is the call that its CPU and serial say; returns their number. In a log other
    events have serials too: each record is a call of its CPU, in order."""
    cpu, serial, number = calls_in(path)
    for one, made in flood.numbers().items():
        here = cpu == one
        assert np.all(np.diff(serial[here]) > 0)
        if path.is_dir():
            assert np.isin(number[here], made % PERIOD).all()
            assert np.all(np.diff(np.unwrap(number[here], period=PERIOD)) > 0)
            continue
        assert not here.any() or serial[here].max() <= len(made)
        assert np.array_equal(number[here], made[serial[here] - 1] % PERIOD)
    assert set(cpu.tolist()) <= set(flood.totals())
    return len(number)


def check_sequence(path: Path) -> int:
    """Numbers and serials of calls, all of one CPU, rise together; returns how many there are."""
    _, serial, number = calls_in(path)
    assert np.all(np.diff(serial) > 0)
    steps = np.diff(np.unwrap(number, period=PERIOD))
    assert np.all(steps > 0)
    assert path.is_dir() or np.array_equal(steps, np.diff(serial))
    return len(number)


def check_books(path: Path, flood: Flood, report: dict[str, Any]) -> tuple[int, int]:
    """By CPU, entries and losses are the calls made; returns the sums of both."""
    rows = balance(report)
    assert report["proven_end"]
    for cpu, count in flood.totals().items():
        row = rows[cpu]
        assert row["attempts"] - row["filtered"] == count
        assert row["in_file"] + row["lost_total"] == count
        assert row["pending"] == row["unchanged"] == 0
    entries = sum(row["in_file"] for row in rows.values())
    assert entries == check_flood(path, flood)
    lost = sum(row["lost_total"] for row in rows.values())
    assert report["seq_lost"] == report["totals"]["lost_total"] == lost
    return entries, lost


def verify(path: Path | str, code: int) -> dict[str, Any]:
    """What `tcpkmon verify --json` reports, whose exit code must be this one; 3 instead of 0 where
    the kernel has only kprobes that do not count what they miss (arm64 before fentry).

    Only what the command calls: tests that use it start the collector many times anyway.
    """
    *each, whole = format_of(path).verify(path)
    report: dict[str, Any] = json.loads(json.dumps(whole.as_json()))
    if each:  # the logs of a folder
        report["rows"] = [row for log in each for row in log.as_json()["rows"]]
    if code == 0 and report["unproven"] and not _has_fentry():
        assert all(way.startswith("kprobe:") for way in report["unproven"].values())
        assert report["lost_total"] == 0
        code = 3
    assert report["exit_code"] == code, (report["verdict"], report)
    return report


@cache
def _has_fentry() -> bool:
    return Probing(Btf.from_kernel()).can("fentry", "tcp_recvmsg")


def verify_by_command(path: Path | str, code: int) -> dict[str, Any]:
    """The same by the command itself."""
    done = run([TCPKMON, "verify", "--json", str(path)])
    report: dict[str, Any] = json.loads(done.stdout)["files"][0]
    assert done.code == report["exit_code"] == code, (done.code, report["verdict"], report)
    return report


def balance(report: dict[str, Any], location: int = RECEIVE_CALL) -> dict[int, dict[str, Any]]:
    """By CPU, the report's row of a location."""
    return {row["cpu"]: row for row in report["rows"] if row["location"] == location}


@contextmanager
def waiting(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """A process that is killed, if need be, at the end."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
