# SPDX-License-Identifier: Apache-2.0
"""The table causes on real connections that have each cause, and on such as look like it."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab.counters import counters, losing
from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.pair import (
    Pair,
    connected,
    drain,
    join,
    listening,
    make_socket,
    receive,
)
from tcpkmon.formats.analysis.causes import NAMES, causes
from tcpkmon.formats.analysis.check import Capture, check
from tcpkmon.formats.analysis.explaining import explain
from tcpkmon.formats.analysis.why import connections
from tests.live.capturing import capturing, wait_until, within
from tests.live.test_drops_live import send_segment

pytestmark = pytest.mark.live
_SHORT = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
          (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
          (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
          (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)]  # fmt: skip
_USER_TIMEOUT = [(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500)]
PORTS = {
    "keepalive": 7001, "answered keepalive": 7002, "close_wait": 7003, "half closed": 7004,
    "user_timeout": 7005, "data and no answer": 7006, "silence": 7007, "long silence": 7008,
    "netfilter": 7013, "rule that accepts": 7014, "checksum": 7015, "old segments": 7016,
    "no_socket": 7009, "self_connect": 7010,
    "loopback": 7011, "no_port": 7012, "orphans": 7017, "unread": 7018, "time_wait": 7019,
    "rfc1337": 7020, "same port": 7021, "ecn_syn": 7022, "lost SYN": 7023, "small_packets": 7024,
    "large packets": 7025, "receive_memory": 7026, "small buffer": 7027,
}  # fmt: skip
"""By the case, the server's port; those with the name of a cause have it."""
_JOINED = list(PORTS)[:12]
_DROPPED = ("keepalive", "user_timeout", "data and no answer", "silence", "ecn_syn", "lost SYN")
"""Of these, netfilter drops what arrives."""


def port_name(ports: set[int]) -> str:
    (name,) = (name for name, port in PORTS.items() if port in ports)
    return name


def error_of(end: socket.socket) -> int | None:
    with suppress(TimeoutError):
        try:
            end.recv(1)
        except OSError as error:
            return error.errno
    return None


def refused(lab: Lab, port: int, here: bool = False) -> int:
    """The errno of a connect() to a port where nothing listens."""
    with make_socket(lab.a) as end:
        if here:
            end.bind(("127.0.0.1", 0))
        return end.connect_ex(("127.0.0.1" if here else lab.b.address4, port))


def connect_to_itself(lab: Lab) -> None:
    with make_socket(lab.a) as end:
        end.bind(("127.0.0.1", PORTS["self_connect"]))
        end.connect(("127.0.0.1", PORTS["self_connect"]))
        end.sendall(b"abc")
        receive(end, 3)


def find_no_port(lab: Lab) -> None:
    """Ten ports, and twenty who want one."""
    lab.a.set_sysctls({"net.ipv4.ip_local_port_range": "20000 20009"})
    with listening(lab.b, lab.b.address4, PORTS["no_port"]), ExitStack() as stack:
        ends = [stack.enter_context(make_socket(lab.a)) for _ in range(20)]
        errors = [end.connect_ex((lab.b.address4, PORTS["no_port"])) for end in ends]
    lab.a.set_sysctls({"net.ipv4.ip_local_port_range": "32768 60999"})
    assert errors == [0] * 10 + [99] * 10  # EADDRNOTAVAIL


def exhaust_orphans(lab: Lab) -> None:
    """Eight full sockets are closed, four of them with room for one orphan; and one is closed with
    a byte unread."""
    with listening(lab.b, lab.b.address4, PORTS["orphans"]) as listener:
        full = [join(lab.a, listener, lab.b.address4) for _ in range(8)]
    for pair in full:
        pair.client.setblocking(False)
        with suppress(BlockingIOError):
            while pair.client.send(bytes(1 << 16)):
                pass
    with listening(lab.b, lab.b.address4, PORTS["unread"]) as listener:
        unread = join(lab.a, listener, lab.b.address4)
    unread.server.send(b"a")
    time.sleep(0.1)
    unread.client.close()
    for pair in full[:4]:
        pair.client.close()
    time.sleep(0.3)  # the kernel counts them each 100 ms
    allowed = Path("/proc/sys/net/ipv4/tcp_max_orphans")
    usual = allowed.read_text()
    allowed.write_text("1")  # of the whole machine, so for a moment
    try:
        for pair in full[4:]:
            pair.client.close()
    finally:
        allowed.write_text(usual)
    assert counters(lab.a)["TCPAbortOnMemory"] == 4
    for pair in (*full, unread):
        pair.close()


