# SPDX-License-Identifier: Apache-2.0
"""Connections that are open already, listed by sock_diag, against ss in the same namespace."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.loader import sock_diag
from tcpkmon.collector.loader.listing import ends_of, list_connections, make_entries
from tcpkmon.collector.plan.columns import Layout, choose_columns, load_schema, make_layout
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.errors import KernelError

TIMEOUT_S = 60.0
MARK = 7_654_321
STATES = {"ESTAB": 1, "FIN-WAIT-1": 4, "FIN-WAIT-2": 5, "CLOSE-WAIT": 8}


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
        made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
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


def own_cgroup() -> int:
    """The id of this process's, which made all of these sockets; 0 without cgroup2."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4] for line in lines if " - cgroup2 " in line]
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().split() if line[:3] == "0::"]
    return os.stat(mounts[0] + own[0]).st_ino if mounts and own else 0


def layout_of(columns: str = "all") -> Layout:
    schema = load_schema()
    return make_layout(schema, choose_columns(schema.event("SNAPSHOT"), columns), ())


def entries_of(side: Side, filters: Filters | None = None) -> NDArray[Any]:
    found = list_connections([side.namespace.fd], filters or Filters())
    return make_entries(layout_of(), found, 5)


def steady(side: Side) -> tuple[NDArray[Any], dict[tuple[int, int], str]]:
    """Entries, and what ss says by ports, of a moment in which nothing changed."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        before = entries_of(side)
        text = side.command(["ss", "-tinmoeHO"])
        after = entries_of(side)
        if before.tobytes() == after.tobytes():
            break
        assert time.monotonic() < deadline, "the connections never came to rest"
    lines: dict[tuple[int, int], str] = {}
    for line in text.splitlines():
        words = line.split()
        lines[int(words[3].rpartition(":")[2]), int(words[4].rpartition(":")[2])] = line
    return before, lines


def number(line: str, pattern: str, missing: float | None = None) -> float:
    found = re.search(rf"(?<![\w:]){pattern}", line)
    if found is None:
        assert missing is not None, f"ss gives no {pattern}: {line}"
        return missing
    return float(found[1])


@pytest.mark.parametrize("name", ["a", "b"])
def test_entries_equal_ss(lab: Lab, traffic: Traffic, name: str) -> None:
    entries, lines = steady(getattr(lab, name))
    assert len(entries) == len(lines) == 3
    for entry in entries:
        line = lines[int(entry["lport"]), int(entry["rport"])]
        state, receive, send, local, remote = line.split()[:5]
        assert entry["location"] == EXISTING
        assert entry["callvalue"] == 0
        assert entry["state"] == STATES[state]
        assert entry["rcv_sb_cc"] == int(receive)
        assert entry["snd_sb_cc"] == int(send)
        for column, text in (("laddr", local), ("raddr", remote)):
            shown = ipaddress.ip_address(text.rpartition(":")[0].strip("[]").partition("%")[0])
            found = ipaddress.IPv6Address(entry[column].tobytes())
            assert shown in (found, found.ipv4_mapped)

        memory = re.search(r"skmem:\(r(\d+),rb(\d+),t(\d+),tb(\d+),f(\d+),w(\d+),", line)
        assert memory is not None
        columns = ("sk_rmem_bytes", "sk_rcvbuf", "sk_wmem_alloc", "sb_hiwat",
                   "sk_forward_alloc", "sk_wmem_bytes")  # fmt: skip
        for column, text in zip(columns, memory.groups(), strict=True):
            assert entry[column] == int(text), column

        same = {
            "mss": "mss", "rcv_mss": "rcvmss", "advmss": "advmss", "snd_cwnd_segs": "cwnd",
            "bytes_sent": "bytes_sent", "bytes_acked": "bytes_acked",
            "bytes_received": "bytes_received", "segs_out": "segs_out", "segs_in": "segs_in",
            "data_segs_out": "data_segs_out", "data_segs_in": "data_segs_in",
            "delivered": "delivered", "rcv_space": "rcv_space", "rcv_ssthresh": "rcv_ssthresh",
        }  # fmt: skip
        for column, label in same.items():
            assert entry[column] == number(line, rf"{label}:(\d+)"), column
        optional = {
            "packets_out": "unacked", "sacked_out": "sacked", "lost_out": "lost",
            "snd_wnd": "snd_wnd", "notsent_bytes": "notsent", "backoff": "backoff",
        }  # fmt: skip
        for column, label in optional.items():
            missing = float(entry[column]) if label == "snd_wnd" else 0  # an older ss has none
            assert entry[column] == number(line, rf"{label}:(\d+)", missing), column
        milliseconds = {
            "rto_us": r"rto:([\d.]+)", "srtt_us": r"rtt:([\d.]+)/",
            "min_rtt_us": r"minrtt:([\d.]+)", "rttvar_us": r"rtt:[\d.]+/([\d.]+)",
            "busy_us": r"busy:(\d+)ms", "rcv_rtt_us": r"rcv_rtt:([\d.]+)",
        }  # fmt: skip
        for column, pattern in milliseconds.items():
            tolerance_us = 1000 if column == "busy_us" else 1
            shown_us = number(line, pattern, 0) * 1000  # zeros are not shown
            assert int(entry[column]) == pytest.approx(shown_us, rel=1e-4, abs=tolerance_us), column
        assert int(entry["pacing_rate"]) * 8 == number(line, r"pacing_rate (\d+)bps")
        assert entry["total_retrans"] == number(line, r"retrans:\d+/(\d+)", 0)
        assert entry["snd_ssthresh"] == number(line, r"ssthresh:(\d+)", 0x7FFFFFFF)
        assert entry["snd_cwnd"] == int(entry["snd_cwnd_segs"]) * int(entry["mss"])
        assert entry["ca_name"].tobytes().rstrip(b"\0").decode() in line.split()
        assert entry["netns"] == getattr(lab, name).namespace.cookie
        assert entry["sk_mark"] == (MARK if name == "b" else 0)
        assert entry["cgroup"] == own_cgroup()
        assert not any(entry[c] for c in ("seq_no", "seq", "serial", "conn_id", "snd_nxt", "cpu"))


def test_cookies_and_inodes_are_those_of_ss(lab: Lab, traffic: Traffic) -> None:
    text = lab.b.command(["ss", "-teHOn"])
    shown = {
        (int(inode), int(cookie, 16))
        for inode, cookie in re.findall(r"ino:(\d+) sk:([0-9a-f]+)", text)
    }
    found = list_connections([lab.b.namespace.fd], Filters())
    assert {(one["inode"], one["cookie"]) for one in found} == shown
    assert len(shown) == 3


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
             for one in list_connections([side.namespace.fd], Filters())}
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
    with_namespaces = [lab.a.namespace.fd, lab.b.namespace.fd]
    found = list_connections(with_namespaces, filters)
    return sorted(ends_of(one)[0][1] for one in found if one["netns"] == lab.b.namespace.cookie)


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


def test_pid(lab: Lab, traffic: Traffic) -> None:
    """A child that holds one connection more than this process does."""
    with ExitStack() as stack:
        client, server, port = connect(lab, stack, "v4")
        child = lab.b.start(["sleep", "600"], pass_fds=(server.fileno(),))
        try:
            server.close()
            assert listed(lab, parse(pids=[child.pid])) == [port]
            found = list_connections([lab.b.namespace.fd], parse(pids=[child.pid]))
            entries = make_entries(layout_of("full"), found, 1)
            assert list(entries["pid"]) == [child.pid]
            ours = sorted([*traffic.ports.values(), port])  # with what a child has
            assert listed(lab, parse(pids=[os.getpid()])) == ours
        finally:
            child.kill()
            child.wait()
        assert client.recv(1) == b""


def test_cgroup(lab: Lab, traffic: Traffic) -> None:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line[3:] for line in lines if line.startswith("0::"))
    found = list_connections([lab.b.namespace.fd], parse(cgroups=[own]))
    assert len(found) == 3
    nowhere = parse(cgroups=[own]).cgroups[0]
    other = type(nowhere)("/nonexistent", nowhere.id + 1, nowhere.level)
    assert not len(list_connections([lab.b.namespace.fd], Filters(cgroups=(other,))))


def test_many_connections_are_each_there_once(lab: Lab) -> None:
    """More than fit in one answer of the kernel."""
    count = 401
    with ExitStack() as stack:

        def listen() -> socket.socket:
            return socket.create_server((lab.b.address4, 0), backlog=64)

        listener = stack.enter_context(lab.b.run(listen))
        ports = set()
        for _ in range(count):
            client = stack.enter_context(lab.a.run(lambda: socket.socket(socket.AF_INET)))
            client.settimeout(TIMEOUT_S)
            client.connect(listener.getsockname())
            stack.enter_context(listener.accept()[0])
            ports.add(client.getsockname()[1])
        found = list_connections([lab.b.namespace.fd], Filters())
        assert len(found) == count
        assert {ends_of(one)[1][1] for one in found} == ports


def test_a_refusal_by_the_kernel(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol that nobody lists, as TCP is where tcp_diag is missing."""
    monkeypatch.setattr(sock_diag, "_TCP", 253)
    with pytest.raises(KernelError, match=r"does not list its connections: \w+"):
        list_connections([lab.b.namespace.fd], Filters())
