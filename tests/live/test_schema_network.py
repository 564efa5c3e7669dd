# SPDX-License-Identifier: Apache-2.0
"""The schema network on this kernel: each event is caused, and found as often as it was caused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tcpkmon.collector.plan.columns import SCHEMATA
from tcpkmon.formats.schema import Schema, enabled_events, load
from tests.live import network_checks as checks
from tests.live import network_workload as workload
from tests.live.network_checks import LEFT_OPEN, VERSIONS, Everything
from tests.live.schema_logs import logging, make_schema

DOCS = Path(__file__).resolve().parents[2] / "docs/schemas.md"
# The HOWTO's list, section 7.4.
EVENTS = {
    "socket": "CREATE CLOSE ASSIGNADDR LISTEN ACCEPT WRITE RECEIVE",
    "connection": "SOCKET_BIND SOCKET_CONNECT CONNECTION_HANDSHAKE CONNECTION_CLOSE",
    "protocol": """TCP_SENDSYN TCP_RECVSYN TCP_SENDSYNACK TCP_RECVSYNACK TCP_SENDACK TCP_RECVACK
        TCP_SEND TCP_SENDPACKET TCP_RECEIVE TCP_RECEIVEPACKET TCP_RECV_URGENTDATA TCP_DISCONNECT
        UDP_PUSHPENDINGFRAMES UDP_FLUSHPENDINGFRAMES UDP_QUEUESOCKETBUFFER UDP_RECEIVE UDP_SEND
        UDP_CONNECT UDP_DISCONNECT ICMP_SEND ICMP_REPLY ICMP_RECEIVE ICMP_PUSHPENDINGFRAMES""",
    "ip": "IP_PUSHPENDINGFRAMES IP_FLUSHPENDINGFRAMES IP_SENDPACKET IP_RECEIVEPACKET",
}
ONLY_BY_FUNCTION = {
    "UDP_PUSHPENDINGFRAMES",
    "UDP_FLUSHPENDINGFRAMES",
    "ICMP_PUSHPENDINGFRAMES",
    "IP_PUSHPENDINGFRAMES",
    "IP_FLUSHPENDINGFRAMES",
}


def _names() -> dict[str, list[str]]:
    names = {level: text.split() for level, text in EVENTS.items()}
    names["socket"] = [f"SOCKET_{name}" for name in names["socket"]]
    return names


@pytest.fixture(scope="module")
def schema() -> Schema:
    return load([SCHEMATA / "network.conf"])


def test_the_events_are_those_of_the_howto(schema: Schema) -> None:
    assert {level.name: [e.name for e in level.events()] for level in schema.loglevels} == _names()
    assert (len(schema.events), len(schema.enums)) == (38, 6)


def test_each_level_holds_those_above_it(schema: Schema) -> None:
    recorded: list[str] = []
    for level, own in _names().items():
        recorded += own
        if level == "connection":
            recorded.remove("SOCKET_ASSIGNADDR")
        using = replace(schema, using=(level,))
        assert [event.name for event in enabled_events(using)] == recorded
    assert [event.name for event in enabled_events(schema)] == recorded


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    with checks.play_everything(tmp_path_factory.mktemp("network") / "log") as played:
        yield played


@pytest.mark.parametrize("version", VERSIONS)
def test_tcp(everything: Everything, version: int) -> None:
    checks.check_tcp(everything.log, everything.net, version, everything.tcp[version])


def test_as_many_segments_as_the_kernel_counts(everything: Everything) -> None:
    checks.check_all_segments(everything.log, everything.net)


def test_packets(everything: Everything) -> None:
    checks.check_packets(everything.log, everything.net)


def test_a_connection_broken_off(everything: Everything) -> None:
    checks.check_reset(everything.log, everything.reset)


def test_ports_that_are_used_again(everything: Everything) -> None:
    checks.check_again(everything.log, everything.again)


def test_ipv4_on_a_socket_of_ipv6(everything: Everything) -> None:
    checks.check_mapped(everything.log, everything.net, everything.mapped)


def test_urgent_data(everything: Everything) -> None:
    checks.check_urgent(everything.log, everything.urgent)


@pytest.mark.parametrize("version", VERSIONS)
def test_udp(everything: Everything, version: int) -> None:
    checks.check_udp(everything.log, everything.net, version, everything.udp[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_fragments(everything: Everything, version: int) -> None:
    checks.check_fragments(everything.log, everything.net, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_icmp(everything: Everything, version: int) -> None:
    checks.check_echoes(everything.log, everything.net, version)
    checks.check_refused(everything.log, everything.net, version)


def test_each_socket_is_created_and_closed_once(everything: Everything) -> None:
    created = checks.mine(everything.log, "SOCKET_CREATE")
    closed = checks.mine(everything.log, "SOCKET_CLOSE")
    streams = 2 * (1 + workload.CONNECTIONS) + 2 * 2 + 3 + 2
    datagrams, raw = 2 * 2 + 2, 2
    kinds = [record["type"] for record in created]
    assert [kinds.count(kind) for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW")] == [
        streams,
        datagrams,
        raw,
    ]
    # An accepted socket is not created on request, but it is closed.
    accepted = len(checks.mine(everything.log, "SOCKET_ACCEPT"))
    assert accepted == 2 * workload.CONNECTIONS + 2 + 2 + 1
    assert len(closed) == len(created) + accepted
    for version, domain in ((4, "AF_INET"), (6, "AF_INET6")):
        assert {r["domain"] for r in created if r["protocol"] == _icmp(version)} == {domain}


def test_the_docs_list_each_event() -> None:
    page = DOCS.read_text().partition("\n## network\n")[2].partition("\n## ")[0]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([A-Z][A-Z_]+)`", row.split("|")[1])}
    assert listed == {name for names in _names().values() for name in names}


def _icmp(version: int) -> str:
    return "IPPROTO_ICMP" if version == 4 else "IPPROTO_ICMPV6"


def test_sockets_of_a_process_that_ends_are_closed(everything: Everything) -> None:
    created = everything.log.of("SOCKET_CREATE", pid=everything.left_by)
    closed = everything.log.of("SOCKET_CLOSE", pid=everything.left_by)
    assert len(created) == LEFT_OPEN
    assert {r["socket"] for r in closed} == {r["socket"] for r in created}
    assert len(closed) == LEFT_OPEN


def test_each_event_has_a_place_or_is_told_to_have_none(everything: Everything) -> None:
    """This kernel's list, and no event without one but those that no tracepoint tells."""
    told = {r["name"]: r["enabled"] for r in everything.log.of("LOGGING_EVENT")}
    ours = {name for names in _names().values() for name in names} - {"SOCKET_ASSIGNADDR"}
    assert ours <= told.keys()
    missing = {name for name in ours if told[name] == -1}
    assert missing in (set(), ONLY_BY_FUNCTION)
    assert {name for name in ours if name in everything.log.ways} == ours - missing
    assert checks.count_lost(everything.log, ours) == 0