def reuse_port(lab: Lab, name: str, ahead: int) -> int:
    """Twice a connection of the same ports, the first of them in TIME_WAIT at the server, whose
    number is so far ahead of that of a SYN of now. Returns the errno of the second."""
    with listening(lab.b, lab.b.address4, PORTS[name]) as listener:
        first = join(lab.a, listener, lab.b.address4)
        port = first.client_port
        reading = drain(first.server)
        began, sent = time.monotonic(), 0
        while sent - 15_625_000 * (time.monotonic() - began) < ahead:  # the numbers of SYNs grow so
            sent += first.client.send(bytes(1 << 20))
        first.server.shutdown(socket.SHUT_WR)
        first.client.recv(1)
        first.client.close()
        reading.join()
        first.close()
        with make_socket(lab.a) as again:
            again.bind(("", port))
            again.settimeout(2.5)
            return again.connect_ex((lab.b.address4, PORTS[name]))


def reuse_ports(lab: Lab) -> None:
    off = {"net.ipv4.tcp_timestamps": "0", "net.ipv4.tcp_tw_reuse": "0"}
    lab.a.set_sysctls(off)
    lab.b.set_sysctls(off)
    assert reuse_port(lab, "same port", -1_000_000) == 0
    assert reuse_port(lab, "time_wait", 20_000_000) == 0
    lab.b.set_sysctls({"net.ipv4.tcp_rfc1337": "1"})
    assert reuse_port(lab, "rfc1337", 20_000_000) == errno.EAGAIN
    for side in (lab.a, lab.b):
        side.set_sysctls({"net.ipv4.tcp_timestamps": "1"})


def lose_syns(lab: Lab) -> None:
    """The first SYN is lost: one as it asks for ECN, and any."""
    for name, ecn, lost in (("ecn_syn", "1", "tcp flags & (syn | ecn | cwr) == (syn | ecn | cwr)"),
                            ("lost SYN", "2", "limit rate 1/minute burst 1 packets")):  # fmt: skip
        lab.a.set_sysctls({"net.ipv4.tcp_ecn": ecn})
        with (
            listening(lab.b, lab.b.address4, PORTS[name]),
            losing(lab.b, f"tcp dport {PORTS[name]} {lost}"),
            make_socket(lab.a) as end,
        ):
            end.connect((lab.b.address4, PORTS[name]))
    lab.a.set_sysctls({"net.ipv4.tcp_ecn": "2"})


def read_late(lab: Lab, name: str, size: int, late: bool = False) -> None:
    """A reader in each 0.2 s, of a receive buffer that is small, from the start or later."""
    with listening(lab.b, lab.b.address4, PORTS[name]) as listener:
        if not late:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        pair = join(lab.a, listener, lab.b.address4, [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)])
    pair.exchange()
    if late:
        pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    pair.client.setblocking(False)
    for _ in range(5):
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            with suppress(BlockingIOError):
                pair.client.send(bytes(size))
        with suppress(BlockingIOError):
            pair.server.recv(1 << 20, socket.MSG_DONTWAIT)
    pair.close()


