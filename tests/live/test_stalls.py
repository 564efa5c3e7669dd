# SPDX-License-Identifier: Apache-2.0
"""A TCP reader that stalls for a known reason, followed in one log to what it waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def test_a_reader_that_waits_for_a_disk(tmp_path: Path) -> None:
    file = Path("/var/tmp") / f"tcpkmon-cold-{os.getpid()}"
    file.write_bytes(os.urandom(8 << 20))
    try:
        with Lab() as lab:
            stalls = stalls_of(tmp_path, lab, str(file))
    finally:
        file.unlink()
    longest = max(stalls, key=lambda stall: stall.stop_ns - stall.start_ns)
    assert longest.stop_ns - longest.start_ns >= 0.5 * NAP_S * 1e9
    assert longest.cause == "sleeps: disk", str(longest)
    assert longest.requests > 0
    assert longest.unread >= 2000


def test_a_reader_that_is_starved_of_cpu(tmp_path: Path) -> None:
    with Lab() as lab:
        stalls = stalls_of(tmp_path, lab, starve=True)
    longest = max(stalls, key=lambda stall: stall.stop_ns - stall.start_ns)
    assert longest.cause == "waits for a CPU", str(longest)
