# SPDX-License-Identifier: Apache-2.0
"""What the schema network has to log of the traffic in network_workload.py, event by event."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live import network_workload as workload
from tests.live.network_workload import (
    CONNECTIONS,
    DATAGRAMS,
    ECHOES,
    EXCHANGES,
    LARGE,
    MESSAGE,
    PIECES,
    Done,
    Net,
)
from tests.live.schema_logs import Log, Record, logging

FIN, SYN, RST, ACK = 1, 2, 4, 16
UDP_HEADER = 8
SENT = ("TCP_SENDSYN", "TCP_SENDSYNACK", "TCP_SENDACK", "TCP_SENDPACKET")
RECEIVED = ("TCP_RECVSYN", "TCP_RECVSYNACK", "TCP_RECVACK", "TCP_RECEIVEPACKET")


VERSIONS = (4, 6)
LEFT_OPEN = 5


@dataclass(frozen=True)
class Everything:
    """One capture of all the traffic there is, and what was done."""

    log: Log
    net: Net
    tcp: dict[int, Done]
    udp: dict[int, Done]
    corked: dict[int, Done]
    urgent: Done
    reset: Done
    again: Done
    mapped: Done
    left_by: int


@contextmanager
def play_everything(
    folder: Path, kinds: str = "", corked: bool = False
) -> Iterator[Everything]:
    """kinds: the ways to attach. corked: also what only kernels with functions to hang on tell."""
    with workload.open_net() as net, logging(folder, "network", kinds=kinds) as running:
        tcp = {version: workload.run_tcp(net, version) for version in VERSIONS}
        udp = {version: workload.run_udp(net, version) for version in VERSIONS}
        pieces = {version: workload.run_corked(net, version) for version in VERSIONS if corked}
        for version in VERSIONS:
            workload.run_echoes(net, version)
            workload.run_refused(net, version)
        urgent, reset = workload.run_urgent(net), workload.run_reset(net)
        again, mapped = workload.run_again(net), workload.run_mapped(net)
        left_by = workload.run_left_open(LEFT_OPEN)
        log = running.finish()
        yield Everything(log, net, tcp, udp, pieces, urgent, reset, again, mapped, left_by)


def of_flows(log: Log, event: str, done: Done, side: str = "") -> list[Record]:
    """An event's records of these connections: of the client's end, the server's, or both."""
    client = {(near, far) for near, far in done.flows}
    server = {(far, near) for near, far in done.flows}
    wanted = {"client": client, "server": server, "": client | server}[side]
    return [record for record in log.of(event) if (record["lport"], record["rport"]) in wanted]


def mine(log: Log, event: str, **values: object) -> list[Record]:
    return log.of(event, pid=os.getpid(), **values)


def is_seen_from_begin(log: Log, event: str) -> bool:
    """Whether a kprobe logs it: it knows what was asked for, not what was done.

    Where a tracepoint does, functions that are told behind it add nothing.
    """
    return log.ways[event].startswith("kprobe:")


def check_tcp(log: Log, net: Net, version: int, done: Done) -> None:
    a, b = net.a[version], net.b[version]
    # The other address may have a listener of the same port.
    listen = log.one("SOCKET_LISTEN", laddr=b, lport=done.listener, pid=os.getpid())
    assert (listen["protocol"], listen["backlog"]) == ("IPPROTO_TCP", 64)
    bound = log.one("SOCKET_BIND", laddr=b, lport=done.listener, pid=os.getpid())
    assert bound["socket"] == listen["socket"]

    for event, near, far, side in (
        ("SOCKET_CONNECT", a, b, "client"),
        ("SOCKET_ACCEPT", b, a, "server"),
    ):
        records = of_flows(log, event, done, side)
        assert len(records) == CONNECTIONS, event
        assert {(r["laddr"], r["raddr"], r["pid"]) for r in records} == {(near, far, os.getpid())}
    assert {r["result"] for r in of_flows(log, "SOCKET_CONNECT", done)} == {0}
    assert {r["listener"] for r in of_flows(log, "SOCKET_ACCEPT", done)} == {listen["socket"]}

    # The ports that are not known yet are 0.
    began = [
        r
        for r in log.of("CONNECTION_HANDSHAKE")
        if {r["laddr"], r["raddr"]} == {a, b} and ({r["lport"], r["rport"]} & {done.listener})
    ]
    states = [r["state"] for r in began]
    assert (states.count("TCP_SYN_SENT"), states.count("TCP_SYN_RECV")) == (CONNECTIONS,) * 2
    for event in ("CONNECTION_CLOSE", "TCP_DISCONNECT"):
        assert len(of_flows(log, event, done)) == 2 * CONNECTIONS, event
    closed = {
        (side, r["from"], r["to"])
        for side in ("client", "server")
        for r in of_flows(log, "CONNECTION_CLOSE", done, side)
    }
    assert closed == {
        ("client", "TCP_ESTABLISHED", "TCP_FIN_WAIT1"),
        ("server", "TCP_CLOSE_WAIT", "TCP_LAST_ACK"),
    }

    check_calls(log, done)
    check_segments(log, done, (a, b), listen["socket"])