def fill_memory(lab: Lab) -> None:
    # A window of few segments would make one of many writes.
    lab.a.command(["ip", "route", "change", "10.77.0.0/24", "dev", DEVICE, "initcwnd", "2000"])
    for name, counter, others in (("small_packets", "TCPRcvCollapsed", "large packets"),
                                  ("receive_memory", "TCPRcvQDrop", "small buffer")):  # fmt: skip
        is_late = name == "receive_memory"
        read_late(lab, others, 1400)
        assert counters(lab.b)[counter] == 0
        read_late(lab, name, 1400 if is_late else 1, is_late)
        assert counters(lab.b)[counter] >= 1
    lab.a.command(["ip", "route", "change", "10.77.0.0/24", "dev", DEVICE])


def drop_packets(lab: Lab, pairs: dict[str, Pair]) -> None:
    """By a rule and by a checksum, and the same without a drop."""
    rule = "add rule inet own one tcp dport"
    lab.a.command(["nft", "add table inet own; add chain inet own one { type filter hook output "
                          f"priority 0; }}; {rule} {PORTS['netfilter']} counter drop; {rule} "
                          f"{PORTS['rule that accepts']} counter accept"])  # fmt: skip
    for name, size in (("netfilter", 50_000), ("rule that accepts", 1000)):
        pairs[name].client.sendall(bytes(size))
    for name, wrong in (("checksum", 1), ("old segments", 0)):
        ends = ("10.77.0.1", pairs[name].client_port, lab.b.address4, PORTS[name])
        for _ in range(5):
            send_segment(lab.a, ends, 16, 5, b"damaged!", wrong)
    assert counters(lab.b)["InCsumErrors"] == 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("causes") / "run.pm"
    with Lab() as lab, capturing(path, *within(lab), "--columns", "full"):
        pairs: dict[str, Pair] = {}
        options = {"keepalive": _SHORT, "answered keepalive": _SHORT,
                   "user_timeout": _USER_TIMEOUT}  # fmt: skip
        for name in _JOINED:
            with listening(lab.b, lab.b.address4, PORTS[name]) as listener:
                pairs[name] = join(lab.a, listener, lab.b.address4, options.get(name, ()))
            pairs[name].exchange()
        assert refused(lab, PORTS["no_socket"]) == 111
        drop_packets(lab, pairs)
        with listening(lab.a, "127.0.0.1", PORTS["loopback"]) as listener:
            pairs["loopback"] = join(lab.a, listener, "127.0.0.1")
        pairs["loopback"].exchange()
        connect_to_itself(lab)
        find_no_port(lab)
        exhaust_orphans(lab)
        reuse_ports(lab)
        lose_syns(lab)
        fill_memory(lab)
        began = time.monotonic()
        for name in ("close_wait", "half closed"):
            pairs[name].client.shutdown(socket.SHUT_WR)
        gone = ", ".join(str(PORTS[name]) for name in
                         ("keepalive", "user_timeout", "data and no answer"))  # fmt: skip
        lab.drop_all(f"tcp dport {{ {gone} }}")
        for name in ("user_timeout", "data and no answer"):
            pairs[name].client.sendall(bytes(100))
        time.sleep(1.5)
        pairs["half closed"].server.sendall(bytes(100))  # it took that long to answer
        pairs["half closed"].server.close()
        for name in ("keepalive", "user_timeout"):
            pairs[name].client.settimeout(8)
            assert error_of(pairs[name].client) == 110  # ETIMEDOUT
        pairs["answered keepalive"].client.settimeout(0.1)
        assert error_of(pairs["answered keepalive"].client) is None
        time.sleep(max(0, 11 - (time.monotonic() - began)))
        lab.drop_all(f"tcp dport {PORTS['silence']}")
        pairs["silence"].client.sendall(bytes(100))
        pairs["long silence"].exchange()  # as long, and it is answered
        time.sleep(3)
        lab.drop_all("")
        for pair in pairs.values():
            pair.close()
    yield path


