# SPDX-License-Identifier: Apache-2.0
"""The example of docs/schemata.md for probes at packets, page faults and functions of libc."""

from __future__ import annotations

import mmap
import re
import socket
import threading
from pathlib import Path

from tests.live.capturing import ROOT
from tests.live.schema_logs import logging, make_schema

GUIDE = ROOT / "docs" / "schemata.md"
PAGES = 64


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    text = GUIDE.read_text().partition("A schema that shows why a thread was slow")[2]
    conf, code = re.findall(r"```c?\n(.*?)```", text, re.DOTALL)[:2]
    folder = make_schema(tmp_path / "slow", conf, code)
    with logging(tmp_path / "log", str(folder)) as running:
        socket.getaddrinfo("127.0.0.1", 80)
        with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(PAGES):
                memory[page * mmap.PAGESIZE] = 1
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(("127.0.0.1", 0))
            one.sendto(bytes(1234), one.getsockname())
            one.recv(2000)
        log = running.finish()
    me = threading.get_native_id()
    if "LOOKED_UP" not in log.missing:
        assert [found["error"] for found in log.of("LOOKED_UP", pid=me)] == [0]
    assert len(log.of("FAULTED", pid=me)) >= PAGES
    if "PACKET_IN" not in log.missing:
        assert log.of("PACKET_IN", bytes=1234 + 8 + 20)
