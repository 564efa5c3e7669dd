# SPDX-License-Identifier: Apache-2.0
"""collect --reconcile: the kernel's sockets against the last records, equal, lossy and tampered."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.live.capturing import ROOT, WAIT_S

CONNECTIONS, BYTES = 20, 5000
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{}
from tcpkmon.collector.commands import collect
collect.main()
"""
HIDES = """
from tcpkmon.collector.metrics.connections import Connections
add = Connections.add
def hide(self, entries):
    port = {port}
    add(self, entries[(entries["lport"] != port) & (entries["rport"] != port)])
Connections.add = hide
"""
CHANGES = """
from tcpkmon.collector.metrics.connections import Connections
values = Connections.values
def change(self, name, slots):
    found = values(self, name, slots)
    if name == "bytes_acked":
        found[values(self, "rport", slots) == {port}] += 17
    return found
Connections.values = change
"""


@contextmanager
def connections(count: int = CONNECTIONS) -> Iterator[tuple[int, list[Any]]]:
    """Open connections over loopback that are at rest, and the listener's port."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pairs = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            pairs.append((client, stack.enter_context(listener.accept()[0])))
        yield listener.getsockname()[1], pairs


def exchange(pairs: list[Any], times: int = 1) -> None:
    for client, server in pairs:
        for _ in range(times):
            client.sendall(bytes(BYTES))
            got = 0
            while got < BYTES:
                got += len(server.recv(BYTES))
            server.sendall(b"!")
            client.recv(1)


def capture(path: Path, port: int, work: Any, *options: str, patch: str = "") -> Report:
    """Reconcile a capture of this port during work()."""
    read, write = os.pipe()
    words = ["-q", "--reconcile", "--columns", "full", "--ports", str(port), "-o", str(path)]
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(patch), *words, "--ready-fd", str(write), *options],
        cwd=ROOT, pass_fds=[write], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read, "rb") as ready:
        assert ready.read(1), running.communicate()[1]
    work()
    threading.Event().wait(0.3)  # the last delayed ACKs
    running.send_signal(signal.SIGINT)
    told = running.communicate(timeout=WAIT_S)[1]
    assert running.returncode == 0, told
    return format_of(path).verify(path)[-1]


def lines(report: Report) -> list[str]:
    return [note for note in report.notes if note.startswith("reconciled")]


def test_equal_on_a_plain_capture(tmp_path: Path) -> None:
    with connections() as (port, pairs):
        exchange(pairs)
        with ExitStack() as stack:

            def work() -> None:
                exchange(pairs[::2])
                listener = pairs[0][1].getsockname()
                stack.enter_context(socket.create_connection(listener))
                pairs[3][1].close()  # it waits as a time-wait socket, the other end in CLOSE_WAIT

            report = capture(tmp_path / "a.pm", port, work)
    assert report.exit_code == 0, report.problems
    both = 2 * CONNECTIONS
    start, end = lines(report)
    assert start.endswith(f"at the start: {both} of {both} connections compared, 0 difference(s)")
    now = both + 2 - 1
    assert end.endswith(f"at the end: {now} of {now} connections compared, 0 difference(s)")


@pytest.mark.parametrize(
    ("patch", "what"),
    [(HIDES, "is open and has no record"), (CHANGES, "bytes acked")], ids=["hidden", "changed"],
)  # fmt: skip
def test_a_difference_is_a_line(tmp_path: Path, patch: str, what: str) -> None:
    with connections(3) as (port, pairs):
        ports = pairs[1][1].getpeername()[1]
        report = capture(
            tmp_path / "a.pm", port, lambda: exchange(pairs), patch=patch.format(port=ports)
        )
    assert report.exit_code == 5
    texts = [one.what for one in report.problems]
    assert any(what in text and f"{ports}" in text and "at the end" in text for text in texts)
    assert all(f"{ports}" in text for text in texts), texts
    assert "at the end: 6 of 6 connections" in lines(report)[1]


def test_losses_explain_differences(tmp_path: Path) -> None:
    with connections() as (port, pairs):
        small = ("--buffer-size", "0.008", "--low-water", "1")
        report = capture(tmp_path / "a.pm", port, lambda: exchange(pairs, 200), *small)
    assert report.lost_total, "the ring was too large"
    assert report.exit_code == 3, report.problems
    assert "lost records may explain them" in lines(report)[1]