def test_each_case_has_its_cause_and_no_other(made: Path) -> None:
    table, found = connections(made), causes(made)
    ports = {
        conn_id: {lport, rport} for conn_id, lport, rport in zip(
            table["conn_id"].tolist(), table["lport"].tolist(), table["rport"].tolist(),
            strict=True,
        )
    }  # fmt: skip
    mine: dict[str, set[str]] = {name: set() for name in PORTS}
    columns = (found[name].tolist() for name in ("conn_id", "cause", "lport"))
    for conn_id, cause, lport in zip(*columns, strict=True):
        if cause != "listener_closed":  # most of these listeners are closed at once
            mine[port_name(ports.get(conn_id, {lport}))].add(cause)
    assert mine == {
        name: ({name} & {*NAMES}) | ({"netfilter"} if name in _DROPPED else set()) for name in PORTS
    } | {"rfc1337": {"time_wait"}}  # fmt: skip
    dropped = {
        (cause, port_name(ports.get(conn_id, {lport}))): count for cause, conn_id, lport, count in
        zip(*(found[name].tolist() for name in ("cause", "conn_id", "lport", "records")),
            strict=True)
    }  # fmt: skip
    assert dropped["checksum", "checksum"] == 5 and dropped["no_socket", "no_socket"] == 1
    assert (found["cause"] == "no_port").sum() == 10
    assert (found["end_ns"] >= found["start_ns"]).all()


def test_why_says_the_cause_first_and_blames_nothing_against_it(made: Path) -> None:
    said = {}
    for one in explain([made]):
        for name, port in PORTS.items():
            if port == one.connection.rport or one.connection.lport == port == 7003:
                said.setdefault(name, []).append(one.sentences)
    assert said["keepalive"][0][0].startswith("keepalive ended it: nothing was to be sent, and for")
    assert said["self_connect"] == [said["self_connect"][0][:1]]
    (server,) = (some for some in said["close_wait"] if "CLOSE_WAIT" in some[0])
    assert not any("application had nothing to send" in text for text in server)
    assert not any("the peer is gone" in text for text in said["silence"][0])
    assert "at the other end, in this capture" in " ".join(said["silence"][0])
    assert "outgoing packets dropped by netfilter" in said["netfilter"][0][0]
    assert not any("Nagle" in text or "path" in text for text in said["netfilter"][0][1:])


def test_check_counts_causes(made: Path) -> None:
    texts = [f'cause("{name}") == 0' for name in ("silence", "no_port", "keepalive")]
    assert [one.failed for one in check(Capture(made), texts)] == [1, 10, 1]


@pytest.mark.parametrize(("name", "path"), [
    ("needless", {"reorder_percent": 2.0, "reorder_ms": 15.0}), ("losses", {"loss_percent": 1.0}),
])  # fmt: skip
def test_what_is_sent_again_without_need(tmp_path: Path, name: str, path: dict[str, float]) -> None:
    way = Way(rate_mbit=20, delay_ms=10, queue_bytes=400_000, **path)  # type: ignore[arg-type]
    with (
        Lab(link=Link(way, Way(delay_ms=10), 7)) as lab,
        capturing(tmp_path / "a.pm", *within(lab), "--columns", "full"),
        connected(lab) as pair,
    ):
        reading = drain(pair.server)
        pair.client.sendall(bytes(4_000_000))
        pair.client.shutdown(socket.SHUT_WR)
        reading.join()
        pair.server.close()
        assert pair.client.recv(1) == b""
        told = counters(lab.a)
    assert told["RetransSegs"] > 3
    is_needless = told["TCPDSACKRecvSegs"] >= told["RetransSegs"]
    assert is_needless == (name == "needless")
    assert causes(tmp_path / "a.pm")["cause"].tolist() == ["needless"] * is_needless
    said = " ".join(next(explain([tmp_path / "a.pm"])).sentences)
    assert "policer" not in said.replace("no policer", "")
    assert ("D-SACK" in said) == is_needless


