# SPDX-License-Identifier: Apache-2.0
"""The process that opens files for one that may not."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcpkmon.collector.linux import lasting
from tcpkmon.collector.linux.deputy import Deputy
from tcpkmon.collector.writer.log_folder import LogFolder
from tcpkmon.formats.base.errors import FileError


def test_it_makes_the_files_of_a_log(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path / "log")
    ended = tmp_path / "ended"

    def make(cpu: int, first: bytes) -> int:
        output = folder.output(cpu)
        output.begin(first)
        return output.fd

    pipe = os.pipe()
    with Deputy(make, ended.touch, lambda: None, keep=[folder.fd]) as deputy:
        os.close(pipe[1])
        assert os.read(pipe[0], 1) == b"", "it keeps no descriptor of others open"
        first = b"x" * 3_000_000
        fd = deputy.open_file(3, first)
        os.write(fd, b" and more")
        os.close(fd)
        with pytest.raises(FileError, match="exists"):
            deputy.open_file(3, first)
        os.kill(deputy._process._pid, signal.SIGTERM)
        os.close(deputy.open_file(4, b""))
        assert not ended.exists()
    assert ended.exists()
    assert (tmp_path / "log" / "kernlog.dump.cpu3").read_bytes() == first + b" and more"
    os.close(pipe[0])


def test_it_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\nfrom tcpkmon.collector.linux.deputy import Deputy\n"
        "Deputy(lambda n, d: 0, pathlib.Path(sys.argv[1]).touch, lambda: None)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "ended"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, check=False, timeout=60)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_why_it_could_not_is_told() -> None:
    def refuse(number: int, data: bytes) -> int:
        raise FileError("no room") from OSError(errno.ENOSPC, "full")

    with (
        Deputy(refuse, lambda: None, lambda: None) as deputy,
        pytest.raises(FileError, match="no room") as caught,
    ):
        deputy.open_file(1, b"")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC


def test_a_deputy_that_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "_WAITS_S", (0.0, 0.01))
    with Deputy(lambda number, data: os._exit(1), lambda: None, lambda: None) as deputy:
        for _ in range(2):
            with pytest.raises(FileError, match="has ended"):
                deputy.open_file(0, b"data")


def test_what_no_process_asks_is_refused() -> None:
    """Who asks may have been taken over."""

    def parse(number: int, data: bytes) -> int:
        return int({"one": 1}[data.decode()])

    with Deputy(parse, lambda: None, lambda: None) as deputy:
        for data in (b"\xff", b"two"):
            with pytest.raises(FileError):
                deputy.open_file(0, data)
        deputy._socket.sendall(struct.pack("=IQ", 0, 1 << 62))
        deputy._socket.settimeout(30)
        assert deputy._socket.recv(1) == b"", "it has ended, and took no such memory"
