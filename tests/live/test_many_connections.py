# SPDX-License-Identifier: Apache-2.0
"""Thousands of connections, open before the start and short ones: none merged, none missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tcpkmon
from tcpkmon.collector.ring.rings import TRANSPORTS
from tests.full import first
from tests.live.bpf_entries import keys_of
from tests.live.faults import (
    FULL,
    GUEST,
    TIMEOUT_S,
    WAIT_S,
    Collector,
    Space,
    environment,
    map_fd,
    verify,
    wait_until,
    waiting,
)

pytestmark = pytest.mark.timeout(TIMEOUT_S)

OPEN, SHORT = (10_000, 200_000) if FULL else (200, 400) if GUEST else (500, 2_000)
ATTACH_LIMIT_S = 10.0 if FULL else 60.0
STATE_CHANGE, DESTROY, EXISTING = 4, 11, 226
SYN_SENT, SYN_RECV = 2, 3
HASH = 1  # BPF_MAP_TYPE_HASH
_CONNECTING = Path(__file__).with_name("connecting.py")


class Program:
    """connecting.py inside a namespace."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._answer())

    def do(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._answer() == "done\n"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"connecting.py ended: {self._process.wait(WAIT_S)}"
        return line


def connections_in(number: int) -> int:
    """How many entries the map of this id has."""
    fd = map_fd(number)
    try:
        return sum(1 for _ in keys_of(fd, 8))
    finally:
        os.close(fd)


def columns(path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Columns of the records of a file."""
    with tcpkmon.open(path) as capture:
        records = ~capture.control()
        return {name: capture.column(name)[records] for name in names}


@pytest.mark.parametrize("rings", first(1, TRANSPORTS))
def test_none_merged_and_none_missing(tmp_path: Path, rings: str) -> None:
    path = tmp_path / "many.pm"
    with Space() as space, waiting(
        space.start([sys.executable, str(_CONNECTING)], env=environment())
    ) as process:
        program = Program(process)
        program.do(f"hold {OPEN}")
        begin = time.monotonic()
        with Collector(
            "--netns", space.path, "--columns", "classic,conn_id,cpu,serial",
            "--locations", "STATE_CHANGE,DESTROY", "--buffer-size", "16", "-o", str(path),
            "--rings", rings,
        ) as collector:  # fmt: skip
            collector.ready()
            attach_s = time.monotonic() - begin
            table = max(collector.maps(HASH, key_bytes=8), key=lambda one: one.value_bytes).id
            assert connections_in(table) == 2 * OPEN
            program.do(f"churn {SHORT}")
            program.do("leave")
            wait_until(lambda: connections_in(table) == 0, "the table is as empty as before")
            done = collector.finish()
    assert done.code == 0, done.stderr
    print(f"{OPEN} open and {SHORT} short connections; attached within {attach_s:.2f} s")
    assert attach_s < ATTACH_LIMIT_S
    assert "lost: none" in done.stderr
    verify(path, 0)
    found = columns(path, "location", "callvalue", "conn_id", "lport", "rport")
    location, value, number = found["location"], found["callvalue"], found["conn_id"]
    changes = location == STATE_CHANGE
    clients = number[changes & (value == SYN_SENT)]
    servers = number[changes & (value == SYN_RECV)]
    existing = number[location == EXISTING]
    assert (len(clients), len(servers), len(existing)) == (SHORT, SHORT, 2 * OPEN)
    everyone = np.concatenate((clients, servers, existing))
    assert len(np.unique(everyone)) == len(everyone)
    # Each ends once. The listener, which the capture saw only at its end, is one more.
    ends = Counter(number[location == DESTROY].tolist())
    assert all(ends[one] == 1 for one in everyone.tolist())
    assert ends.total() - len(everyone) <= 1
    # All of a connection's entries have its own ports, from the moment on when it has both.
    ports = found["lport"].astype(np.int64) << 16 | found["rport"]
    named = (found["lport"] > 0) & (found["rport"] > 0)
    pairs = np.unique(np.stack((number[named].astype(np.int64), ports[named])), axis=1)
    by_number = Counter(pairs[0].tolist())
    assert {by_number[one] for one in everyone.tolist()} == {1}
    # Half of the short ones had the same two ports, one after the other.
    assert (pairs[1] == (20_000 << 16 | program.port)).sum() == SHORT // 2