def test_a_full_accept_queue(tmp_path: Path) -> None:
    """One that drops, one that is emptied in time, and a busy server's that never fills."""
    path = tmp_path / "a.pm"
    with Lab() as lab, capturing(path, *within(lab), "--columns", "full"), ExitStack() as stack:
        for port, backlog, rounds, count in ((7031, 1, 3, 2), (7032, 64, 5, 8), (7030, 1, 1, 5)):
            with make_socket(lab.b) as listener:
                listener.bind((lab.b.address4, port))
                listener.listen(backlog)
                for _ in range(rounds):
                    assert counters(lab.b)["ListenDrops"] == 0
                    ends = [stack.enter_context(make_socket(lab.a)) for _ in range(count)]
                    for end in ends:
                        end.setblocking(False)
                        end.connect_ex((lab.b.address4, port))
                    for _ in ends if port != 7030 else ():
                        stack.enter_context(listener.accept()[0])
                if port == 7030:
                    wait_until(lambda: counters(lab.b)["ListenDrops"] >= 5)
        dropped = counters(lab.b)["ListenDrops"]
    found = causes(path)
    mine = found["cause"] == "accept_queue"
    of_listener = mine & np.isnan(found["conn_id"])
    assert found["lport"][of_listener].tolist() == [7030]
    assert found["records"][of_listener].tolist() == [dropped]
    (one,) = check(Capture(path), ['cause("accept_queue") == 0'])
    assert one.failed == mine.sum() - 1 == 3
    said = [one.sentences for one in explain([path]) if one.causes]
    said = [texts for texts in said if "port 7030 was full (2 of 1)" in texts[0]]
    assert len(said) == 3 and not any("firewall" in text for texts in said for text in texts)


def test_a_listener_that_closes_and_cookies(tmp_path: Path) -> None:
    """With connections that nobody accepted, or none; cookies without options, and with them."""
    path = tmp_path / "a.pm"
    with Lab() as lab, capturing(path, *within(lab), "--columns", "full"), ExitStack() as stack:
        for port, accepted in ((7033, 1), (7034, 3)):
            with listening(lab.b, lab.b.address4, port) as listener:
                for _ in range(3):
                    stack.enter_context(make_socket(lab.a)).connect((lab.b.address4, port))
                for _ in range(accepted):
                    stack.enter_context(listener.accept()[0])
        for port, timestamps in ((7035, "0"), (7036, "1")):
            lab.b.set_sysctls({"net.ipv4.tcp_syncookies": "2",
                               "net.ipv4.tcp_timestamps": timestamps})  # fmt: skip
            with listening(lab.b, lab.b.address4, port) as listener:
                join(lab.a, listener, lab.b.address4).close()
        assert counters(lab.b)["SyncookiesRecv"] == 2
    found = causes(path)
    rows = [*zip(found["cause"].tolist(), found["lport"].tolist(), found["records"].tolist(),
                 np.isnan(found["conn_id"]).tolist(), strict=True)]  # fmt: skip
    assert ("listener_closed", 7033, 2, True) in rows
    assert [one[:2] for one in rows].count(("listener_closed", 7033)) == 3  # and its two ends
    assert len([one for one in rows if one[0] == "listener_closed"]) == 5  # and two of clients
    assert [one[1] for one in rows if one[0] == "syn_cookies"] == [7035]


@pytest.mark.parametrize("has_data", [True, False])
def test_a_lost_syn_with_data(tmp_path: Path, has_data: bool) -> None:
    """TCP Fast Open, and a SYN without data that is lost."""
    with (
        Lab() as lab, capturing(tmp_path / "a.pm", *within(lab), "--columns", "full"),
        listening(lab.b, lab.b.address4, 7037), make_socket(lab.a) as end,
        losing(lab.b, "tcp dport 7037 tcp flags syn limit rate 1/minute burst 1 packets"),
    ):  # fmt: skip
        lab.a.set_sysctls({"net.ipv4.tcp_fastopen": "5"})  # client, without a cookie
        if has_data:
            end.sendto(bytes(100), socket.MSG_FASTOPEN, (lab.b.address4, 7037))
        else:
            end.connect((lab.b.address4, 7037))
        assert counters(lab.a)["TCPFastOpenActiveFail"] == has_data
    assert (causes(tmp_path / "a.pm")["cause"] == "fast_open").sum() == has_data