def check_calls(log: Log, done: Done) -> None:
    """Sends and receives of run_tcp(), at both layers."""
    ends_of_file = CONNECTIONS if is_seen_from_begin(log, "TCP_RECEIVE") else 0
    for event, extra in (
        ("SOCKET_WRITE", 0),
        ("TCP_SEND", 0),
        ("SOCKET_RECEIVE", ends_of_file),
        ("TCP_RECEIVE", ends_of_file),
    ):
        records = of_flows(log, event, done)
        assert len(records) == 2 * CONNECTIONS * EXCHANGES + extra, event
        assert {r["pid"] for r in records} == {os.getpid()}
        if not extra:
            assert {r["bytes"] for r in records} == {MESSAGE}, event


def check_segments(log: Log, done: Done, addresses: tuple[str, str], listener: int) -> None:
    a, b = addresses
    for event, side, flags in (
        ("TCP_SENDSYN", "client", SYN),
        ("TCP_RECVSYN", "server", SYN),
        ("TCP_SENDSYNACK", "server", SYN | ACK),
        ("TCP_RECVSYNACK", "client", SYN | ACK),
    ):
        records = of_flows(log, event, done)
        assert records == of_flows(log, event, done, side)
        assert len(records) == CONNECTIONS, event
        assert {r["flags"] & 31 for r in records} == {flags}
        near, far = (a, b) if side == "client" else (b, a)
        assert {(r["laddr"], r["raddr"], r["length"]) for r in records} == {(near, far, 0)}
        if side == "server":
            assert {r["socket"] for r in records} == {listener}, event
    connected = {r["socket"] for r in of_flows(log, "SOCKET_CONNECT", done)}
    accepted = {r["socket"] for r in of_flows(log, "SOCKET_ACCEPT", done)}
    for side, sockets in (("client", connected), ("server", accepted)):
        for event in ("TCP_SENDPACKET", "TCP_RECEIVEPACKET"):
            records = of_flows(log, event, done, side)
            # The messages, and the FIN.
            assert len(records) == CONNECTIONS * (EXCHANGES + 1), event
            assert sum(r["length"] for r in records) == CONNECTIONS * EXCHANGES * MESSAGE
            assert sum(bool(r["flags"] & FIN) for r in records) == CONNECTIONS
            assert {r["socket"] for r in records} == sockets, (event, side)
        # What one side gets is what the other sent.
        other = "server" if side == "client" else "client"
        for sent, received in zip(SENT, RECEIVED, strict=True):
            went = sorted(r["seq"] for r in of_flows(log, sent, done, side))
            came = sorted(r["seq"] for r in of_flows(log, received, done, other))
            assert went == came, (sent, side)
    assert {r["length"] for r in of_flows(log, "TCP_SENDACK", done)} == {0}


def check_all_segments(log: Log, net: Net) -> None:
    """As many as the kernel counts in each namespace (TCP's segments of both versions of IP)."""
    for side, addresses in ((net.lab.a, net.a), (net.lab.b, net.b)):
        counters = net.counters(side, "Tcp")
        own = set(addresses.values())
        sent, received = (
            sum(record["laddr"] in own for event in events for record in log.of(event))
            for events in (SENT, RECEIVED)
        )
        # The kernel counts those with RST apart, some of them with the others too.
        assert received == counters["InSegs"]
        assert counters["OutSegs"] <= sent - counters["RetransSegs"]
        assert sent <= counters["OutSegs"] + counters["RetransSegs"] + counters["OutRsts"]


def check_reset(log: Log, done: Done) -> None:
    closed = {r["to"] for r in of_flows(log, "CONNECTION_CLOSE", done)}
    assert closed == {"TCP_CLOSE"}
    for event in ("CONNECTION_CLOSE", "TCP_DISCONNECT"):
        records = of_flows(log, event, done)
        assert [r["from"] for r in records] == ["TCP_ESTABLISHED"] * 2, event
    for event in ("TCP_SENDPACKET", "TCP_RECEIVEPACKET"):
        assert [r["flags"] & RST for r in of_flows(log, event, done)] == [RST], event


