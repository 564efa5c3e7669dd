# SPDX-License-Identifier: Apache-2.0
"""What each row of MAGNeT in docs/then-and-now.md is checked by, and the session for that."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tcpkmon.collector import capturing

COUNT, SIZE, ANSWER, TOO_LONG = 20, 4000, 100, 70_000
WORK = "from tests.live.magnet_2001 import work; import sys; work(int(sys.argv[1]))"


def work(port: int) -> None:
    """Answered messages, a datagram that is too long, a connection that filters leave out."""
    for at, count in ((port, COUNT), (0, 1)):
        with socket.create_server(("127.0.0.1", at)) as listener:

            def serve(listener: socket.socket = listener, count: int = count) -> None:
                with listener.accept()[0] as end:
                    for _ in range(count):
                        end.recv(SIZE, socket.MSG_WAITALL)
                        end.sendall(bytes(ANSWER))

            server = threading.Thread(target=serve)
            server.start()
            with socket.create_connection(listener.getsockname()) as end:
                for _ in range(count):
                    end.sendall(bytes(SIZE))
                    end.recv(ANSWER, socket.MSG_WAITALL)
                server.join()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, suppress(OSError):
        udp.connect(("127.0.0.1", port))
        udp.send(bytes(TOO_LONG))


def record_2001(said: Any) -> None:
    """The texts of MAGNeT's commands: see Said in test_then_and_now_live.py."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ports, command = ("--ports", str(port)), (sys.executable, "-c", WORK, str(port))
    magnet = ("--schema", "magnet", "--format", "magnet", *ports)
    said.collect("lean", *magnet, "-o", "lean.magnet", "--", *command)
    more = ("--data", "--using", "driver")
    said.collect("data", *magnet, *more, "-o", "data.magnet", "--", *command)
    said.collect("call path", "--latency", *ports, "-o", "path", "--", *command)
    turn = ("--rotate-every", "1s", "--on-rotate", f"cp -t {said.folder}/shipped", "-o", "turns")
    (said.folder / "shipped").mkdir()
    said.collect("turns", *magnet, "--duration", "3s", *turn)
    shipped = Path(said.folder, "shipped").iterdir()
    said.texts["shipped"] = "\n".join(sorted(one.name for one in shipped))
    said.run("lean text", "magnet-parse", "lean.magnet")
    said.run("data text", "magnet-parse", "data.magnet")
    said.run("lean proof", "verify", "lean.magnet")
    said.run("path text", "decode", "--format", "json", "--merge",
             *map(str, sorted((said.folder / "path").iterdir())))  # fmt: skip
    said.run("latency", "latency", "path")
    old = struct.pack(">IQIi", 7, 123, 3, -11) + struct.pack(">IQIi", 0, 124, 0, 5)
    (said.folder / "old").write_bytes(old)
    said.run("i386", "magnet-parse", "--bits", "32", "--big-endian", "--event", "3=MAGNET_IP_SEND",
             "old")  # fmt: skip
    (said.folder / "old68").write_bytes(old[:20] + bytes(48))
    said.run("i386 data", "magnet-parse", "--bits", "32", "--big-endian", "--data",
             "--event", "3=MAGNET_IP_SEND", "old68")  # fmt: skip
    options = ("--format", "magnet", "--buffer-size", "0.008", *ports)
    with capturing.start("magnet", said.folder / "lossy.magnet", options=options) as capture:
        said.run_as_nobody("status 2001", "status", "--collector", str(capture.pid))
        said.stop_and(capture.pid, lambda: [work(port) for _ in range(10)])
        capture.status()  # it answers when it has drained its rings
        work(port)
    said.run("lossy text", "magnet-parse", "lossy.magnet")
    said.run("lossy proof", "verify", "lossy.magnet")


def line(event: str, size: str = r"-?\d+", more: str = "") -> str:
    """A line of the table: id, time, event, size."""
    return rf"^\d+\t\d+\tMAGNET_{event}\t{size}{more}"


