# SPDX-License-Identifier: Apache-2.0
"""The traffic of tcpkmon selftest, in a lab's two namespaces, and what others count of it.

The kernel's counters belong to a namespace and begin with it, so they are the lab's alone.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpkmon.collector.lab.counters import counters, losing
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.lab.pair import Pair, connected, join, listening, look, make_socket, receive
from tcpkmon.collector.lab.traffic import Exchange, Result, Tally, Workload
from tcpkmon.collector.plan.cgroups import find_cgroup
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import TcpkmonError

End = tuple[str, int, str, int]
"""An end of a connection: local address and port, remote address and port."""

RESET_PORT = 40_000
WAIT_S = 20.0
TCP_INFO_BYTES = 512
_LARGE = "meta l4proto tcp meta length > 200"
_SYN_ACK = "tcp flags & (syn|ack) == (syn|ack)"
_SMALL_BUFFER = 4096


@dataclass(frozen=True)
class Counts:
    """What the applications and the kernel counted.

    exchanges: by name; kernel: /proc/net/snmp and netstat of a and b.
    """

    exchanges: dict[str, Result]
    kernel: dict[str, Counter[str]]

    def all(self, name: str) -> int:
        """A counter of the kernel, of both namespaces."""
        return sum(side[name] for side in self.kernel.values())


def ends_of(*tallies: Tally) -> Counter[End]:
    """How often each end was there."""
    return Counter(
        (_plain(one.local), one.local_port, _plain(one.remote), one.remote_port)
        for tally in tallies
        for one in tally.connections
    )


class Traffic(Closing):
    """Connections that wait, in `lab`. Start the captures, then run()."""

    def __init__(self, lab: Lab) -> None:
        self._stack = ExitStack()
        self._lab = lab
        try:
            self.early: Pair = self._stack.enter_context(connected(lab))
            self.exchanges = {
                "v4": self._prepare(Workload(lab.b.address4, connections=5, count=50, reply=100)),
                "v6": self._prepare(Workload(lab.b.address6, connections=3, count=20, reply=100)),
                "resets": self._prepare(
                    Workload(lab.b.address4, client_port=RESET_PORT, connections=3, size=10,
                             reply=10, reset=True)),
            }  # fmt: skip
            self.cgroup = self._make_cgroup()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what still runs. A second call does nothing."""
        self._stack.close()

    def run(self) -> Counts:
        """Make the traffic; some 4 s. TcpkmonError where the kernel does not do what it should."""
        for exchange in self.exchanges.values():
            exchange.go()
        results = {name: exchange.finish() for name, exchange in self.exchanges.items()}
        for make in (_lose_data, _lose_handshake, _fill_window, _shrink_buffer):
            make(self._lab)
        self.calm = self._stack.enter_context(connected(self._lab, self._lab.b.address6))
        for _ in range(3):
            self.calm.exchange(20_000)
        kernel = {"a": counters(self._lab.a), "b": counters(self._lab.b)}
        return Counts(results, kernel)

    def at_rest(self) -> list[tuple[End, bytes, str]]:
        """Both ends of a connection on which nothing moves: its ends, struct tcp_info, ss's line.

        The last call on each is one that receives nothing, so a capture has its state.
        """
        sides = (self._lab.a, self.calm.client), (self._lab.b, self.calm.server)

        def twice() -> list[tuple[End, bytes, str]] | None:
            before = [_ss(side, end) for side, end in sides]
            for _, end in sides:
                look(end)
            found = [
                ((*end.getsockname()[:2], *end.getpeername()[:2]), _tcp_info(end), _ss(side, end))
                for side, end in sides
            ]
            calm = not any("unacked:" in text or "timer" in text for text in before)
            return found if calm and [text for *_, text in found] == before else None

        return list(wait_until("a connection at rest", twice))

    def _prepare(self, workload: Workload) -> Exchange:
        exchange = Exchange(workload, self._lab.a.namespace.fd, self._lab.b.namespace.fd)
        self._stack.callback(exchange.stop)
        return exchange

    def _make_cgroup(self) -> Path | None:
        """A cgroup with the client of v6; None where that cannot be made."""
        pid = self.exchanges["v6"].client.pid
        try:
            path = Path(find_cgroup("/").path, f"tcpkmon-selftest-{pid}")
            path.mkdir()
            self._remove_later(path)
            (path / "cgroup.procs").write_text(str(pid))
        except (OSError, TcpkmonError):
            return None
        return path

    def _remove_later(self, path: Path) -> None:
        def remove() -> None:
            with suppress(OSError):
                path.rmdir()

        # Before the process that is in it is stopped, the folder cannot be removed.
        self._stack.callback(remove)
        self._stack.callback(self.exchanges["v6"].stop)


def wait_until(what: str, call: Callable[[], Any]) -> Any:
    """Call until the result is true, and return that. TcpkmonError after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not (answer := call()):
        if time.monotonic() > deadline:
            raise TcpkmonError(f"this kernel did not show {what} in {WAIT_S:.0f} s")
        time.sleep(0.01)
    return answer


def _lose_data(lab: Lab) -> None:
    """A blackout: RTO, LOSS_PROBE, RETRANSMIT, CONG_STATE."""
    with connected(lab) as pair:
        pair.exchange()
        with losing(lab.b, _LARGE):
            pair.client.sendall(bytes(1000))
            wait_until("timeouts", lambda: counters(lab.a)["TCPTimeouts"] >= 2)
        receive(pair.server, 1000)
        pair.exchange(3000)


def _lose_handshake(lab: Lab) -> None:
    """SYN-ACKs that are lost: RETRANSMIT_SYNACK."""
    with (
        listening(lab.b, lab.b.address4) as listener,
        make_socket(lab.a) as client,
        losing(lab.a, _SYN_ACK),
    ):
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(listener.getsockname())
        wait_until("a second SYN-ACK", lambda: counters(lab.b)["TCPSynRetrans"])


def _fill_window(lab: Lab) -> None:
    """A receiver that does not read: ZERO_WINDOW_PROBE."""
    with make_socket(lab.b) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        listener.bind((lab.b.address4, 0))
        listener.listen()
        pair = join(lab.a, listener, lab.b.address4)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += pair.client.send(bytes(10_000), socket.MSG_DONTWAIT)
    wait_until("a window probe", lambda: counters(lab.a)["TCPWinProbe"])
    receive(pair.server, sent)
    pair.close()


def _shrink_buffer(lab: Lab) -> None:
    """A receive buffer that shrinks under what is on its way: RCVQ_FULL."""
    with connected(lab) as pair:
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
        pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        sent = 0
        with suppress(BlockingIOError):
            while sent < 60_000:
                sent += pair.client.send(bytes(1000), socket.MSG_DONTWAIT)
        wait_until("a full receive queue", lambda: counters(lab.b)["TCPRcvQDrop"])
        receive(pair.server, sent)


def _ss(side: Side, end: socket.socket) -> str:
    """What ss tells of a connection, without what only counts time."""
    text = side.command(["ss", "-tinoeH", f"sport = :{end.getsockname()[1]}"])
    lines = [line for line in text.splitlines() if not line.startswith("LISTEN")]
    return re.sub(r"(?:lastsnd|lastrcv|lastack|ato):\d+", "", " ".join(" ".join(lines).split()))


def _tcp_info(end: socket.socket) -> bytes:
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")
