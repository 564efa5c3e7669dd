# SPDX-License-Identifier: Apache-2.0
"""DROPPED: each packet that the kernel drops of followed ports, against its own counters."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tcpkmon
from tcpkmon.collector.lab.counters import counters, losing
from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.linux.btf import Btf, Kind
from tests.live.capturing import (
    Records,
    capturing,
    connected,
    family_of,
    listening,
    make_socket,
    receive,
    tcp_info,
    wait_until,
    within,
)
from tests.live.schema_logs import logging

ACK, SYN, FIN = 16, 2, 1
COLUMNS = ("--columns", "default,netns,seg_ack")


def reasons() -> dict[str, int]:
    """Of this kernel, without their prefix; none before 5.17."""
    btf = Btf.from_kernel()
    found = btf.find(Kind.ENUM, "skb_drop_reason")
    names = {} if found is None else btf.enumerators(found)
    return {name.removeprefix("SKB_DROP_REASON_"): value for name, value in names.items()}


def table(path: Path) -> list[dict[str, Any]]:
    """The table `drops` of a capture."""
    with tcpkmon.open(path) as capture:
        rows: list[dict[str, Any]] = capture.table("drops").to_pylist()
        return rows


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(
    here: str, port: int, there: str, peer: int, flags: int, seq: int = 1, data: bytes = b"",
    wrong: int = 0,
) -> bytes:  # fmt: skip
    """A packet of IPv4 with a segment. wrong: what is added to its checksum."""
    saddr, daddr = socket.inet_aton(here), socket.inet_aton(there)

    def head(check: int) -> bytes:
        return struct.pack(">HHIIBBHHH", port, peer, seq, 1, 5 << 4, flags, 1000, check, 0)

    pseudo = saddr + daddr + struct.pack(">BBH", 0, 6, 20 + len(data))
    check = (checksum(pseudo + head(0) + data) + wrong) % 0xFFFF
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0, saddr, daddr)
    return ip + head(check) + data


def send_segment(side: Side, ends: tuple[str, int, str, int], *more: Any) -> None:
    """One segment that no socket sends."""
    packet = segment(*ends, *more)

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            raw.sendto(packet, (ends[2], 0))

    side.run(send)


def nft(side: Side, text: str) -> None:
    side.command(["nft", text])


def dropped_by_nft(side: Side) -> int:
    """Packets that the one counter of a table saw."""
    words = side.command(["nft", "list table inet own"]).split()
    return int(words[words.index("packets") + 1])


def test_normal_traffic_drops_nothing(tmp_path: Path, lab: Lab) -> None:
    """Not even the FIN that a closed socket has in its queue."""
    with capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
        for address in ("10.77.0.2", "fd77::2"):
            for _ in range(5):
                with connected(lab, address=address) as pair:
                    pair.exchange(20_000)
        outcome = run.stop()
    outcome.check_complete()
    assert outcome.books("DROPPED")["attempts"] == outcome.books("RCVQ_FULL")["attempts"] == 0
    assert len(outcome.records.at("DESTROY")) >= 20


HOOKS = {"output": "filter", "input": "filter", "prerouting": "raw"}
"""Of nft, with the priority of a chain there."""


@dataclass(frozen=True)
class Refused:
    """Segments of a connection that a rule of `side` dropped: by its own count, after so many bytes
    were acknowledged. ends: of the socket whose drops they are."""

    hook: str
    side: Side
    ends: tuple[int, int]
    client: int
    before: int
    counted: int


def refuse(lab: Lab, hook: str, address: str) -> Refused:
    side = lab.a if hook == "output" else lab.b
    with connected(lab, address=address) as pair:
        port, there = pair.client_port, pair.server_port
        pair.exchange()
        chain = f"add chain inet own one {{ type filter hook {hook} priority {HOOKS[hook]}; }}"
        rule = f"add rule inet own one tcp sport {port} meta length > 200 counter drop"
        nft(side, f"add table inet own; {chain}; {rule}")
        before = tcp_info(pair.client)["bytes_acked"]
        pair.client.sendall(bytes(5000))
        wait_until(lambda: dropped_by_nft(side) >= 3)
        if hook == "output":
            time.sleep(1.1)  # the function's name has come
        counted = dropped_by_nft(side)
        nft(side, "delete table inet own")
        receive(pair.server, 5000)
    ends = (port, there) if hook == "output" else (there, port)
    return Refused(hook, side, ends, port, before, counted)


def test_a_firewall(tmp_path: Path, lab: Lab) -> None:
    """As many as nft counts; before the device, or where they arrive; of whose connection."""
    with capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
        each = [refuse(lab, hook, to) for hook in HOOKS for to in ("10.77.0.2", "fd77::2")]
        outcome = run.stop()
    outcome.check_complete()
    everything = table(tmp_path / "a.pm")
    assert len(everything) == len(outcome.records.at("DROPPED"))
    assert {(row["lport"], row["rport"]) for row in everything} == {one.ends for one in each}
    for one in each:
        check_refused(outcome.records, one, [
            row for row in everything if (row["lport"], row["rport"]) == one.ends
        ])  # fmt: skip


def check_refused(records: Records, done: Refused, rows: list[dict[str, Any]]) -> None:
    assert abs(len(rows) - done.counted) <= 1 and len(rows) >= 3  # one more before the table went
    assert {row["dir"] for row in rows} == {"out" if done.hook == "output" else "in"}
    if reasons():
        assert {row["reason"] for row in rows} == {"NETFILTER_DROP"}
    if any(row["function"] for row in rows):
        assert {row["function"] for row in rows} <= {"nft_do_chain", "nf_hook_slow"}
    assert {row["netns"] for row in rows} == {done.side.namespace.cookie}
    here = records.where(lport=done.ends[0], rport=done.ends[1])
    identity = {n for n in here["conn_id"].tolist() if n}
    assert {row["conn_id"] for row in rows} == identity and len(identity) == 1
    first = records.at("SEGMENT_RECEIVED").where(lport=done.client)["seg_ack"][-1].item()
    lost = {(row["seq"] - first + done.before) % (1 << 32) for row in rows}
    assert all(-6000 < number - (1 << 32) * (number > 1 << 31) <= 6000 for number in lost)
    assert {row["len"] for row in rows} <= set(range(100, 5001))


def test_no_socket_and_a_listener(tmp_path: Path, lab: Lab) -> None:
    """A closed port, and what a listener does not take, with and without an address's family."""
    with capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
        with listening(lab.b, "10.77.0.2") as listener:
            port = listener.getsockname()[1]
            send_segment(lab.a, ("10.77.0.1", 999, "10.77.0.2", port), FIN | ACK, 77)
            send_segment(lab.a, ("10.77.0.1", 998, "10.77.0.2", port), FIN, 78)
        closed = []
        for address in ("10.77.0.2", "fd77::2"):
            with listening(lab.b, address) as listener:
                closed.append(listener.getsockname()[1])
            with (
                make_socket(lab.a, family_of(address)) as client,
                pytest.raises(ConnectionRefusedError),
            ):
                client.connect((address, closed[-1]))
        wait_until(lambda: counters(lab.b)["OutRsts"] >= 3)
        outcome = run.stop()
    outcome.check_complete()
    rows = table(tmp_path / "a.pm")
    refused = [row for row in rows if row["lport"] in closed]
    assert [row["flags"] & SYN for row in refused] == [SYN, SYN]
    assert {(row["state"], row["conn_id"], row["dir"]) for row in refused} == {(None, None, "in")}
    at = [row for row in rows if row["lport"] == port]
    # Kernels before 6.11 do not say which socket dropped it.
    assert {row["seq"] for row in at} >= {77} and {row["rport"] for row in at} <= {998, 999}
    if reasons():
        assert {row["reason"] for row in refused} == {"NO_SOCKET"}
    if "TCP_ABORT_ON_DATA" in reasons():
        assert {row["state"] for row in at} == {"LISTEN"}


