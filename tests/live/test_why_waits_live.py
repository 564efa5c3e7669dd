# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon why` on one log of tcp, sched and disk: which process was waited for, and for what."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import connected
from tcpkmon.formats.analysis import Stall, find_stalls, open_log

NAP_S = 0.25
_READER = """
import json, mmap, os, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
path = sys.argv[2]
def wait():
    if not path:
        os.sched_setaffinity(0, {0})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        until = time.process_time() + 0.02   # another process has the CPU: this takes long
        while time.process_time() < until:
            pass
        return
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, 1 << 20)
    until = time.monotonic() + float(sys.argv[3])
    at = 0
    while time.monotonic() < until:
        os.preadv(file, [room], at)
        at = (at + (1 << 20)) % os.fstat(file).st_size
end.recv(100)
print("ready", flush=True)
sys.stdin.readline()
wait()
while end.recv(1 << 16):
    pass
"""
_HOG = """
import os, sys, time
os.sched_setaffinity(0, {0})
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    pass
"""


@contextmanager
def reader(end: int, path: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that reads a connection, waits when it is told to, and reads on."""
    process = subprocess.Popen(
        [sys.executable, "-c", _READER, str(end), path, str(NAP_S)], pass_fds=[end], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stalls_of(folder: Path, lab: Lab, path: str = "", starve: bool = False) -> list[Stall]:
    options = ["--columns", "full", "--netns", lab.b.name, "--quiet"]
    schemata = ["tcp", "sched", *(["disk"] if path else [])]
    with connected(lab) as pair, reader(pair.server.fileno(), path) as process:
        with capturing.start(schemata, folder / "log", options=options, buffer_mb=32):
            pair.client.sendall(bytes(100))
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            hog = subprocess.Popen(
                [sys.executable, "-c", _HOG, str(NAP_S)]
            ) if starve else None  # fmt: skip
            if hog is not None:
                time.sleep(0.1)
            process.stdin.write("\n")
            process.stdin.flush()
            for _ in range(int(NAP_S / 0.01)):
                pair.client.sendall(bytes(2000))
                time.sleep(0.01)
            if hog is not None:
                hog.wait()
            time.sleep(0.1)
            pair.client.sendall(bytes(100))
            time.sleep(0.1)
        pair.client.close()
        pair.server.close()
        with open_log(folder / "log") as log:
            return [stall for stall in find_stalls(log) if stall.pid == process.pid]


_SENDER = """
import mmap, os, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
file = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECT)
room = mmap.mmap(-1, 1 << 20)
size = os.fstat(file).st_size
sys.stdin.readline()
until, at = time.monotonic() + 0.5, 0
while time.monotonic() < until:
    for _ in range(4):
        os.preadv(file, [room], at)
        at = (at + (1 << 20)) % size
    end.sendall(bytes(1000))
"""


@pytest.fixture(scope="module")
def cold() -> Iterator[Path]:
    """A file of 8 MB on a disk."""
    file = Path("/var/tmp") / f"tcpkmon-cold-{os.getpid()}"
    file.write_bytes(os.urandom(8 << 20))
    yield file
    file.unlink()


def say_why(log: Path) -> str:
    tool = Path(sys.executable).with_name("tcpkmon")
    return subprocess.run(
        [tool, "why", log], capture_output=True, text=True, check=False
    ).stdout


def drain(end: object) -> None:
    end.setblocking(False)  # type: ignore[attr-defined]
    try:
        while end.recv(1 << 16):  # type: ignore[attr-defined]
            pass
    except BlockingIOError:
        pass


@pytest.mark.full
def test_a_sender_that_reads_a_disk(tmp_path: Path, cold: Path) -> None:
    # A socket that was inherited: only its calls say who sends.
    options = ["--columns", "full", "--quiet", "--locations", "default,SEND_CALL"]
    with Lab() as lab, connected(lab) as pair:
        command = [sys.executable, "-c", _SENDER, str(pair.client.fileno()), str(cold)]
        with capturing.start(["tcp", "sched", "disk"], tmp_path / "log", buffer_mb=32,
                           options=[*options, "--netns", lab.a.name]):  # fmt: skip
            sender = subprocess.Popen(command, pass_fds=[pair.client.fileno()],
                                      stdin=subprocess.PIPE)  # fmt: skip
            sender.communicate(b"\n")
            drain(pair.server)
    said = say_why(tmp_path / "log")
    assert "the application had nothing to send" in said
    line = next(line for line in said.splitlines() if "the sender's process" in line)
    assert f"({sender.pid}), while there was nothing to send: waited for the disk" in line, said


@pytest.mark.parametrize("starve, cause, what", [
    (False, "sleeps: disk", "the disk"),
    pytest.param(True, "waits for a CPU", "a CPU", marks=pytest.mark.full),
])  # fmt: skip
def test_a_reader_that_stalls(
    tmp_path: Path, cold: Path, starve: bool, cause: str, what: str
) -> None:
    with Lab() as lab:
        stalls = stalls_of(tmp_path, lab, "" if starve else str(cold), starve)
    longest = max(stalls, key=lambda stall: stall.stop_ns - stall.start_ns)
    assert longest.cause == cause, str(longest)
    assert starve or (longest.unread >= 2000 and longest.requests > 0)
    said = say_why(tmp_path / "log")
    line = next(line for line in said.splitlines() if "the reader's process" in line)
    assert f"({stalls[0].pid})" in line
    assert f": waited for {what} " in line, said
