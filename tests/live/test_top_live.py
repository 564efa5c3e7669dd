# SPDX-License-Identifier: Apache-2.0
"""tcpkmon top and collect --top in a terminal of 80 columns, with traffic; the screen is read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte
import pytest

from tests.full import first
from tests.live.capturing import ROOT, capturing, read, wait_until
from tests.live.test_metrics_live import folder  # noqa: F401  (a fixture)

COLUMNS, LINES = 80, 24
LIMIT_S = 60.0
EACH, PAUSE_S = 1000, 0.002


class Terminal:
    """A command in a terminal of its own, what it wrote, and what its screen shows."""

    def __init__(self, *words: str) -> None:
        self.written = bytearray()
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.chdir(ROOT)
            os.environ["TERM"] = "xterm"
            os.execv(words[0], words)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self.screen)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def read(self, timeout_s: float = 0.05) -> list[str]:
        """The lines on the screen now."""
        if select.select([self._fd], [], [], timeout_s)[0]:
            try:
                part = os.read(self._fd, 1 << 16)
                self.written += part
                self._stream.feed(part)
            except OSError:  # the command has ended
                time.sleep(timeout_s)
        return [line.rstrip() for line in self.screen.display]

    def until(self, what: Callable[[list[str]], Any]) -> Any:
        """Read until this is true of the lines; its result."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := what(self.read())):
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
        return found

    def end(self) -> int:
        """Wait for the command's end; its exit code."""
        status: list[int] = []

        def ended() -> bool:
            self.read()
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status.append(code)
            return bool(pid)

        wait_until(ended, timeout_s=LIMIT_S)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status[-1])


def command(name: str, *words: str) -> tuple[str, ...]:
    program = f"from tcpkmon.collector.commands.{name} import main; main()"
    return sys.executable, "-c", program, *words


@contextmanager
def traffic() -> Iterator[tuple[int, int]]:
    """A connection that sends 1000 bytes each 2 ms, at most 500 KB/s; ports of client, server."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()

        def send() -> None:
            while not over.wait(PAUSE_S):
                client.sendall(bytes(EACH))

        def receive() -> None:
            while server.recv(1 << 16):
                pass

        threads = [threading.Thread(target=one) for one in (send, receive)]
        for thread in threads:
            thread.start()
        try:
            yield client.getsockname()[1], listener.getsockname()[1]
        finally:
            over.set()
            threads[0].join()
            client.close()
            threads[1].join()
            server.close()


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    """The cells of the connections' lines by local port."""
    cells = [line.split() for line in lines if line.startswith(":")]
    return {one[0].removeprefix(":"): one for one in cells}


def number(text: str) -> float:
    return float(text.removesuffix("K")) * (1000 if text.endswith("K") else 1)


def check_rates(terminal: Terminal, client: int, server: int) -> None:
    """What both ends' lines say is what the traffic does."""

    def both(lines: list[str]) -> Any:
        rows = rows_of(lines)
        there = {str(client), str(server)} <= set(rows)
        return rows if there and rows[str(client)][3] != "0" else None

    rows = terminal.until(both)
    sends, receives = rows[str(client)], rows[str(server)]
    assert sends[1] == f"127.0.0.1:{server}" and receives[1] == f"127.0.0.1:{client}"
    assert sends[2] == receives[2] == "ESTAB"
    assert 20_000 < number(sends[3]) <= 550_000 and sends[4] == "0"
    assert receives[3] == "0" and 20_000 < number(receives[4]) <= 550_000
    assert 0 < float(sends[6]) <= float(sends[5]) < 200, "minimum and smoothed round-trip time"
    assert int(sends[7]) >= 10 and sends[8] == "0", "segments of the initial window; none again"


def test_top_shows_rates_sorts_filters_pauses_and_quits(
    folder: Path, tmp_path: Path  # noqa: F811
) -> None:
    with traffic() as (client, server):
        ports = ("--ports", str(server))
        with capturing(tmp_path / "run.pm", *ports) as running:
            terminal = Terminal(*command("tcpkmon", "top"))
            check_rates(terminal, client, server)
            terminal.press(">")
            terminal.until(lambda lines: "sort acked" in lines[0])
            terminal.until(lambda lines: list(rows_of(lines)) == [str(client), str(server)])
            terminal.press(">")
            terminal.until(lambda lines: "sort received" in lines[0])
            terminal.until(lambda lines: list(rows_of(lines)) == [str(server), str(client)])
            terminal.press(f"/:{client}\r")
            terminal.until(lambda lines: f"/:{client}" in lines[0])
            assert len(rows_of(terminal.read())) == 2, "a line has it as local or remote"
            terminal.press("/none\r")
            terminal.until(lambda lines: not rows_of(lines))
            terminal.press("/\rg")
            service = min(client, server)  # it was open before: nobody knows who called
            terminal.until(lambda lines: any(f"remote {service}" in line for line in lines))
            terminal.press("gg")
            terminal.until(lambda lines: lines[1].startswith("LOCAL") and rows_of(lines))
            terminal.press("/\r ")
            before = terminal.until(lambda lines: "paused" in lines[0] and rows_of(lines))
            until_s = time.monotonic() + 1.5
            while time.monotonic() < until_s:
                assert rows_of(terminal.read()) == before
            terminal.press("q")
            assert terminal.end() == 0
            running.interrupt()
            running.stop().check_complete()


def test_connections_that_end_within_the_second_are_counted_in_groups(
    folder: Path, tmp_path: Path  # noqa: F811
) -> None:
    """50 connections a second: the groups count their ends, at this host and at the peer's."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = listener.getsockname()[1]

        def exchange() -> None:
            while not over.wait(0.02):
                with socket.create_connection(("127.0.0.1", server)):
                    listener.accept()[0].close()

        thread = threading.Thread(target=exchange)
        with capturing(tmp_path / "run.pm", "--ports", str(server)) as running:
            thread.start()
            terminal = Terminal(*command("tcpkmon", "top", "--by", "port", "--collector", "run.pm"))

            def counted(lines: list[str]) -> bool:
                found = {" ".join(line.split()[:2]): line.split()[3:5] for line in lines[2:4]}
                return all(
                    20 < int(rate) <= 55
                    for side in ("local", "remote")
                    for rate in found.get(f"{side} {server}", ("0",))
                )

            terminal.until(counted)
            terminal.press("q")
            assert terminal.end() == 0
            over.set()
            thread.join()
            running.interrupt()
            running.stop().check_complete()


@pytest.mark.parametrize("end", first(1, ["q", "\x03"]), ids=["q", "ctrl-c"])
def test_collect_top_ends_the_capture_in_order(
    folder: Path, tmp_path: Path, end: str  # noqa: F811
) -> None:
    path = tmp_path / "run.pm"
    with traffic() as (client, server):
        columns = ("--columns", "default,pid,comm")
        words = ("--top", "-o", str(path), "--ports", str(server), *columns)
        terminal = Terminal(*command("collect", *words))
        check_rates(terminal, client, server)
        assert terminal.until(lambda lines: [one for one in lines if "OWNER" in one])
        terminal.press(end)
        assert terminal.end() in (0, 130)
    outcome = read(path)
    outcome.check_complete()
    assert len(outcome.records) > 100


def test_collect_top_ends_where_no_capture_begins(tmp_path: Path) -> None:
    terminal = Terminal(*command("collect", "--top", "-o", str(tmp_path / "none/run.pm")))
    assert terminal.end() == 1
    assert re.fullmatch(rb"attaching.*\x1b\[K.*: no such directory.*\s+", terminal.written)
