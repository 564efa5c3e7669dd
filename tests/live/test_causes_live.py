# SPDX-License-Identifier: Apache-2.0
"""The table causes on real connections that have each cause, and on such as look like it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import Pair, join, listening, make_socket, receive
from tcpkmon.formats.analysis.causes import causes
from tcpkmon.formats.analysis.check import Capture, check
from tcpkmon.formats.analysis.explaining import explain
from tcpkmon.formats.analysis.why import connections
from tests.live.capturing import capturing, within

pytestmark = pytest.mark.live
_SHORT = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
          (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
          (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
          (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)]  # fmt: skip
_USER_TIMEOUT = [(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500)]
PORTS = {
    "keepalive": 7001, "answered keepalive": 7002, "close_wait": 7003, "half closed": 7004,
    "user_timeout": 7005, "data and no answer": 7006, "silence": 7007, "long silence": 7008,
    "refused": 7009, "self_connect": 7010, "loopback": 7011, "no_port": 7012,
}  # fmt: skip
"""By the case, the server's port; those of a name of RULES have this cause."""


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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("causes") / "run.pm"
    with Lab() as lab, capturing(path, *within(lab), "--columns", "full"):
        pairs: dict[str, Pair] = {}
        options = {"keepalive": _SHORT, "answered keepalive": _SHORT,
                   "user_timeout": _USER_TIMEOUT}  # fmt: skip
        for name in list(PORTS)[:8]:
            with listening(lab.b, lab.b.address4, PORTS[name]) as listener:
                pairs[name] = join(lab.a, listener, lab.b.address4, options.get(name, ()))
            pairs[name].exchange()
        assert refused(lab, PORTS["refused"]) == 111
        with listening(lab.a, "127.0.0.1", PORTS["loopback"]) as listener:
            pairs["loopback"] = join(lab.a, listener, "127.0.0.1")
        pairs["loopback"].exchange()
        connect_to_itself(lab)
        find_no_port(lab)
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
    for conn_id, cause in zip(found["conn_id"].tolist(), found["cause"].tolist(), strict=True):
        (name,) = (name for name, port in PORTS.items() if port in ports[conn_id])
        mine[name].add(cause)
    assert mine == {name: {name} if "_" in name or name in ("keepalive", "silence") else set()
                    for name in PORTS}  # fmt: skip
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
    assert not any("the peer is gone, or the path to it is" in text for text in said["silence"][0])


def test_check_counts_causes(made: Path) -> None:
    texts = [f'cause("{name}") == 0' for name in ("silence", "no_port", "keepalive")]
    assert [one.failed for one in check(Capture(made), texts)] == [1, 10, 1]