LEAN, DATA, PATH = "lean text", "data text", "path text"
CHECKS = {
    "`struct magnet_data`, 24 bytes, or 120 with data; i386 20 and 68": (
        LEAN, r"^sockid\ttimestamp\tevent\tsize$", "@data text",
        r"^sockid\ttimestamp\tevent\tsize\tsource\tdest\tsnd_wnd\t.*\tprotocol$",
        "@i386", r"^7\t123\tMAGNET_IP_SEND\t-11$", "@i386 data", r"^7\t123\tMAGNET_IP_SEND\t-11\t"),
    "`sockid`: tells streams apart, and protects privacy": (
        LEAN, r"^1\t\d+\tMAGNET_SOCK_SEND\t", r"^2\t\d+\tMAGNET_SOCK_", r"\A(?!.*127\.0\.0\.1)",
        "@path text", r'"type":"MAGNET_CONNECTION".*"laddr":"127\.0\.0\.1"'),
    "`timestamp`: CPU cycles": (LEAN, r"^1\t\d{10,}\tMAGNET_"),
    "`size`: bytes moved, negative: the error": (
        LEAN, line("SOCK_SEND", str(SIZE)), line("SOCK_SEND", "-90")),
    "event names, MAGNET_LOST": (
        LEAN, line("SOCK_SEND"), line("DEV_RECV"), "@lossy text", r"^\d+\t\d+\tMAGNET_LOST\t\d+$"),
    "a full buffer counts, and writes one MAGNET_LOST with the count as soon as there is room": (
        "lossy text", r"MAGNET_LOST\t\d+\n(.*\n)*\d+\t\d+\tMAGNET_SOCK_SEND\t", "@lossy proof",
        r"adds up: \d+ lost, all accounted for"),
    "`struct magnet_tcp`": (DATA, line("TCP_SEND", str(SIZE), r"\t\d+\t\d+\t[1-9]\d*\t")),
    "`struct magnet_ip`": (DATA, line("DEV_SEND", r"\d+", r"\t.*\t4\t0\t\d+\t\d+\t64\t6$")),
    "the lean mode without data": (LEAN, r"^sockid\ttimestamp\tevent\tsize$"),
    "SOCK_SEND: application to socket": (LEAN, line("SOCK_SEND", str(SIZE))),
    "TCP_SEND: socket to TCP": (LEAN, line("TCP_SEND", str(SIZE))),
    "IP_SEND: TCP to IP": (LEAN, line("IP_SEND", str(SIZE)), "@path text",
                           r'"type":"IP_SEND".*"gso_segs":[1-9]'),
    "DEV_SEND: IP to driver": (
        LEAN, line("DEV_SEND", str(SIZE)), "@data text", line("DRIVER_START"),
        line("DRIVER_RESULT")),
    "DEV_RECV: driver to IP": (LEAN, line("DEV_RECV", str(SIZE))),
    "IP_RECV: IP to TCP": (LEAN, line("IP_RECV", str(SIZE))),
    "TCP_RECV: TCP to socket": (LEAN, line("TCP_RECV", str(SIZE))),
    "SOCK_RECV: socket to application": (LEAN, line("SOCK_RECV", str(SIZE))),
    "the path of data through the layers": (
        "latency", r"82,000 measured, 0 unknown", r"^whole +100\.0 %"),
    "/proc/net/magnet: state and parameters for any user": ("status 2001", r"^exit 0$", r"magnet"),
    "magnet-read: copies the ring into a file": (
        "lean", r"^exit 0$", r"records in lean\.magnet", "@lean proof", r"adds up: nothing lost"),
    "magnet-parse: a table parted by tabs, of either byte order": (
        LEAN, r"^exit 0$", "@i386", r"^7\t123\tMAGNET_IP_SEND\t-11$"),
    "magnet.cron, magnet.copy: new files, and their shipping": (
        "shipped", r"-000001\.magnet\n.*-000002\.magnet"),
    "whether the shipping is captured too": ("lean proof", r"^total +\d+ +[1-9]\d* +0 +\d+"),
}  # fmt: skip
