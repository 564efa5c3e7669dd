# SPDX-License-Identifier: Apache-2.0
"""Counted traffic for the schema network: what a test does, so that it knows what was logged."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.lab.namespaces import Side
from tests.live.capturing import (
    WAIT_S,
    Pair,
    family_of,
    join,
    listening,
    make_socket,
    wait_until,
)

CONNECTIONS = 4
EXCHANGES = 3
"""Of MESSAGE bytes there and back, on each connection."""
MESSAGE = 100
DATAGRAMS = (0, 1, 200, 700)
"""Bytes of each datagram of run_udp()."""
PIECES = (300, 500)
"""Bytes of what a corked socket gathers."""
LARGE = 4000
"""Bytes of a datagram that takes three packets."""
ECHOES = 3
UDP_CORK = 1
CLOSED_PORT = 9
_NODAD = 0x02
_PERMANENT = 0x80
_SETTLED = {"06", "0A"}  # TIME_WAIT, LISTEN


@dataclass(frozen=True)
class Net:
    """A lab whose traffic no other test's can be taken for: addresses of this process."""

    lab: Lab
    a: dict[int, str]
    b: dict[int, str]
    """By the version of IP."""

    def counters(self, side: Side, protocol: str) -> dict[str, int]:
        """The kernel's own counters of a namespace: a line of /proc/net/snmp."""
        lines = _read(side, "snmp").splitlines()
        names, values = (line.split() for line in lines if line.startswith(f"{protocol}:"))
        return dict(zip(names[1:], map(int, values[1:]), strict=True))


@contextmanager
def open_net() -> Iterator[Net]:
    """Two namespaces; what they say of their own accord comes from other addresses."""
    number = os.getpid()
    prefix4 = f"10.{100 + number // 250 % 100}.{number % 250}"
    prefix6 = f"fd78:{number & 0xFFFF:x}:"
    net_a, net_b = ({4: f"{prefix4}.{n}", 6: f"{prefix6}:{n}"} for n in (1, 2))
    with Lab() as lab:
        for side, own, other, far in (
            (lab.a, net_a, net_b, lab.b),
            (lab.b, net_b, net_a, lab.a),
        ):
            with far.routes() as routes:
                index = routes.link_lookup(ifname=DEVICE)[0]
                hardware = routes.get_links(index)[0].get("address")
            with side.routes() as routes:
                index = routes.link_lookup(ifname=DEVICE)[0]
                routes.addr("add", index=index, address=own[4], prefixlen=24)
                routes.addr("add", index=index, address=own[6], prefixlen=64, flags=_NODAD)
                for version in (4, 6):
                    routes.neigh(
                        "replace",
                        dst=other[version],
                        lladdr=hardware,
                        ifindex=index,
                        state=_PERMANENT,
                    )
        yield Net(lab, net_a, net_b)


@dataclass
class Done:
    """Ports of what was done: TCP's are (client, server) of each connection."""

    listener: int = 0
    flows: list[tuple[int, int]] = field(default_factory=list)
    sender: int = 0
    receiver: int = 0


def run_tcp(net: Net, version: int) -> Done:
    """CONNECTIONS one after the other, each with EXCHANGES; the client closes first."""
    address = net.b[version]
    done = Done()
    with listening(net.lab.b, address) as listener:
        done.listener = listener.getsockname()[1]
        for _ in range(CONNECTIONS):
            pair = join(net.lab.a, listener, address)
            done.flows.append((pair.client_port, pair.server_port))
            for _ in range(EXCHANGES):
                pair.exchange(MESSAGE)
            pair.client.close()
            assert pair.server.recv(1) == b""
            pair.server.close()
    _settle(net)
    return done


def run_urgent(net: Net) -> Done:
    """One byte out of band."""
    with _one_connection(net) as (pair, done):
        pair.client.send(b"!", socket.MSG_OOB)
        poll = select.poll()
        poll.register(pair.server, select.POLLPRI)
        assert poll.poll(WAIT_S * 1000)
        assert pair.server.recv(1, socket.MSG_OOB) == b"!"
    return done


def run_reset(net: Net) -> Done:
    """A connection that its client breaks off."""
    with _one_connection(net) as (pair, done):
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pair.client.close()
        try:
            pair.server.recv(1)
        except ConnectionResetError:
            return done
    raise AssertionError("the reset did not arrive")


def run_again(net: Net) -> Done:
    """Two connections with the same ports, the first broken off, the second in order."""
    done = Done()
    with listening(net.lab.b, net.b[4]) as listener:
        done.listener = listener.getsockname()[1]
        for linger in (1, 0):
            client = make_socket(net.lab.a)
            client.bind((net.a[4], done.flows[0][0] if done.flows else 0))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", linger, 0))
            client.connect((net.b[4], done.listener))
            pair = Pair(client, listener.accept()[0])
            done.flows.append((pair.client_port, pair.server_port))
            pair.exchange(MESSAGE)
            pair.close()
    _settle(net)
    return done


