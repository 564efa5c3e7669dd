# SPDX-License-Identifier: Apache-2.0
"""The schema magnet on this kernel: counted bytes at each layer, headers as on the wire, state as
TCP_INFO."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.plan.columns import SCHEMATA
from tests.live.capturing import (
    Pair,
    connected,
    join,
    listening,
    look,
    receive,
    tcp_info,
    within,
)
from tests.live.schema_logs import Log, Record, Scenario, logging, make_schema, play
from tests.live.wire import Packet, tapped

SENDER = ("SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND", "DRIVER_START", "DRIVER_RESULT")
RECEIVER = ("DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV")
IP_FIELDS = ("ip_version", "ip_tos", "ip_id", "ip_frag_off", "ip_ttl", "ip_protocol")
SYN, FIN, RETRANSMISSION, UDP = 2, 1, 256, 512
BYTES, WRITE = 300_000, 10_000
NAP_S = 0.05


def connection_of(log: Log, port: int, far: int, protocol: int = 6) -> int:
    """The id of the connection with this local and this remote port."""
    found: int = log.one("MAGNET_CONNECTION", lport=port, rport=far, protocol=protocol)[
        "connection"
    ]
    return found


def covered(records: Iterable[Record]) -> list[tuple[int, int]]:
    """The bytes that the ranges cover, as few ranges as possible."""
    union: list[tuple[int, int]] = []
    for lo, hi in sorted((record["seq_lo"], record["seq_hi"]) for record in records):
        if lo == hi:
            continue
        if union and lo <= union[-1][1]:
            union[-1] = (union[-1][0], max(hi, union[-1][1]))
        else:
            union.append((lo, hi))
    return union


def moved(log: Log, event: str, connection: int) -> int:
    """Bytes that an event moved, each once: not what was sent again."""
    return sum(
        max(record["size"], 0)
        for record in log.of(event, connection=connection)
        if not record["flags"] & RETRANSMISSION
    )


def transfer(pair: Pair, size: int = BYTES, write: int = WRITE) -> None:
    """Counted bytes from the client to the server; the reader is never far behind."""
    for at in range(0, size, write):
        part = min(write, size - at)
        pair.client.sendall(bytes(part))
        receive(pair.server, part)


def check_layers(log: Log, client: int, server: int, size: int = BYTES) -> None:
    """Each layer saw all bytes, and no others."""
    for event, connection in [(name, client) for name in SENDER] + [
        (name, server) for name in RECEIVER
    ]:
        if not log.ways.get(event):
            continue
        records = log.of(event, connection=connection)
        ranges = covered(records)
        assert [hi - lo for lo, hi in ranges] == [size], (event, ranges)
        if event != "TCP_RECV":
            assert moved(log, event, connection) == size, event
    one = covered(log.of("SOCK_SEND", connection=client))
    assert one == covered(log.of("SOCK_RECV", connection=server)), "one sequence space"


def headers(records: Sequence[Record]) -> list[tuple[int, ...]]:
    return [
        (*(record[name] for name in IP_FIELDS), record["flags"] & 255, record["seq_lo"],
         record["seq_hi"], record["ack"], record["size"])
        for record in records
    ]  # fmt: skip


def on_wire(packets: Iterable[Packet]) -> list[tuple[int, ...]]:
    rows = []
    for packet in packets:
        low = (packet.seq + bool(packet.flags & SYN)) & 0xFFFFFFFF
        rows.append((*packet.ip, packet.flags, low, low + packet.size, packet.ack, packet.size))
    return rows


def headers_of_the_wire(lab: Lab, address: str) -> Scenario:
    """Each layer has all bytes, and those of packets the headers that tcpdump sees."""
    with tapped(lab.a) as tap, listening(lab.b, address) as listener:
        pair = join(lab.a, listener, address)
        transfer(pair)
        sleeps = time.monotonic_ns()
        pair.client.sendall(b"late")
        time.sleep(NAP_S)
        receive(pair.server, 4)
        look(pair.client)
        info = tcp_info(pair.client)
        pair.client.shutdown(socket.SHUT_WR)
        with suppress(BrokenPipeError):
            pair.client.send(b"x", socket.MSG_NOSIGNAL)
        assert pair.server.recv(1) == b""
        ports = pair.client_port, pair.server_port
        pair.close()
        time.sleep(0.1)
        packets = [p for p in tap.packets() if set(p.ports) == set(ports)]
    log = yield
    client, server = connection_of(log, *ports), connection_of(log, *reversed(ports))
    check_layers(log, client, server, BYTES + 4)

    # M7: flags and IP header as on the wire, packet by packet, also of the handshake and the end.
    sent = on_wire(p for p in packets if p.sent)
    assert len(sent) > BYTES // 65536
    for event in ("IP_SEND", "DEV_SEND", "DRIVER_START"):
        if event not in log.missing:
            assert headers(log.of(event, connection=client)) == sent, event
    received = on_wire(p for p in packets if not p.sent)
    for event in ("DEV_RECV", "IP_RECV"):
        if event not in log.missing:
            assert headers(log.of(event, connection=client)) == received, event
    assert all(record["size"] >= 0 for record in log.of("DRIVER_RESULT", connection=client))

    # M7: TCP's state is TCP_INFO's on a stopped flow.
    state = log.of("SOCK_RECV", connection=client, size=-errno.EAGAIN)[-1]
    check_state(state, info, ports)

    # M8: a sleeping reader, a failing send.
    ready = next(r for r in log.of("TCP_RECV", connection=server) if r["time_ns"] > sleeps)
    read = next(r for r in log.of("SOCK_RECV", connection=server) if r["time_ns"] > sleeps)
    assert read["time_ns"] - ready["time_ns"] >= NAP_S * 0.95e9
    assert read["seq_hi"] == ready["seq_hi"] and read["size"] == 4
    failed = log.of("SOCK_SEND", connection=client)[-1]
    assert failed["size"] == -errno.EPIPE and failed["seq_lo"] == failed["seq_hi"]
    for record in [*log.of("SOCK_SEND", connection=client), *log.of("SOCK_RECV")]:
        if record["connection"] in (client, server):
            assert 0 < record["entered"] < record["time_ns"]
    assert [r["size"] for r in log.of("SOCK_RECV", connection=server)][-1] == 0, "end of file"


def check_state(state: Record, info: dict[str, int], ports: tuple[int, int]) -> None:
    """All but the ends are as TCP_INFO has them."""
    assert (state["tcp_source"], state["tcp_dest"]) == ports
    assert state["tcp_srtt"] >> 3 == info["rtt"]
    for name, told in (
        ("rto", "rto"), ("packets_out", "unacked"), ("retrans_out", "retrans"),
        ("snd_ssthresh", "snd_ssthresh"), ("snd_cwnd", "snd_cwnd"), ("snd_wnd", "snd_wnd"),
    ):  # fmt: skip
        assert state[f"tcp_{name}"] == info[told], name
    assert state["tcp_rcv_wnd"] == info["rcv_wnd"] or not info["rcv_wnd"], "since Linux 6.2"


def retransmissions(lab: Lab) -> Scenario:
    """What is sent again is marked and the rest is not: also behind a queue, where the socket has
    gone on meanwhile."""
    lab.a.command(f"tc qdisc add dev {DEVICE} root tbf rate 100mbit burst 64k limit 4m".split())
    with connected(lab) as pair:
        lab.drop(25)
        try:
            transfer(pair, BYTES, 50_000)
        finally:
            lab.drop(0)
        ports = pair.client_port, pair.server_port
    lab.a.command(f"tc qdisc del dev {DEVICE} root".split())
    log = yield
    client, server = connection_of(log, *ports), connection_of(log, *reversed(ports))
    for event in ("IP_SEND", "DEV_SEND", "QDISC_ENQUEUE", "QDISC_DEQUEUE", "DRIVER_START"):
        if event in log.missing:
            continue
        assert covered(log.of(event, connection=client)) == covered(
            log.of("SOCK_SEND", connection=client)
        ), event
        highest, again = 0, 0
        for record in log.of(event, connection=client):
            if record["size"] > 0:
                before = bool(highest) and record["seq_lo"] < highest
                assert bool(record["flags"] & RETRANSMISSION) == before, (event, record)
                highest, again = max(highest, record["seq_hi"]), again + before
        assert again, "nothing was lost"
    for event, connection in (("TCP_RECV", server), ("SOCK_RECV", server), ("SOCK_SEND", client)):
        assert sum(hi - lo for lo, hi in covered(log.of(event, connection=connection))) == BYTES


def _has_functions() -> bool:
    """Whether the kernel lets a program run at one of its functions."""
    probing = Probing(Btf.from_kernel())
    return not all(probing.why_not(kind, "udp_sendmsg") for kind in ("fentry", "kprobe"))


def datagrams(lab: Lab, address: str) -> Scenario:
    """They have connections too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sizes = [0, 1, 100, 1400]
    server = lab.b.run(lambda: socket.socket(family, socket.SOCK_DGRAM))
    client = lab.a.run(lambda: socket.socket(family, socket.SOCK_DGRAM))
    with server, client:
        server.bind((address, 0))
        client.sendto(b"first", server.getsockname())
        peer = server.recvfrom(9)[1]
        client.connect(server.getsockname())
        for size in sizes:
            client.send(bytes(size))
            assert len(server.recv(2000)) == size
        server.sendto(b"answer", peer)
        assert client.recv(9) == b"answer"
        with pytest.raises(OSError, match="too long"):
            client.send(bytes(70_000))
        ports = client.getsockname()[1], server.getsockname()[1]
    log = yield
    ours = {
        record["lport"]: record["connection"]
        for record in log.of("MAGNET_CONNECTION", protocol=17)
        if record["lport"] in ports
    }
    sender, receiver = ours[ports[0]], ours[ports[1]]
    assert len({sender, receiver}) == 2
    for event in ("SOCK_SEND", "IP_SEND", "DEV_SEND"):
        if event not in log.missing:
            found = [r["size"] for r in log.of(event, connection=sender, flags=UDP)]
            assert found == [5, *sizes] + [-errno.EMSGSIZE] * (event == "SOCK_SEND"), event
    # What the call asks for, before it is refused. No tracepoint tells of it.
    takes = [r["size"] for r in log.of("TCP_SEND", connection=sender, flags=UDP)]
    assert takes == ([5, *sizes, 70_000] if _has_functions() else [])
    for event in ("DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV"):
        if event not in log.missing:
            found = [r["size"] for r in log.of(event, connection=receiver, flags=UDP)]
            # Before the first datagram is read nothing tells which socket it is for.
            assert found == [5, *sizes][event in ("DEV_RECV", "IP_RECV") :], event
            found = [r["size"] for r in log.of(event, connection=sender, flags=UDP)]
            assert found == [6], event


