# SPDX-License-Identifier: Apache-2.0
"""The schema network where kernels have functions to hang on: all its events, by both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.plan.columns import SCHEMATA
from tcpkmon.formats.schema import enabled_events, load
from tests.live import network_checks as checks
from tests.live import network_workload as workload
from tests.live.network_checks import LEFT_OPEN, VERSIONS, Everything

# What a user gets; and what is left where BTF tracepoints and trampolines are missing.
WAYS = {"best": "", "untyped": "raw,kprobe"}
CORKED = "UDP_PUSHPENDINGFRAMES UDP_FLUSHPENDINGFRAMES IP_PUSHPENDINGFRAMES IP_FLUSHPENDINGFRAMES"


@pytest.fixture(scope="module", params=WAYS)
def everything(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Everything]:
    folder = tmp_path_factory.mktemp("network") / "log"
    with checks.play_everything(folder, WAYS[request.param], corked=True) as played:
        yield played


def needs(everything: Everything, *events: str) -> None:
    """Skips the test where the kernel has no place for one of these."""
    for event in events:
        if event not in everything.log.ways:
            pytest.skip(f"{event} has no place on this kernel")


@pytest.mark.parametrize("version", VERSIONS)
def test_tcp(everything: Everything, version: int) -> None:
    needs(everything, "TCP_SEND", "TCP_RECEIVE")
    checks.check_tcp(everything.log, everything.net, version, everything.tcp[version])


def test_segments_and_packets(everything: Everything) -> None:
    checks.check_all_segments(everything.log, everything.net)
    checks.check_packets(everything.log, everything.net)
    for version in VERSIONS:
        checks.check_fragments(everything.log, everything.net, version)


def test_resets_and_urgent_data(everything: Everything) -> None:
    checks.check_reset(everything.log, everything.reset)
    checks.check_again(everything.log, everything.again)
    checks.check_mapped(everything.log, everything.net, everything.mapped)
    needs(everything, "TCP_RECV_URGENTDATA")
    checks.check_urgent(everything.log, everything.urgent)


@pytest.mark.parametrize("version", VERSIONS)
def test_udp(everything: Everything, version: int) -> None:
    needs(everything, "UDP_SEND", "UDP_RECEIVE", "UDP_QUEUESOCKETBUFFER")
    checks.check_udp(everything.log, everything.net, version, everything.udp[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_that_wait_are_pushed_or_flushed(everything: Everything, version: int) -> None:
    needs(everything, *CORKED.split())
    checks.check_corked(everything.log, version, everything.corked[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_icmp(everything: Everything, version: int) -> None:
    checks.check_echoes(everything.log, everything.net, version)
    checks.check_refused(everything.log, everything.net, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_icmp_that_is_pushed(everything: Everything, version: int) -> None:
    needs(everything, "ICMP_PUSHPENDINGFRAMES", "IP_PUSHPENDINGFRAMES")
    checks.check_icmp_pushes(everything.log, version)


def test_sockets(everything: Everything) -> None:
    log = everything.log
    created, closed = (checks.mine(log, f"SOCKET_{name}") for name in ("CREATE", "CLOSE"))
    accepted = checks.mine(log, "SOCKET_ACCEPT")
    assert len(created) == 2 * (1 + workload.CONNECTIONS) + 2 * 2 + 3 + 2 + 2 * 2 + 2 * 2 + 2 * 2
    assert len(closed) == len(created) + len(accepted)
    left = log.of("SOCKET_CLOSE", pid=everything.left_by)
    assert len(left) == len(log.of("SOCKET_CREATE", pid=everything.left_by)) == LEFT_OPEN


def test_all_events_have_a_place(everything: Everything, probing: Probing) -> None:
    """With functions to hang on no event is missing."""
    if all(probing.why_not(kind, "__ip_make_skb") for kind in ("fentry", "kprobe")):
        pytest.skip("this kernel has no functions to hang on")
    events = [event.name for event in enabled_events(load([SCHEMATA / "network.conf"]))]
    assert len(events) == 37
    assert [name for name in events if name not in everything.log.ways] == []
    assert checks.count_lost(everything.log, events) == 0
