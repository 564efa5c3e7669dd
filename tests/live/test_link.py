# SPDX-License-Identifier: Apache-2.0
"""The test link does what it says: seen by UDP probes, TCP_INFO and the kernel's counters."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from tcpkmon.collector.lab.counters import counters
from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.lab.link import FATES, Link, Way, Wire
from tcpkmon.collector.lab.pair import connected
from tcpkmon.formats.base.errors import KernelError
from tests.live.capturing import tcp_info

_RCVBUFFORCE = 33
Times = list[tuple[int, float, float]]
"""Number, when it was sent, when it came (CLOCK_MONOTONIC, s)."""


def probe(lab: Lab, count: int, size: int = 1000, every_s: float = 0.0) -> Times:
    """UDP packets of so many bytes (IP) from a to b; those that came, in the order they came."""
    receiver = lab.b.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender = lab.a.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 24)
        receiver.bind((lab.b.address4, 9))
        receiver.settimeout(1.0)
        came: Times = []

        def receive() -> None:
            with suppress(TimeoutError):
                while True:
                    data, _, _, _ = receiver.recvmsg(2048)
                    came.append((*struct.unpack("=Id", data[:12]), time.monotonic()))

        thread = threading.Thread(target=receive)
        thread.start()
        begin = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begin + number * every_s - time.monotonic()))
            head = struct.pack("=Id", number, time.monotonic())
            sender.sendto(head + bytes(size - 28 - len(head)), (lab.b.address4, 9))
        thread.join()
    return came


@contextmanager
def linked(there: Way, back: Way | None = None) -> Iterator[Lab]:
    with Lab(link=Link(there, back or Way())) as lab:
        yield lab


def delays(came: Times) -> np.ndarray:
    """[ms]"""
    return np.array([1000 * (arrival - sent) for _, sent, arrival in came])


def test_a_delay_is_exact() -> None:
    with linked(Way(delay_ms=10), Way(delay_ms=5)) as lab:
        found = delays(probe(lab, 100, every_s=0.004))
        assert len(found) == 100
        assert found.min() >= 10
        # Two wake-ups come to it: 0.38 ms on the slowest machine that was seen.
        assert np.median(found) < 10.5
        with connected(lab) as pair:
            pair.exchange()
            min_rtt_ms = tcp_info(pair.client)["min_rtt"] / 1000
        assert 15 <= min_rtt_ms < 15.9


def test_a_rate_and_its_queue() -> None:
    """200 packets of 1000 bytes at once: 1 ms each at 8 Mbit/s, 50 of them fit."""
    with linked(Way(rate_mbit=8, queue_bytes=50_000)) as lab:
        came = probe(lab, 200)
        told, _ = lab.wire.counters() if lab.wire else ({}, {})
    assert 50 <= len(came) < 80
    assert told["full"] == 200 - len(came)
    assert told["queue_most"] == 50_000
    times = np.array([arrival for _, _, arrival in came])
    assert np.median(np.diff(times)) == pytest.approx(0.001, abs=0.0003)
    assert times[-1] - times[0] == pytest.approx(0.001 * (len(came) - 1), abs=0.002)


@pytest.mark.full
def test_losses_at_random_and_in_bursts() -> None:
    with linked(Way(loss_percent=10)) as lab:
        came = probe(lab, 3000, size=100)
        assert 0.87 < len(came) / 3000 < 0.93
    with linked(Way(burst_percent=1, burst_packets=10)) as lab:
        numbers = [number for number, _, _ in probe(lab, 5000, size=100)]
        gaps = np.diff(numbers) - 1
        assert 6 < gaps[gaps > 0].mean() < 14
        assert 0.05 < 1 - len(numbers) / 5000 < 0.15


@pytest.mark.full
def test_a_policer_lets_a_burst_and_a_rate_through() -> None:
    """800 kB in 0.8 s: of them 0.8 s at 2 Mbit/s, and the bucket."""
    with linked(Way(police_mbit=2, police_bytes=20_000)) as lab:
        came = probe(lab, 800, every_s=0.001)
    assert 1000 * len(came) == pytest.approx(0.8 * 2e6 / 8 + 20_000, rel=0.05)
    assert [number for number, _, _ in came][:20] == list(range(20))
    assert delays(came).max() < 5


@pytest.mark.full
def test_a_black_hole_and_an_icmp_message() -> None:
    for icmp in (False, True):
        with linked(Way(mtu=1200, icmp=icmp)) as lab, connected(lab) as pair:
            pair.exchange(1000)
            pair.client.sendall(bytes(8_000))
            pair.server.settimeout(0.7)
            got = 0
            with suppress(TimeoutError):
                while got < 8_000:
                    got += len(pair.server.recv(1 << 20))
            assert got == (8_000 if icmp else 0)
            mtu = struct.unpack("I", pair.client.getsockopt(0, 14, 4))[0]  # IP_MTU
            assert mtu == (1200 if icmp else 1500)


def test_chosen_segments_are_lost_so_often() -> None:
    """Of each answer of 10,000 bytes, the last segment, twice: the probe, then a timeout."""
    with linked(Way(delay_ms=5, lose=(9_990, 10_000), lose_every=10_000, lose_times=2)) as lab:
        with connected(lab) as pair:
            for _ in range(2):
                pair.client.sendall(bytes(10_000))
                assert len(pair.server.recv(10_000, socket.MSG_WAITALL)) == 10_000
        assert lab.wire is not None
        assert lab.wire.counters()[0]["chosen"] == 4
        trace = lab.wire.trace()
        found = counters(lab.a)
    lost = trace[trace["fate"] == FATES.index("chosen")]
    assert set(lost["seq"] // 10_000) == {0, 1}
    assert (found["TCPLossProbes"], found["RetransSegs"], found["TCPTimeouts"]) == (2, 4, 2)


@pytest.mark.full
def test_lost_handshakes() -> None:
    for there, back in ((Way(syn_loss=1), Way()), (Way(), Way(synack_loss=1))):
        with linked(there, back) as lab:
            begin = time.monotonic()
            with connected(lab):
                assert 1.0 <= time.monotonic() - begin < 1.3


@pytest.mark.full
def test_what_changes_at_a_time() -> None:
    """Nothing gets through from 0.2 s to 0.5 s; then held packets come together."""
    with linked(Way(delay_ms=1)) as lab:
        assert lab.wire is not None
        begin = time.monotonic()
        lab.wire.change(0, Way(delay_ms=1, down=True), after_s=0.2)
        lab.wire.change(0, Way(delay_ms=1, held=True), after_s=0.5)
        lab.wire.change(0, Way(delay_ms=1), after_s=0.7)
        begun = time.monotonic() - begin  # each order is from its own now
        came = probe(lab, 90, every_s=0.01)
    sent = np.array([one for _, one, _ in came]) - begin
    assert not np.any((sent > 0.201 + begun) & (sent < 0.499))
    assert np.median(delays(came)[sent < 0.199]) < 1.5
    held = (sent > 0.501 + begun) & (sent < 0.699)
    arrivals = np.array([one for _, _, one in came])[held] - begin
    assert len(arrivals) > 10
    assert arrivals.min() >= 0.7
    assert arrivals.max() < 0.71 + begun


def test_it_tells_when_it_cannot() -> None:
    with Lab(link=Link()) as lab, pytest.raises(KernelError, match="busy"):
        Wire(Link(), (lab.a.name, lab.b.name), DEVICE)
