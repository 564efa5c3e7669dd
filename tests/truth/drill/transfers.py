# SPDX-License-Identifier: Apache-2.0
"""Transfers over a test link, recorded; their scripts, played several times."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.pair import Pair, drain, join, listening
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.export.packetdrill import Options, make_script, read_connection
from tests.truth.conform.plays import capturing
from tests.truth.drill.language import ScriptError
from tests.truth.drill.player import play

SERVER = "10.77.0.2"
_BACK = Way(delay_ms=20)
_WAY = Way(rate_mbit=50, delay_ms=20)
_ROOM = 2_000_000
Act = Callable[[Pair], None]


def bulk(pair: Pair) -> None:
    """One call."""
    pair.client.sendall(bytes(200_000))
    time.sleep(0.5)


def pause(pair: Pair) -> None:
    """Two calls with a pause of many timeouts between them."""
    for _ in range(2):
        pair.client.sendall(bytes(100_000))
        time.sleep(1.0)


def requests(pair: Pair) -> None:
    """Requests and answers in turn."""
    for _ in range(3):
        pair.exchange(3000)
    time.sleep(0.3)


def message(pair: Pair) -> None:
    """A short one, in one direction."""
    pair.client.sendall(bytes(3000))
    time.sleep(0.5)


SYNS = "lost SYNs"
CASES: dict[str, tuple[Way, Act, str]] = {
    "loss": (replace(_WAY, lose=(30_000, 31_000)), bulk, "cubic"),
    "tail": (replace(_WAY, lose=(190_000, 200_000)), bulk, "cubic"),
    "random loss": (replace(_WAY, loss_percent=2), bulk, "cubic"),
    "reordering": (replace(_WAY, reorder_percent=3, reorder_ms=5), bulk, "cubic"),
    "pause": (_WAY, pause, "cubic"),
    "requests": (_WAY, requests, "cubic"),
    "reno": (replace(_WAY, lose=(30_000, 31_000)), bulk, "reno"),
    SYNS: (replace(_WAY, syn_loss=3), message, "cubic"),
}


def record(path: Path, name: str, server: bool = False) -> str:
    """Capture one transfer of this name into a file, at the client or the server; returns the
    connection, as -p takes it."""
    way, act, algorithm = CASES[name]
    with Lab(link=Link(way, _BACK)) as lab:
        side = lab.b if server else lab.a
        with capturing(side, path):
            with listening(lab.b, SERVER) as listener:
                chosen = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
                room = (socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
                pair = join(lab.a, listener, SERVER, [room, chosen])
            reading = drain(pair.server) if act is not requests else None
            time.sleep(0.1)
            act(pair)
            both = (pair.client_port, pair.server_port)
            ports = "{}.{}".format(*(both[::-1] if server else both))
            pair.close()
            if reading is not None:
                reading.join(5)
    return ports


def script_of(path: Path, connection: str, options: Options | None = None) -> str:
    """The script of a connection of a capture."""
    with Source(path) as source:
        return make_script(read_connection(source, connection), options)[0]


def try_play(text: str, settings: dict[str, str], times: int) -> tuple[int, str]:
    """How many of so many plays pass, and why the last one that failed did."""
    passed, why = 0, ""
    for _ in range(times):
        try:
            play(text, settings)
            passed += 1
        except ScriptError as error:
            why = str(error)
    return passed, why


def play_real(text: str, program: str) -> str:
    """Under packetdrill itself; returns what it says, "" if it passes."""
    with tempfile.NamedTemporaryFile("w", suffix=".pkt") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(["unshare", "-n", program, file.name], capture_output=True,
                              text=True, check=False)  # fmt: skip
    return done.stderr.strip() or str(done.returncode) if done.returncode else ""