@pytest.mark.full
def test_scenarios(lab: Lab, tmp_path: Path) -> None:
    addresses = ("10.77.0.2", "fd77::2")
    scenarios = [
        *(headers_of_the_wire(lab, address) for address in addresses),
        *(datagrams(lab, address) for address in addresses),
        retransmissions(lab),
    ]
    more = ["--data", "--using", "driver", *within(lab)]
    play(tmp_path / "log", "magnet", scenarios=scenarios, more=more)


def test_a_connection_that_was_open_gets_its_id_which_is_that_of_tcp(
    lab: Lab, tmp_path: Path
) -> None:
    with connected(lab) as pair:
        with logging(tmp_path / "log", "magnet", "tcp") as capture:
            transfer(pair)
        ports = pair.client_port, pair.server_port
    log = capture.finish()
    client, server = connection_of(log, *ports), connection_of(log, *reversed(ports))
    check_ids = {(r["lport"], r["rport"]): r["conn_id"] for r in log.of("SNAPSHOT") if r["rport"]}
    assert check_ids[ports] == client and check_ids[ports[1], ports[0]] == server
    assert "ip_tos" not in log.of("DEV_SEND")[0], "without --data"
    for event in ("SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND"):
        if event not in log.missing:
            assert moved(log, event, client) == BYTES, event
    assert moved(log, "SOCK_RECV", server) == BYTES