def test_at_the_top_level_an_address_is_one_event(tmp_path: Path) -> None:
    """The HOWTO: SOCKET_BIND and SOCKET_CONNECT replace SOCKET_ASSIGNADDR below it."""
    conf = (SCHEMATA / "network.conf").read_text()
    assert conf.count("using ip\n") == 1
    conf = conf.replace("using ip\n", "using socket\n")
    folder = make_schema(tmp_path / "top", conf, (SCHEMATA / "network.bpf.c").read_text())
    with workload.open_net() as net, logging(tmp_path / "log", str(folder)) as running:
        tcp, udp = workload.run_tcp(net, 4), workload.run_udp(net, 6)
        log = running.finish()
    given = checks.mine(log, "SOCKET_ASSIGNADDR")
    ports = sorted((r["lport"], r["rport"]) for r in given if r["protocol"] == "IPPROTO_TCP")
    assert ports == sorted([(tcp.listener, 0), *tcp.flows])
    assert {r["laddr"] for r in given if r["lport"] == tcp.listener} == {net.b[4]}
    ports = sorted((r["lport"], r["rport"]) for r in given if r["protocol"] == "IPPROTO_UDP")
    expected = [(udp.sender, 0), (udp.receiver, 0), (udp.sender, udp.receiver)]
    assert ports == sorted(expected)
    assert {r["raddr"] for r in given if r["rport"] == udp.receiver} == {net.b[6]}
    assert len(checks.mine(log, "SOCKET_LISTEN")) == 1
    names = {r["name"] for r in log.of("LOGGING_EVENT") if r["enabled"]}
    assert {name for name in names if name.startswith("SOCKET_")} - {"SOCKET_EXISTS"} == set(
        _names()["socket"]
    )
    assert os.getpid() in {r["pid"] for r in log.of("SOCKET_CREATE")}
    assert not log.of("SOCKET_BIND") and not log.of("TCP_SEND") and not log.of("IP_SENDPACKET")
