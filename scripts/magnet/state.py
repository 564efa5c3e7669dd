# SPDX-License-Identifier: Apache-2.0
"""M7: what the records say of a connection and of its packets, beside TCP_INFO and tcpdump."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from scripts.experiments import tools
from scripts.experiments.context import Context
from scripts.experiments.figure import Figure
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet import pcap
from scripts.magnet.recording import Columns, Recording
from scripts.magnet.wire import Link, recording, wired
from tcpkmon.collector.lab.pair import connected, look
from tcpkmon.collector.loader.tcp_info import TCP_INFO

NAME = "M7"
TITLE = "M7: state"
SAME = {
    "tcp_snd_wnd": "snd_wnd",
    "tcp_srtt": "rtt",
    "tcp_rto": "rto",
    "tcp_packets_out": "unacked",
    "tcp_retrans_out": "retrans",
    "tcp_snd_ssthresh": "snd_ssthresh",
    "tcp_snd_cwnd": "snd_cwnd",
    "tcp_rcv_wnd": "rcv_wnd",
}
"""Fields, and the members of struct tcp_info that they equal."""
SEQUENCES = ("tcp_write_seq", "tcp_copied_seq")
"""Fields that the packets tell: behind the last byte sent, and received."""
PORTS = ("tcp_source", "tcp_dest")
HEADER = ("ip_version", "ip_tos", "ip_id", "ip_frag_off", "ip_ttl", "ip_protocol")
PACKET_FLAGS = 255
SIZES = (1, 100, 5000, 100_000)
QUIET_S = 0.3
"""No acknowledgement is delayed so long."""
RECORD, ORACLE, WRONG = "record", "TCP_INFO or packets", "packets that differ"


def measure(context: Context) -> None:
    """Some exchanges over IPv4 and IPv6, then a stopped flow whose reader looks once."""
    context.say(f"{NAME}: state and packets")
    with wired(context) as wire:
        wire.set(Link())
        a = wire.lab.a
        for address in (wire.lab.b.address4, wire.lab.b.address6):
            family = "IPv6" if ":" in address else "IPv4"
            folder = context.folder / family
            folder.mkdir()
            with (
                recording(context, wire.lab, "--data", ends="a") as found,
                tools.tcpdump("tcpdump", a, "--immediate-mode").running(folder) as seen,
            ):
                with connected(wire.lab, address) as pair:
                    for size in SIZES:
                        pair.exchange(size)
                    time.sleep(QUIET_S)
                    look(pair.client)
                    info = _tcp_info(pair.client)
                    ports = pair.client_port, pair.server_port
                time.sleep(QUIET_S)
                seen.end()
                packets = list(pcap.read(seen.file, a.address4, a.address6))
            _compare_state(context.results, family, found, packets, info, ports)
            _compare_packets(context.results, family, found, packets)


def _tcp_info(end: socket.socket) -> Any:
    raw = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.itemsize)
    return np.frombuffer(raw.ljust(TCP_INFO.itemsize, b"\0"), TCP_INFO)[0]


def _compare_state(
    results: Results,
    family: str,
    found: Recording,
    packets: list[pcap.Packet],
    info: Any,
    ports: tuple[int, int],
) -> None:
    """The record of the look (it found nothing), beside what others say at the same time."""
    looks = found.of("SOCK_RECV", found.busiest("SOCK_SEND"))
    (at,) = np.flatnonzero(looks["size"] < 0)
    told = {name: int(column[at]) for name, column in looks.items()}
    told["tcp_srtt"] >>= 3
    wanted = {field: int(info[member]) for field, member in SAME.items()}
    for field, outgoing in zip(SEQUENCES, (True, False), strict=True):
        ends = [one.seq_lo + one.size for one in packets
                if one.size and one.outgoing == outgoing]  # fmt: skip
        first = ends[0]
        wanted[field] = first + max((one - first) % (1 << 32) for one in ends) & 0xFFFFFFFF
    wanted |= dict(zip(PORTS, ports, strict=True))
    for field, value in wanted.items():
        results.add(NAME, f"{family}: {field}", RECORD, told[field])
        results.add(NAME, f"{family}: {field}", ORACLE, value)


def _compare_packets(
    results: Results, family: str, found: Recording, packets: list[pcap.Packet]
) -> None:
    """The records of both directions beside tcpdump's packets: as often, each with its fields."""
    for event, outgoing in (("DEV_SEND", True), ("DEV_RECV", False)):
        ours = Counter(_keys(found.of(event)))
        theirs = Counter(one.key for one in packets if one.outgoing == outgoing)
        case = f"{family}, {event}"
        results.add(NAME, WRONG, case, (ours - theirs).total() + (theirs - ours).total())
        results.add(NAME, "packets", case, theirs.total())


def _keys(columns: Columns) -> Iterator[tuple[int, ...]]:
    """As Packet.key."""
    names = (*HEADER, "seq_lo", "ack", "flags", "size")
    arrays = [columns[name].astype(np.int64) for name in names]
    arrays[-2] = arrays[-2] & PACKET_FLAGS
    return zip(*(array.tolist() for array in arrays), strict=True)


def state(results: Results) -> dict[str, tuple[float, float]]:
    """By field: the record's value and the other's."""
    subjects = results.values.get(NAME, {})
    return {
        subject: (cases[RECORD][0], cases[ORACLE][0])
        for subject, cases in subjects.items() if RECORD in cases
    }  # fmt: skip


def figures(results: Results) -> list[Figure]:
    told = state(results)
    wrong = [field for field, (ours, theirs) in told.items() if ours != theirs]
    cases = results.values.get(NAME, {})
    differing = sum(map(sum, cases.get(WRONG, {}).values()))
    packets = sum(map(sum, cases.get("packets", {}).values()))
    if not told or not packets:
        return []
    return [
        Figure(f"{NAME}: magnet_tcp = TCP_INFO on a stopped flow", "-",
               f"{len(told) - len(wrong)} of {len(told)} fields" + "".join(
                   f"; not {field}" for field in wrong), "all", not wrong),
        Figure(f"{NAME}: flags and magnet_ip = tcpdump, packet by packet", "-",
               f"{number(differing, 0)} of {number(packets, 0)} packets differ", "none",
               not differing),
    ]  # fmt: skip


def tables(results: Results) -> list[Table]:
    rows = [[field, number(ours, 0), number(theirs, 0)]
            for field, (ours, theirs) in state(results).items()]  # fmt: skip
    return [
        Table(
            "The state in the record of a call, and what others say of it",
            ("", RECORD, ORACLE), rows,
            "A connection of either family after some exchanges. srtt is that of the record >> 3, "
            "as in TCP_INFO. write_seq and copied_seq: by tcpdump's packets.",
        )
    ]  # fmt: skip
