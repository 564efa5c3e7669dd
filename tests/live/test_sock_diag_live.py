# SPDX-License-Identifier: Apache-2.0
"""Sockets that sock_diag lists, against ss in the same namespace."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.loader.sock_diag import ends_of, list_by, list_sockets, open_wire
from tcpkmon.collector.plan.filters import Filters, parse

TIMEOUT_S = 60.0


@dataclass
class Traffic:
    """Six open connections of three kinds, between a and b; the ports of b."""

    clients: dict[str, socket.socket]
    servers: dict[str, socket.socket]
    ports: dict[str, int]


def connect(lab: Lab, stack: ExitStack, kind: str) -> tuple[socket.socket, socket.socket, int]:
    """A connection from a to b; `kind` is v4, v6 or mapped."""
    family = socket.AF_INET if kind == "v4" else socket.AF_INET6
    place = {"v4": lab.b.address4, "v6": lab.b.address6, "mapped": "::"}[kind]
    goal = {"v4": lab.b.address4, "v6": lab.b.address6, "mapped": f"::ffff:{lab.b.address4}"}[kind]

    def listen() -> socket.socket:
        made = socket.socket(family)
        made.bind((place, 0))
        made.listen()
        return made

    listener = stack.enter_context(lab.b.run(listen))
    port = listener.getsockname()[1]
    client = stack.enter_context(lab.a.run(lambda: socket.socket(family)))
    client.settimeout(TIMEOUT_S)
    client.connect((goal, port))
    server = stack.enter_context(listener.accept()[0])
    server.settimeout(TIMEOUT_S)
    return client, server, port


def exchange(sender: socket.socket, receiver: socket.socket, count: int) -> None:
    """Sends so many bytes and reads them all at the other end."""
    sender.sendall(bytes(count))
    while count:
        count -= len(receiver.recv(count))


@pytest.fixture
def traffic(lab: Lab) -> Iterator[Traffic]:
    with ExitStack() as stack:
        made = Traffic({}, {}, {})
        for number, kind in enumerate(("v4", "v6", "mapped")):
            client, server, made.ports[kind] = connect(lab, stack, kind)
            exchange(client, server, 20_011 * (number + 1))
            exchange(server, client, 3001)
            made.clients[kind], made.servers[kind] = client, server
        made.clients["v4"].sendall(bytes(1234))  # stays in the receive queue of b
        yield made


def connections_of(side: Side, filters: Filters | None = None) -> NDArray[Any]:
    """The open connections that pass."""
    wire = open_wire(side.namespace.fd)
    with wire[1]:
        return np.concatenate(list(list_by([wire], filters or Filters())))


def test_cookies_and_inodes_are_those_of_ss(lab: Lab, traffic: Traffic) -> None:
    text = lab.b.command(["ss", "-teHOn"])
    shown = {
        (int(inode), int(cookie, 16))
        for inode, cookie in re.findall(r"ino:(\d+) sk:([0-9a-f]+)", text)
    }
    found = connections_of(lab.b)
    assert {(one["inode"], one["cookie"]) for one in found} == shown
    assert len(shown) == 3
    every = list_sockets([lab.b.namespace.fd])  # with the listeners that are still open
    assert shown <= {(one["inode"], one["cookie"]) for one in every}
    assert 10 in every["state"]


def test_only_open_connections_are_listed(lab: Lab, traffic: Traffic) -> None:
    """Listeners are there all the time; now a half-closed, a time-wait and its substate too."""
    traffic.clients["v6"].shutdown(socket.SHUT_WR)  # a: FIN-WAIT-2, b: CLOSE-WAIT
    client, server = traffic.clients["mapped"], traffic.servers["mapped"]
    client.close()
    assert server.recv(1) == b""
    server.close()  # a: TIME-WAIT
    # Closed with b still open: after tcp_fin_timeout's part in the socket it is a time-wait one.
    traffic.clients["v4"].close()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        at_a, at_b = (
            {tuple(port for _, port in ends_of(one)): one["state"]
             for one in connections_of(side)}
            for side in (lab.a, lab.b)
        )  # fmt: skip
        half = [key for key in at_a if key[1] == traffic.ports["v6"]]
        if len(at_a) == 1 and len(at_b) == 2 and at_a[half[0]] == 5:
            break
        assert time.monotonic() < deadline, (at_a, at_b)
    assert set(at_b) == {(there, here) for here, there in at_a} | {
        key for key in at_b if key[0] == traffic.ports["v4"]
    }
    assert set(at_b.values()) == {8}


def listed(lab: Lab, filters: Filters) -> list[int]:
    """Ports of b that pass, of the connections seen from b."""
    found = connections_of(lab.b, filters)
    assert set(found["netns"].tolist()) <= {lab.b.namespace.cookie}
    return sorted(ends_of(one)[0][1] for one in found)


def test_filters(lab: Lab, traffic: Traffic) -> None:
    ports = traffic.ports
    assert listed(lab, Filters()) == sorted(ports.values())
    assert listed(lab, parse(local_ports=str(ports["v6"]))) == [ports["v6"]]
    assert listed(lab, parse(remote_ports=str(ports["v6"]))) == []
    assert listed(lab, parse(family=6)) == [ports["v6"]]
    assert listed(lab, parse(family=4)) == sorted([ports["v4"], ports["mapped"]])
    assert listed(lab, parse(addresses=["fd77::1/128"])) == [ports["v6"]]
    for name, count in ((lab.a.name, 0), (lab.b.name, 3)):
        filters = parse(namespaces=[name])
        try:
            assert len(listed(lab, filters)) == count
        finally:
            filters.close()