def test_connections_beyond_the_table_are_lost_and_counted(lab: Lab, tmp_path: Path) -> None:
    """The first few are recorded whole; of the others the ledger counts each event."""
    folder = tmp_path / "magnet"
    conf, text = ((SCHEMATA / f"magnet.{end}").read_text() for end in ("conf", "bpf.c"))
    small = "#define KLOGGER_CONNECTIONS 4\n#define KLOGGER_INODES 16\n"
    first_use = '#include "tcp_known.h"'
    make_schema(folder, conf, text.replace(first_use, small + first_use))
    more = ["--using", "layers", *within(lab)]
    with (
        logging(tmp_path / "log", str(folder), more=more) as capture,
        listening(lab.b, "10.77.0.2") as listener,
    ):
        first, beyond = ([join(lab.a, listener, "10.77.0.2") for _ in range(n)] for n in (2, 3))
        for pair in (*first, *beyond):
            transfer(pair, 5000, 1000)
        ports = [(pair.client_port, pair.server_port) for pair in first]
        others = {pair.client_port for pair in beyond}
        log = capture.finish()
        for pair in (*first, *beyond):
            pair.close()
    for near, far in ports:
        client, server = connection_of(log, near, far), connection_of(log, far, near)
        check_layers(log, client, server, 5000)
    named = {port for one in log.of("MAGNET_CONNECTION") for port in (one["lport"], one["rport"])}
    assert not named & others
    for event in ("SOCK_SEND", "SOCK_RECV"):
        assert not log.of(event, connection=0)
        assert log.ledger[event]["table_full"] == 3 * 5, (event, log.ledger)
        assert log.ledger[event]["written"] == 2 * 5
    # Both ends of each; not the listener's.
    assert log.ledger["MAGNET_CONNECTION"]["table_full"] == 3 * 2