def check_again(log: Log, done: Done) -> None:
    """What arrives is for the new connection, though its ports were another's before."""
    listener = log.one("SOCKET_LISTEN", lport=done.listener)["socket"]
    accepted = of_flows(log, "SOCKET_ACCEPT", done)
    assert len(accepted) == 2
    arrived = of_flows(log, "TCP_RECVSYN", done, "server")
    assert [record["socket"] for record in arrived] == [listener] * 2
    data = [r for r in of_flows(log, "TCP_RECEIVEPACKET", done, "server") if r["length"]]
    assert [r["socket"] for r in data] == [r["socket"] for r in accepted]
    for syn, ack in zip(arrived, of_flows(log, "TCP_SENDSYNACK", done, "server"), strict=True):
        first = next(
            r
            for r in of_flows(log, "TCP_RECVACK", done, "server")
            if r["ack"] == (ack["seq"] + 1) % 2**32
        )
        assert (first["socket"], first["seq"]) == (listener, (syn["seq"] + 1) % 2**32)


def check_mapped(log: Log, net: Net, done: Done) -> None:
    """An IPv6 socket whose packets are IPv4; calls to connect() before and after the handshake."""
    calls = of_flows(log, "SOCKET_CONNECT", done)
    assert [record["result"] for record in calls] == [-errno.EINPROGRESS, 0]
    accepted = of_flows(log, "SOCKET_ACCEPT", done)[0]
    assert (accepted["laddr"], accepted["raddr"]) == (net.b[4], net.a[4])
    closed = [r for r in mine(log, "SOCKET_CLOSE") if r["time_ns"] > accepted["time_ns"]]
    assert {r["domain"] for r in closed if r["socket"] == accepted["socket"]} == {"AF_INET6"}
    data = [r for r in of_flows(log, "TCP_RECEIVEPACKET", done, "server") if r["length"]]
    assert [(r["socket"], r["laddr"]) for r in data] == [(accepted["socket"], net.b[4])]


def check_urgent(log: Log, done: Done) -> None:
    records = of_flows(log, "TCP_RECV_URGENTDATA", done)
    assert [(r["bytes"], r["pid"]) for r in records] == [(1, os.getpid())]
    assert not of_flows(log, "TCP_RECEIVE", done)
    assert len(of_flows(log, "SOCKET_RECEIVE", done, "server")) == 1


def check_udp(log: Log, net: Net, version: int, done: Done) -> None:
    sizes = [*DATAGRAMS, 10, LARGE]
    for event in ("UDP_RECEIVE", "SOCKET_RECEIVE"):
        records = mine(log, event, lport=done.receiver)
        assert len(records) == len(sizes), event
        if not is_seen_from_begin(log, event):
            assert [r["bytes"] for r in records] == sizes, event
    queued = log.of("UDP_QUEUESOCKETBUFFER", lport=done.receiver)
    assert [r["length"] for r in queued] == sizes
    # By the socket too: the kernel may have given another one the same port, before or after.
    joined = log.one("UDP_CONNECT", lport=done.sender, rport=done.receiver, pid=os.getpid())
    socket = joined["socket"]
    sent = mine(log, "UDP_SEND", lport=done.sender, socket=socket)
    assert [r["bytes"] for r in sent] == sizes[:-1]
    assert [r["rport"] for r in sent] == [0] * len(DATAGRAMS) + [done.receiver]
    assert [r["bytes"] for r in mine(log, "UDP_SEND", socket=socket, bytes=LARGE)] == [LARGE]

    ends = (net.a[version], net.b[version], done.receiver)
    assert (joined["laddr"], joined["raddr"], joined["rport"]) == ends
    connected = log.one("SOCKET_CONNECT", lport=done.sender, rport=done.receiver)
    assert connected["socket"] == socket
    large = mine(log, "UDP_SEND", socket=socket, bytes=LARGE)[0]
    left = [
        r
        for r in mine(log, "UDP_DISCONNECT", socket=socket)
        if joined["time_ns"] < r["time_ns"] < large["time_ns"]
    ]
    assert [r["lport"] for r in left] == [0]


def check_fragments(log: Log, net: Net, version: int) -> None:
    """A datagram of LARGE bytes in packets of at most 1500."""
    a, b = net.a[version], net.b[version]
    head, step = (20, 1480) if version == 4 else (40, 1448)
    extra = 0 if version == 4 else 8
    payload = LARGE + UDP_HEADER
    offsets = list(range(0, payload, step))
    for event in ("IP_SENDPACKET", "IP_RECEIVEPACKET"):
        # Both ends queue their packets at one device: what b got is not what a sent.
        records = log.of(event, saddr=a, daddr=b, fragment=1)
        assert [r["offset"] for r in records] == offsets, event
        assert [r["size"] for r in records] == [
            head + extra + min(step, payload - offset) for offset in offsets
        ]
        assert [r["total"] for r in records] == [0, 0, head + payload]
        assert {(r["protocol"], r["mtu"]) for r in records} == {("IPPROTO_UDP", 1500)}
        assert len({r["id"] for r in records}) == 1 and records[0]["id"]