def test_damaged_segments(tmp_path: Path, lab: Lab) -> None:
    """As many as the kernel counts as InCsumErrors."""
    with capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
        with connected(lab) as pair:
            ends = ("10.77.0.1", pair.client_port, "10.77.0.2", pair.server_port)
            pair.exchange()
            for _ in range(7):
                send_segment(lab.a, ends, ACK, 5, b"damaged!", 1)
            wait_until(lambda: counters(lab.b)["InCsumErrors"] >= 7)
            pair.exchange()
        counted = counters(lab.b)["InCsumErrors"]
        outcome = run.stop()
    outcome.check_complete()
    rows = table(tmp_path / "a.pm")
    assert len(rows) == counted == 7
    assert {(row["seq"], row["len"], row["flags"]) for row in rows} == {(5, 8, ACK)}
    if reasons():
        assert {row["reason"] for row in rows} == {"TCP_CSUM"}
    server = outcome.records.where(lport=ends[3], rport=ends[1])
    assert {row["conn_id"] for row in rows} == {n for n in server["conn_id"].tolist() if n}


def test_time_wait(tmp_path: Path, lab: Lab) -> None:
    """What comes for a connection that is over is of the connection that had these ends."""
    with capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
        with connected(lab) as pair:
            ends = ("10.77.0.2", pair.server_port, "10.77.0.1", pair.client_port)
            pair.exchange()
            pair.client.close()  # it waits, then
            assert pair.server.recv(1) == b""
            pair.server.close()
            wait_until(lambda: waiting(lab.a))
            before = counters(lab.a)["InSegs"]
            send_segment(lab.b, ends, ACK, 12345, b"too late")
            wait_until(lambda: counters(lab.a)["InSegs"] > before)
        outcome = run.stop()
    outcome.check_complete()
    row = next(row for row in table(tmp_path / "a.pm") if row["seq"] == 12345)
    assert (row["lport"], row["len"], row["dir"]) == (ends[3], 8, "in")
    client = outcome.records.where(lport=ends[3], rport=ends[1])
    assert row["conn_id"] in set(client["conn_id"].tolist()) - {0}


