# SPDX-License-Identifier: Apache-2.0
"""Transfers as people make them, with their programs: what `tcpkmon why` says of each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.lab import DEVICE, Bottleneck, Lab
from tcpkmon.collector.lab.namespaces import Side
from tests.truth.base import tell
from tests.truth.why import acts, net

SERVER, OTHER = "10.77.0.2", "10.77.0.1"
PROGRAMS = ("iperf3", "curl", "rsync")
_FAST = Bottleneck(rate_mbit=100, queue_bytes=60_000)
_HOME = Bottleneck(rate_mbit=20, queue_bytes=300_000)
_LOSSY = Bottleneck(rate_mbit=50, queue_bytes=150_000, loss_percent=1.0)
Play = Callable[[Lab, Path], None]


@dataclass(frozen=True)
class Transfer:
    """title: what people would say they did. words: what the verdict must have, as a regular
    expression. receiver: capture where it arrives, in b. play: what happens, from a to b. most:
    connections that are shown."""

    title: str
    words: str
    play: Play
    bottleneck: Bottleneck | None = None
    receiver: bool = False
    prepare: Callable[[Lab], None] | None = None
    most: int = 1
    congestion: str = "cubic"


def tool(side: Side, *command: str, timeout_s: float = 60.0) -> None:
    """A program in the foreground, whatever its exit code."""
    side.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(timeout_s)


@contextmanager
def serving(side: Side, command: Sequence[str], port: int) -> Iterator[None]:
    """A server, from when it listens."""
    with side.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                if f":{port} " in side.command(["ss", "-Hltn"]):
                    break
                time.sleep(0.05)
            yield
        finally:
            process.kill()


def python(code: str) -> list[str]:
    """A small program."""
    return [sys.executable, "-I", "-c", "import socket, sys, threading, time\n" + code]


def iperf3(*options: str, seconds: int = 2, **_: object) -> Play:
    """iperf3 from a to b."""

    def play(lab: Lab, folder: Path) -> None:
        with serving(lab.b, ["iperf3", "-s"], 5201):
            tool(lab.a, "iperf3", "-c", SERVER, "-t", str(seconds), *options)

    return play


def download(size: int, *options: str) -> Play:
    """curl in b gets a file from a web server in a."""

    def play(lab: Lab, folder: Path) -> None:
        (folder / "file").write_bytes(os.urandom(size))
        server = [sys.executable, "-I", "-m", "http.server", "--directory", str(folder), "80"]
        with serving(lab.a, server, 80):
            tool(lab.b, "curl", "-s", "-o", "/dev/null", *options, f"http://{OTHER}/file")

    return play


def many_downloads(count: int, size: int) -> Play:
    """Web pages, a connection each."""

    def play(lab: Lab, folder: Path) -> None:
        (folder / "page").write_bytes(bytes(size))
        server = [sys.executable, "-I", "-m", "http.server", "--directory", str(folder), "80"]
        code = (f"for n in range({count}):\n"
                f"    with socket.create_connection(('{OTHER}', 80)) as one:\n"
                "        one.sendall(b'GET /page HTTP/1.0\\r\\n\\r\\n')\n"
                "        while one.recv(1 << 16): pass")  # fmt: skip
        with serving(lab.a, server, 80):
            tool(lab.b, *python(code))

    return play


def rsync(lab: Lab, folder: Path) -> None:
    """rsync to a daemon: a tree of many small files."""
    tree, target = folder / "tree", folder / "target"
    target.mkdir()
    for number in range(1500):
        file = tree / f"{number % 40}" / f"{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(2000))
    (folder / "rsyncd.conf").write_text(
        f"use chroot = no\nuid = root\n[to]\npath = {target}\nread only = no\n"
    )
    daemon = ["rsync", "--daemon", "--no-detach", "--config", str(folder / "rsyncd.conf")]
    with serving(lab.b, daemon, 873):
        tool(lab.a, "rsync", "-a", f"{tree}/", f"rsync://{SERVER}/to/")


_ACCEPT = "s = socket.create_server(('', 7)); c, _ = s.accept()\n"
_READ = "while c.recv(1 << 16): pass"
_CONNECT = f"c = socket.create_connection(('{SERVER}', 7))\n"


def programs(server: str, client: str, options: str = "") -> Play:
    """Two small programs: a server in b, a client in a."""

    def play(lab: Lab, folder: Path) -> None:
        with serving(lab.b, python(_ACCEPT.replace("; c,", f"{options}; c,") + server), 7):
            tool(lab.a, *python(_CONNECT + client))

    return play


def unplugged(lab: Lab, folder: Path) -> None:
    """An upload whose path is gone for a second and a half."""
    acts.later(0.4, lambda: lab.drop(99.99))
    acts.later(1.9, lambda: lab.drop(0))
    programs(_READ, "end = time.time() + 3\nwhile time.time() < end: c.send(bytes(65536))")(
        lab, folder
    )


_BULK = "end = time.time() + 2\nwhile time.time() < end: c.sendall(bytes(65536))"
_STALLS = "while c.recv(1 << 18): time.sleep(0.3)"
_REQUESTS = ("for _ in range(80):\n    c.sendall(bytes(200))\n    got = 0\n"
             "    while got < 4000: got += len(c.recv(65536))")  # fmt: skip
_ANSWERS = "while c.recv(65536):\n    time.sleep(0.02)\n    c.sendall(bytes(4000))"
_TWO_WRITES = ("for _ in range(30):\n    c.sendall(bytes(50)); c.sendall(bytes(200))\n"
               "    c.recv(100)")  # fmt: skip
_ONE_ANSWER = ("got = 0\nwhile data := c.recv(65536):\n    got += len(data)\n"
               "    if got >= 250: c.sendall(bytes(100)); got -= 250")  # fmt: skip
_LOADS = ("c.setsockopt(socket.SOL_SOCKET, 32, 8 << 20)\n"
          "c.sendall(bytes(3 << 20)); c.close(); time.sleep(2)")  # fmt: skip
_SHIPPER = "for _ in range(40):\n    time.sleep(0.05); c.sendall(bytes(20000))"

TRANSFERS = (
    Transfer("iperf3 over a line with a deep queue", "congestion window", iperf3(),
             bottleneck=_HOME),
    Transfer("iperf3 over a line with a deep queue, bbr", "congestion window|paced",
             iperf3(), bottleneck=_HOME, congestion="bbr"),
    Transfer("iperf3 on a fast network, nothing in between",
             "send buffer|nothing to send|window|Nagle", iperf3()),
    Transfer("iperf3 -w 16K", "window|send buffer", iperf3("-w", "16K"), bottleneck=_FAST),
    Transfer("iperf3 --fq-rate 8M", "paced", iperf3("--fq-rate", "8M"), bottleneck=_FAST),
    Transfer("curl, a file of 8 MB", "congestion window", download(8 << 20), bottleneck=_FAST),
    Transfer("curl --limit-rate 2M: the reader is slow on purpose",
             "reads slowly|the receiver delays", download(8 << 20, "--limit-rate", "2M"),
             bottleneck=_FAST),
    Transfer("rsync of 1500 small files", "congestion window|nothing to send", rsync,
             bottleneck=_FAST),
    Transfer("a service that thinks for 20 ms about each request, seen at the client",
             "it waited for the sender", programs(_ANSWERS, _REQUESTS), bottleneck=_FAST),
    Transfer("requests that are written in two pieces", "Nagle",
             programs(_ONE_ANSWER, _TWO_WRITES), bottleneck=_FAST),
    Transfer("a reader that stalls for 0.3 s again and again", "reads (too )?slowly",
             programs(_STALLS, _BULK), bottleneck=_FAST),
    Transfer("the same reader, seen where it arrives", "reader", programs(_STALLS, _BULK),
             bottleneck=_FAST, receiver=True),
    Transfer("a log shipper that writes 20 kB twenty times a second", "nothing to send",
             programs(_READ, _SHIPPER), bottleneck=_FAST),
    Transfer("a lossy path", "congestion window|recovered", iperf3(), bottleneck=_LOSSY),
    Transfer("the same lossy path, seen where it arrives",
             "missing|waited for the sender or the path", iperf3(), bottleneck=_LOSSY,
             receiver=True),
    Transfer("an upload whose path was gone for 1.5 s", "timeout", unplugged, bottleneck=_FAST),
    Transfer("an upload through this host's own slow device", "this host's queue", iperf3(),
             prepare=net.local_queue(20, 1_000_000)),
    Transfer("one web page of 40 kB over a slow line", "congestion window", download(40_000),
             bottleneck=Bottleneck(rate_mbit=4, queue_bytes=200_000)),
    Transfer("a program that writes 3 MB and closes at once", "congestion window",
             programs(_READ, _LOADS), bottleneck=_HOME),
    Transfer("300 web pages, a connection each", "all 300 together", many_downloads(300, 3_000),
             bottleneck=_FAST, most=2),
)  # fmt: skip


def say(transfer: Transfer, folder: Path) -> str:
    """Captures a transfer; what `tcpkmon why` prints of it. TcpkmonError, PrivilegeError."""
    work, path = folder / "work", folder / "why.pm"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    with Lab(transfer.bottleneck) as lab:
        if transfer.prepare is not None:
            transfer.prepare(lab)
        for side, other in ((lab.a, SERVER), (lab.b, OTHER)):
            side.command(["ip", "route", "replace", f"{other}/32", "dev", DEVICE,
                          "congctl", transfer.congestion])  # fmt: skip
        side = lab.b if transfer.receiver else lab.a
        options = ["--format", "psc", "--netns", side.name, "--quiet",
                   "--columns", "default,ca_name,rcv_rtt_us"]  # fmt: skip
        with start("tcp", path, force=True, options=options, buffer_mb=32):
            transfer.play(lab, work)
    return tell("why", "-n", transfer.most, path)


PAGE = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by scripts/test --truth why --verdicts --docs; do not edit. -->
# What tcpkmon why says of real transfers

Programs that people use, in namespaces, over lines that the lab makes: what
[`tcpkmon why`](why.md) prints of each. The captures are of the sending host, unless the title says
otherwise, with `--columns default,ca_name,rcv_rtt_us`. Congestion control is cubic, except where it
is named. In the lab a path alone takes 10 us, so round trips of milliseconds are all queues.
"""


def page(said: Sequence[tuple[Transfer, str]]) -> str:
    """docs/verdicts.md."""
    parts = [PAGE]
    for transfer, text in said:
        parts += [f"## {transfer.title}\n", *(f"    {line}" for line in text.splitlines()), ""]
    return "\n".join(parts).rstrip() + "\n"
