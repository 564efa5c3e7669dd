# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon requests` on a server that writes down when it got each request and began its answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.capturing import GUEST, ROOT

_MS = 1_000_000
_TOOL = Path(sys.executable).parent
_TRAFFIC = """
import json, socket, sys, threading, time
port, out = int(sys.argv[1]), sys.argv[2]
sleeps = [0.05, 0, 0.002, 0.02, 0, 0.1, 0.01, 0]
log = []
def serve(end, number):
    end.setsockopt(6, 1, 1)
    for at, sleep in enumerate(sleeps):
        end.recv(1 << 16)
        begin = time.monotonic_ns()
        time.sleep(sleep)
        log.append((number, at, begin, time.monotonic_ns()))
        end.sendall(bytes(3000))
    end.recv(1)
def ask(number):
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.setsockopt(6, 1, 1)
        for _ in sleeps:
            time.sleep(0.003)
            end.sendall(bytes(100 + number))
            left = 3000
            while left:
                left -= len(end.recv(1 << 16))
with socket.create_server(("127.0.0.1", port)) as listener:
    for number in range(4):
        asks = threading.Thread(target=ask, args=(number,))
        asks.start()
        end, _ = listener.accept()
        serve(end, number)
        end.close()
        asks.join()
json.dump(log, open(out, "w"))
"""


def capture(folder: Path, port: int, *options: str) -> tuple[Path, list[list[int]]]:
    out, log = folder / "run.pm", folder / "log.json"
    command = [_TOOL / "collect", "-q", "--as-root", "--ports", str(port), "-o", out, *options,
               "--", sys.executable, "-c", _TRAFFIC, str(port), log]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT, timeout=600)
    return out, json.loads(log.read_text())


def exchanges_of(path: Path) -> list[dict[str, Any]]:
    told = subprocess.run([_TOOL / "tcpkmon", "requests", "--json", path], check=False,
                          capture_output=True, text=True)  # fmt: skip
    assert not told.returncode, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


@pytest.mark.parametrize("options", [("--requests",), pytest.param((), marks=pytest.mark.full)])
def test_a_server_thinks_as_long_as_it_says(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Within 1 ms of what it wrote down, seen from either end."""
    path, log = capture(tmp_path, 17311 + len(options), *options)
    rows = exchanges_of(path)
    for side in ("client", "server"):
        mine = [row for row in rows if row["side"] == side]
        assert [row["response_bytes"] for row in mine] == [3000] * len(log)
        near = 0
        for row, (number, at, begin, end) in zip(mine, log, strict=True):
            assert (row["request_bytes"], row["number"]) == (100 + number, at)
            near += abs(row["think_ns"] - (end - begin)) < _MS
            assert row["certain"] and not row["pipelined"]
            if options:
                assert row["exact"] and row["comm"] is not None
                assert row["uncertain_ns"] == 0
        assert near >= (0.8 if GUEST else 0.95) * len(log)


def test_a_log_with_sched_says_what_the_server_did(tmp_path: Path) -> None:
    path, _ = capture(tmp_path, 17313, "--requests", "--schema", "tcp", "--schema", "sched",
                      "--buffer-size", "32")  # fmt: skip
    told = subprocess.run([_TOOL / "tcpkmon", "requests", path], check=False, capture_output=True,
                          text=True)  # fmt: skip
    assert "meanwhile its process" in told.stdout, told.stdout + told.stderr
    assert re.search(r"slept for a time of its own (9\d|100) %", told.stdout), told.stdout