def waiting(side: Side) -> int:
    """Connections of it that are over, and wait."""
    return int(side.command(["cat", "/proc/thread-self/net/sockstat"]).split(" tw ")[1].split()[0])


def test_a_queue_that_is_full(tmp_path: Path, lab: Lab) -> None:
    """As many as the queueing discipline counts."""
    # One that has to split a packet counts its parts alone.
    lab.a.command(["ip", "link", "set", "dev", DEVICE, "gso_max_segs", "1"])
    limits = ["rate", "1mbit", "burst", "3000", "limit", "6000"]
    lab.a.command(["tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *limits])
    try:
        with capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
            with connected(lab) as pair:
                port = pair.client_port
                pair.client.sendall(bytes(100_000))
                receive(pair.server, 100_000)
            told = lab.a.command(["tc", "-s", "qdisc", "show", "dev", DEVICE])
            outcome = run.stop()
    finally:
        lab.a.command([*["tc", "qdisc", "del", "dev", DEVICE, "root"]])
    outcome.check_complete()
    counted = int(told.split("dropped ")[1].split(",")[0])
    rows = table(tmp_path / "a.pm")
    assert len(rows) == counted > 0
    assert {row["dir"] for row in rows} == {"out"}
    client = outcome.records.where(lport=port)
    assert {row["conn_id"] for row in rows} == {n for n in client["conn_id"].tolist() if n}


def test_filters(tmp_path: Path, lab: Lab) -> None:
    """Only what the filters choose; the rest is counted as filtered."""
    with listening(lab.b, "10.77.0.2") as one, listening(lab.b, "10.77.0.2") as two:
        wanted, other = one.getsockname()[1], two.getsockname()[1]
    with capturing(tmp_path / "a.pm", *COLUMNS, "--ports", str(wanted), *within(lab)) as run:
        for port in (wanted, other, other):
            with make_socket(lab.a) as client, pytest.raises(ConnectionRefusedError):
                client.connect(("10.77.0.2", port))
        outcome = run.stop()
    outcome.check_complete()
    books = outcome.books("DROPPED")
    assert books["written"] == 1 and books["filtered"] >= 2
    assert outcome.records.at("DROPPED").one("lport") == wanted
    with capturing(tmp_path / "b.pm", *COLUMNS, "--netns", lab.a.name) as run:
        with make_socket(lab.a) as client, pytest.raises(ConnectionRefusedError):
            client.connect(("10.77.0.2", wanted))
        outcome = run.stop()
    assert len(outcome.records.at("DROPPED")) == 0, "it was dropped in the other namespace"


def test_in_a_log(tmp_path: Path, lab: Lab) -> None:
    """The same in a Klogger log, where names come as events."""
    log = tmp_path / "log"
    with (
        losing(lab.b, "tcp dport 4599"),
        logging(log, "tcp", more=(*COLUMNS, *within(lab))),
        make_socket(lab.a) as client,
    ):
        client.settimeout(1.5)
        with suppress(OSError):
            client.connect(("10.77.0.2", 4599))
    assert {report.exit_code for report in tcpkmon.verify(log)} == {0}
    rows = table(log)
    assert len(rows) >= 2 and {row["flags"] & SYN for row in rows} == {SYN}
    assert Counter(row["dir"] for row in rows) == {"in": len(rows)}
    if reasons():
        assert {row["reason"] for row in rows} == {"NETFILTER_DROP"}


def test_a_flood(tmp_path: Path, lab: Lab) -> None:
    """Each of very many drops is recorded, or counted as lost."""
    count, here, there = 200_000, "10.77.0.1", "10.77.0.2"
    chain = "add chain inet own one { type filter hook output priority filter; }"
    nft(lab.a, f"add table inet own; {chain}; add rule inet own one tcp dport 4598 counter drop")
    packet = segment(here, 999, there, 4598, SYN)

    def send() -> float:
        begin = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            for _ in range(count):
                with suppress(PermissionError):  # the rule's answer
                    raw.sendto(packet, (there, 0))
        return count / (time.monotonic() - begin)

    path = tmp_path / "a.pm"
    with capturing(path, "--ports", "4598", "--buffer-size", "1", *within(lab)) as run:
        rate = lab.a.run(send)
        outcome = run.stop()
    counted = dropped_by_nft(lab.a)
    nft(lab.a, "delete table inet own")
    books = outcome.books("DROPPED")
    kept = books["attempts"] - books["filtered"]
    assert counted == count == kept == books["written"] + books["lost"]
    assert len(outcome.records.at("DROPPED")) + outcome.capture.lost == count
    print(f"{rate:,.0f} drops a second, {outcome.capture.lost} lost")
