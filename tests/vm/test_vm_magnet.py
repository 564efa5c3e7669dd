# SPDX-License-Identifier: Apache-2.0
"""The schema magnet where functions can be probed, by each way: all layers, and where time goes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.plan.columns import SCHEMATA
from tcpkmon.collector.plan.probes import counts_skipped
from tcpkmon.formats.schema import enabled_events, load
from tcpkmon.formats.verify import verify_folder
from tests.live import test_latency_live as latency
from tests.live import test_schema_magnet as magnet
from tests.live.capturing import join, listening, receive, within
from tests.live.schema_logs import Log, logging

# What a user gets, and what is left where fentry and BTF tracepoints are missing.
WAYS = {"best": "", "untyped": "raw,kprobe"}
CALLS = ("sock_send_length", "sock_recv_length", "sk_data_ready")
"""Tracepoints that 6.1 lacks."""
SIZE, NAP_S = 60_000, 0.3
LAYERS = [*magnet.SENDER, *magnet.RECEIVER]


@pytest.fixture(autouse=True)
def functions_can_be_probed(probing: Probing) -> None:
    for kind in ("fentry", "kprobe"):
        if why := probing.why_not(kind, "ip_output"):
            pytest.skip(why)


def expect_ways(probing: Probing, kinds: str) -> dict[str, str]:
    """By event the way that it must have on this kernel; no entry: none."""
    function, tracepoint = ("kprobe", "raw") if kinds else ("fentry", "btf")
    has = {name: probing.can("btf", name) for name in CALLS}
    ways = {
        "TCP_SEND": f"{function}:tcp_sendmsg_locked",
        "IP_SEND": f"{function}:ip_output {function}:ip6_output",
        "IP_RECV": f"{function}:ip_protocol_deliver_rcu {function}:ip6_protocol_deliver_rcu",
        "TCP_RECV": f"{function}:sock_def_readable",
        "SOCK_SEND": "fexit:inet_sendmsg fexit:inet6_sendmsg",
        "SOCK_RECV": "fexit:inet_recvmsg fexit:inet6_recvmsg",
    }
    for event, name in zip(("SOCK_SEND", "SOCK_RECV", "TCP_RECV"), CALLS, strict=True):
        if has[name]:
            ways[event] = f"{tracepoint}:{name}"
        elif kinds and event != "TCP_RECV":
            del ways[event]  # fexit is none of these kinds
    return ways


def check_ways(log: Log, wanted: dict[str, str]) -> None:
    """What this kernel has is used, and what it lacks is named."""
    found = {event: set(way.split()) for event, way in log.ways.items()}
    for event, way in wanted.items():
        assert set(way.split()) <= found[event], (event, log.ways)
    events = [event.name for event in enabled_events(load([SCHEMATA / "magnet.conf"]))]
    for event in {*events} & {"SOCK_SEND", "SOCK_RECV"} - {*wanted}:
        assert log.missing[event]
    assert {*log.missing} == {"SOCK_SEND", "SOCK_RECV"} - {*wanted}


@pytest.mark.parametrize(
    ("address", "way"), [("10.77.0.2", "best"), ("fd77::2", "untyped")], ids=WAYS
)
def test_a_counted_transfer(
    tmp_path: Path, lab: Lab, probing: Probing, address: str, way: str
) -> None:
    folder, kinds = tmp_path / "log", WAYS[way]
    more = ["--using", "driver", *within(lab), *(["--data"] if way == "best" else [])]
    with (
        logging(folder, "magnet", kinds=kinds, more=more) as running,
        listening(lab.b, address) as listener,
    ):
        pair = join(lab.a, listener, address)
        magnet.transfer(pair, SIZE)
        pair.client.sendall(b"late")
        time.sleep(NAP_S)
        receive(pair.server, 4)
        ports = pair.client_port, pair.server_port
        pair.close()
        datagrams = magnet.datagrams(lab, address)
        next(datagrams)
        log = running.finish()
    with suppress(StopIteration):
        datagrams.send(log)
    check_ways(log, expect_ways(probing, kinds))
    client = magnet.connection_of(log, *ports)
    server = magnet.connection_of(log, *reversed(ports))
    magnet.check_layers(log, client, server, SIZE + 4)
    assert not [name for name in LAYERS if name in log.ways and not log.of(name)]
    *_, report = verify_folder(folder)
    kprobes = {name for name, its in log.ways.items() if "kprobe:" in its}
    counted = counts_skipped(Btf.from_kernel(), "kprobe")
    assert {*report.unproven} == (set() if counted else kprobes), report
    assert report.exit_code == (3 if report.unproven else 0) and not report.lost_total, report
    if not log.missing:
        check_latency(folder, ports)


def check_latency(folder: Path, ports: tuple[int, int]) -> None:
    """Times of all bytes rise through all layers, parts sum up, and the reader's wait is there."""
    found = latency.look(folder)
    latency.check(found, ports, SIZE + 4)
    flow = found.of(ports)
    assert flow.unknown == 0
    waited = found.column(ports, "reader")[-1]
    assert waited == pytest.approx(NAP_S * 1e9, rel=0.5) and waited > NAP_S * 0.95e9