def check_packets(log: Log, net: Net) -> None:
    """Everything that one side sent, the other received, and each segment is a packet."""
    for near, far in ((net.a, net.b), (net.b, net.a)):
        for version in (4, 6):
            ends = {"saddr": near[version], "daddr": far[version]}
            sent, received = log.of("IP_SENDPACKET", **ends), log.of("IP_RECEIVEPACKET", **ends)
            kinds = ("protocol", "id", "fragment", "offset", "size", "total")
            rows = [sorted([r[k] for k in kinds] for r in some) for some in (sent, received)]
            assert rows[0] == rows[1]
            segments = [
                r["length"] for e in SENT for r in log.of(e, laddr=ends["saddr"])
                if r["raddr"] == ends["daddr"]
            ]  # fmt: skip
            assert len(segments) == sum(r["protocol"] == "IPPROTO_TCP" for r in sent) > 0


def check_echoes(log: Log, net: Net, version: int) -> None:
    a, b = net.a[version], net.b[version]
    there, back = {"saddr": a, "daddr": b}, {"saddr": b, "daddr": a}
    request, reply = (
        ("ICMP_ECHO", "ICMP_ECHOREPLY")
        if version == 4
        else ("ICMPV6_ECHO_REQUEST", "ICMPV6_ECHO_REPLY")
    )
    for event, ends, kind in (
        ("ICMP_SEND", there, request),
        ("ICMP_RECEIVE", there, request),
        ("ICMP_REPLY", back, reply),
        ("ICMP_RECEIVE", back, reply),
    ):
        records = log.of(event, type=kind, **ends)
        assert [(r["code"], r["length"]) for r in records] == [("NO_CODE", 32)] * ECHOES, event
    assert not log.of("ICMP_REPLY", **there)
    raw = mine(log, "SOCKET_CREATE", type="SOCK_RAW", protocol=_icmp(version))
    assert len(raw) == 1


def check_refused(log: Log, net: Net, version: int) -> None:
    ends = {"saddr": net.b[version], "daddr": net.a[version]}
    code = "ICMP_PORT_UNREACH" if version == 4 else "ICMPV6_PORT_UNREACH"
    kind = "ICMP_DEST_UNREACH" if version == 4 else "ICMPV6_DEST_UNREACH"
    for event in ("ICMP_SEND", "ICMP_RECEIVE"):
        assert log.one(event, type=kind, **ends)["code"] == code


def check_corked(log: Log, version: int, done: Done) -> None:
    whole = UDP_HEADER + sum(PIECES)
    pushed = log.one("UDP_PUSHPENDINGFRAMES", lport=done.sender)
    flushed = log.one("UDP_FLUSHPENDINGFRAMES", lport=done.sender)
    for record in (pushed, flushed):
        assert (record["length"], record["pid"]) == (whole, os.getpid())
    same = {"socket": pushed["socket"], "protocol": "IPPROTO_UDP", "length": whole}
    assert log.one("IP_PUSHPENDINGFRAMES", **same)["skb"] == pushed["skb"]
    assert log.one("IP_FLUSHPENDINGFRAMES", **same)["pid"] == os.getpid()
    sent = mine(log, "UDP_SEND", lport=done.sender, socket=pushed["socket"])
    assert [r["bytes"] for r in sent] == [*PIECES, *PIECES]


def check_icmp_pushes(log: Log, version: int) -> None:
    """Each request is pushed by the raw socket, each reply by the kernel's own."""
    raw = {r["socket"] for r in mine(log, "SOCKET_CREATE", protocol=_icmp(version))}
    records = [r for r in log.of("IP_PUSHPENDINGFRAMES", protocol=_icmp(version), length=32)]
    assert sum(r["socket"] in raw for r in records) == ECHOES
    assert sum(r["socket"] not in raw for r in records) == ECHOES
    skbs = {r["skb"] for r in records}
    assert sum(r["skb"] in skbs for r in log.of("ICMP_PUSHPENDINGFRAMES", length=32)) >= 2 * ECHOES


def _icmp(version: int) -> str:
    return "IPPROTO_ICMP" if version == 4 else "IPPROTO_ICMPV6"


def count_lost(log: Log, events: Iterable[str]) -> int:
    """Attempts of these events that are not in the log."""
    rows = [log.ledger.get(name, {}) for name in events]
    return sum(row.get("attempts", 0) - row.get("written", 0) for row in rows)
