# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon why` on one log of tcp, sched and disk: which process was waited for, and for what."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import connected
from tests.live.test_stalls import stalls_of

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


@pytest.mark.parametrize("starve, what", [
    (False, "the disk"), pytest.param(True, "a CPU", marks=pytest.mark.full)
])  # fmt: skip
def test_a_reader_that_stalls(tmp_path: Path, cold: Path, starve: bool, what: str) -> None:
    with Lab() as lab:
        stalls = stalls_of(tmp_path, lab, "" if starve else str(cold), starve)
    said = say_why(tmp_path / "log")
    line = next(line for line in said.splitlines() if "the reader's process" in line)
    assert f"({stalls[0].pid})" in line
    assert f": waited for {what} " in line, said
