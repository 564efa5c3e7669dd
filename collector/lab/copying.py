# SPDX-License-Identifier: Apache-2.0
"""A copy of a path in a lab, over which transfers are played with chosen settings.

Sysctls and routes are those of the lab's namespaces; those of the host are not touched.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.lab.endpoint import can_use_congestion
from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.lab.link import Link
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.lab.pair import Pair, join, listening
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

_CHUNK = 16 << 10
_MOST_WAIT_S = 120.0
PORT = 5001


@dataclass(frozen=True)
class Ends:
    """Settings of a play. sender, receiver: of net.ipv4, by name. initcwnd: of the route, 0: the
    kernel's own. qdisc: of the sender's device, as tc takes it; empty: the kernel's own."""

    sender: Mapping[str, str] = field(default_factory=dict)
    receiver: Mapping[str, str] = field(default_factory=dict)
    congestion: str = ""
    initcwnd: int = 0
    qdisc: str = ""


@dataclass(frozen=True)
class Play:
    """port: the sender's. latency_us: (n,) from when a piece was written until it was read."""

    port: int
    latency_us: NDArray[Any]


class Copy(Closing):
    """The lab with its link, until close(). mtu: of its devices [bytes]. Errors as Lab has them."""

    def __init__(self, link: Link, mtu: int = 1500) -> None:
        self._lab = Lab(link=link)
        self._qdisc = ""
        self._lab.__enter__()
        try:
            for side in (self._lab.a, self._lab.b):
                side.command(["ip", "link", "set", "dev", DEVICE, "mtu", str(mtu)])
                side.set_sysctls({"net.ipv4.tcp_no_metrics_save": "1"})
            self.begun = self._lab.a.run(_settings)
            """net.ipv4.tcp_* of the namespaces, as they began."""
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """Of the sender's namespace."""
        return self._lab.a.name

    def close(self) -> None:
        self._lab.close()

    def change(self, link: Link) -> None:
        """The path is so from now on."""
        assert self._lab.wire is not None
        self._lab.wire.change(0, link.there)
        self._lab.wire.change(1, link.back)

    def set(self, ends: Ends) -> None:
        """From the next play on. UsageError: what this kernel refuses."""
        lab = self._lab
        lab.a.set_sysctls(_ipv4(ends.sender))
        lab.b.set_sysctls(_ipv4(ends.receiver))
        _route(lab.a, lab.b.address4, ends.initcwnd)
        if ends.qdisc != self._qdisc:
            _queue(lab.a, ends.qdisc)
            self._qdisc = ends.qdisc
        if ends.congestion and not lab.a.run(partial(can_use_congestion, ends.congestion)):
            raise UsageError(f"this kernel has no congestion control {ends.congestion}",
                             "modprobe tcp_NAME, where it is a module")  # fmt: skip

    def play(self, bursts: Sequence[tuple[float, int]], ends: Ends) -> Play:
        """Send bursts, each after a pause [s] since all before was acknowledged. bytes > 0.

        UsageError: a setting that this kernel refuses. TcpkmonError: it does not end.
        """
        lab = self._lab
        self.set(ends)
        option = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, ends.congestion.encode())
        with listening(lab.b, lab.b.address4, PORT) as listener:
            pair = join(lab.a, listener, lab.b.address4, [option] if ends.congestion else [])
        port = pair.client_port
        reader = _Reader(pair.server, sum(nbytes for _, nbytes in bursts))
        reader.start()
        try:
            written = _send(pair, reader, bursts)
        finally:
            with suppress(OSError):
                pair.client.shutdown(socket.SHUT_RDWR)
            reader.join(5)
            pair.close()
        arrived = np.array(reader.seen, np.float64).reshape(-1, 2)
        at = np.searchsorted(arrived[:, 0], written[:, 0])
        return Play(port, 1e6 * (arrived[at, 1] - written[:, 1]))


class _Reader(threading.Thread):
    """Reads all that comes. seen: how much came until when. It holds no more than it must."""

    def __init__(self, end: socket.socket, total: int) -> None:
        super().__init__(daemon=True)
        self._end, self._total = end, total
        self.seen: list[tuple[int, float]] = []

    def has(self, count: int) -> bool:
        """Whether so many bytes came."""
        return bool(self.seen) and self.seen[-1][0] >= count

    def run(self) -> None:
        room, count = bytearray(1 << 18), 0
        with suppress(OSError):
            while count < self._total and (got := self._end.recv_into(room)):
                count += got
                self.seen.append((count, time.monotonic()))


def _send(pair: Pair, reader: _Reader, bursts: Sequence[tuple[float, int]]) -> NDArray[Any]:
    """(n, 2) of each piece: where it ends, and when it was written."""
    end, block = 0, bytes(_CHUNK)
    written: list[tuple[float, float]] = []
    for number, (pause_s, nbytes) in enumerate(bursts, 1):
        time.sleep(pause_s)
        left = nbytes
        while left:
            sent = pair.client.send(memoryview(block)[: min(left, _CHUNK)])
            left, end = left - sent, end + sent
            written.append((end, time.monotonic()))
        if number == len(bursts):
            pair.client.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _MOST_WAIT_S
        while not reader.has(end):
            if time.monotonic() > deadline or not (reader.is_alive() or reader.has(end)):
                raise TcpkmonError("the copy's transfer did not end", "try a shorter part of it: "
                                   "--seconds 3")  # fmt: skip
            time.sleep(0.001)
    return np.array(written)


def _ipv4(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"net.ipv4.{name}": value for name, value in settings.items()}


def _settings() -> dict[str, str]:
    found = {}
    for path in Path("/proc/sys/net/ipv4").glob("tcp_*"):
        with suppress(OSError, UnicodeDecodeError):
            found[path.name] = path.read_text().strip()
    return found


def _route(side: Side, address: str, initcwnd: int) -> None:
    route = [f"{address}/32", "dev", DEVICE]
    if initcwnd:
        side.command(["ip", "route", "replace", *route, "initcwnd", str(initcwnd)])
    else:
        side.command(["ip", "route", "flush", f"{address}/32"])


def _queue(side: Side, qdisc: str) -> None:
    """UsageError where the kernel, or tc, does not take it."""
    if not qdisc:
        side.command(["tc", "qdisc", "del", "dev", DEVICE, "root"])
        return
    try:
        side.command(["tc", "qdisc", "replace", "dev", DEVICE, "root", *qdisc.split()])
    except subprocess.CalledProcessError as error:
        name = qdisc.partition(" ")[0]
        raise UsageError(
            f"no queueing discipline {qdisc} here: {' '.join(error.stderr.split())}",
            f"modprobe sch_{name}, where it is a module; its words: tc qdisc add {name} help",
        ) from None