def run_mapped(net: Net) -> Done:
    """A connection over IPv4 to a listener of IPv6, made in the background."""
    with listening(net.lab.b, "::") as listener:
        port = listener.getsockname()[1]
        client = make_socket(net.lab.a)
        client.setblocking(False)
        assert client.connect_ex((net.b[4], port)) == errno.EINPROGRESS
        assert select.select([], [client], [], WAIT_S)[1]
        assert client.connect_ex((net.b[4], port)) == 0
        client.setblocking(True)
        pair = Pair(client, listener.accept()[0])
    done = Done(port, [(pair.client_port, port)])
    pair.exchange(MESSAGE)
    pair.close()
    _settle(net)
    return done


@contextmanager
def _one_connection(net: Net) -> Iterator[tuple[Pair, Done]]:
    with listening(net.lab.b, net.b[4]) as listener:
        pair = join(net.lab.a, listener, net.b[4])
    done = Done(pair.server_port, [(pair.client_port, pair.server_port)])
    try:
        yield pair, done
    finally:
        pair.close()
        _settle(net)


def run_udp(net: Net, version: int) -> Done:
    """DATAGRAMS without a connection, one with, the connection given up, and one in fragments."""
    with _udp_pair(net, version) as (sender, receiver):
        target = receiver.getsockname()
        for size in DATAGRAMS:
            assert sender.sendto(bytes(size), target) == size
            assert len(receiver.recv(1 << 16)) == size
        sender.connect(target)
        sender.send(bytes(10))
        assert len(receiver.recv(1 << 16)) == 10
        done = Done(sender=sender.getsockname()[1], receiver=target[1])
        disconnect(sender)  # and the port with it, which the kernel had chosen
        sender.sendto(bytes(LARGE), target)
        assert len(receiver.recv(1 << 16)) == LARGE
        return done


def run_corked(net: Net, version: int) -> Done:
    """PIECES as one datagram; then PIECES that are thrown away, since the socket is closed."""
    with _udp_pair(net, version) as (sender, receiver):
        sender.connect(receiver.getsockname())
        sender.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
        for size in PIECES:
            sender.send(bytes(size))
        sender.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0)
        assert len(receiver.recv(1 << 16)) == sum(PIECES)
        sender.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
        for size in PIECES:
            sender.send(bytes(size))
        return Done(sender=sender.getsockname()[1], receiver=receiver.getsockname()[1])


@contextmanager
def _udp_pair(net: Net, version: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = family_of(net.b[version])
    kind = socket.SOCK_DGRAM
    with (
        net.lab.a.run(lambda: socket.socket(family, kind)) as sender,
        net.lab.b.run(lambda: socket.socket(family, kind)) as receiver,
    ):
        for each, address in ((sender, net.a[version]), (receiver, net.b[version])):
            _bound_waits(each)
            each.bind((address, 0))
        yield sender, receiver


def disconnect(end: socket.socket) -> None:
    """connect() to AF_UNSPEC, which Python cannot say."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(end.fileno(), bytes(16), 16):
        raise OSError(ctypes.get_errno(), "connect(AF_UNSPEC)")


def run_echoes(net: Net, version: int) -> None:
    """ECHOES requests from a raw socket in a, each answered by the kernel of b."""
    if version == 4:
        family, protocol, request, reply, head = socket.AF_INET, socket.IPPROTO_ICMP, 8, 0, 20
    else:
        family, protocol, request, reply, head = socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129, 0
    with net.lab.a.run(lambda: socket.socket(family, socket.SOCK_RAW, protocol)) as raw:
        _bound_waits(raw)
        for number in range(ECHOES):
            message = struct.pack("!BBHHH", request, 0, 0, os.getpid() & 0xFFFF, number) + bytes(24)
            if version == 4:  # of version 6 the kernel makes the checksum itself
                message = message[:2] + _checksum(message) + message[4:]
            raw.sendto(message, (net.b[version], 0))
            while True:
                answer = raw.recv(1 << 16)[head:]
                if answer[0] == reply and answer[4:8] == message[4:8]:
                    break


def run_refused(net: Net, version: int) -> None:
    """A datagram to a port that nobody has."""
    family = family_of(net.b[version])
    with net.lab.a.run(lambda: socket.socket(family, socket.SOCK_DGRAM)) as sender:
        _bound_waits(sender)
        sender.connect((net.b[version], CLOSED_PORT))
        sender.send(bytes(8))
        try:
            sender.recv(1)
        except ConnectionRefusedError:
            return
    raise AssertionError("nobody told that the port is closed")


def run_left_open(count: int) -> int:
    """A process that ends with so many sockets open; its pid."""
    program = f"""
import os, socket, threading
held = [socket.socket() for _ in range({count})]
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os._exit(0)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL)
    assert process.wait(WAIT_S) == 0
    return process.pid


def _settle(net: Net) -> None:
    """Returns once no connection is under way any more."""
    for side in (net.lab.a, net.lab.b):
        wait_until(lambda side=side: _states(side) <= _SETTLED)


def _states(side: Side) -> set[str]:
    lines = [*_read(side, "tcp").splitlines()[1:], *_read(side, "tcp6").splitlines()[1:]]
    return {line.split()[3] for line in lines}


def _read(side: Side, name: str) -> str:
    return side.run(lambda: Path(f"/proc/thread-self/net/{name}").read_text())


def _bound_waits(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(WAIT_S), 0))


def _checksum(message: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(message) // 2}H", message))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)
