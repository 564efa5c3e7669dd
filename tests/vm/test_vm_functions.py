# SPDX-License-Identifier: Apache-2.0
"""The locations that hang on functions tell what independent counts tell."""

from __future__ import annotations

import array
import fcntl
import re
import subprocess
import termios
from pathlib import Path

import pytest

from collector import traffic
from collector.lab import Lab
from collector.probing import Probing
from collector.traffic import Workload
from formats.verify import verify_file
from tests.live.capturing import capturing, connected, receive, wait_until, within

EVERYTHING = ("--columns", "all", "--locations", "all")
WAYS = {"typed": "btf,fentry,fexit,iter", "untyped": "raw,kprobe,iter"}
UNDO_COUNTERS = ("TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo")
FUNCTION_KINDS = {"fentry", "fexit", "kprobe"}


def _needs(probing: Probing, kinds: str, function: str) -> None:
    reasons = [probing.why_not(k, function) for k in kinds.split(",") if k in FUNCTION_KINDS]
    if all(reasons):
        pytest.skip(reasons[0])


@pytest.mark.parametrize("way", WAYS)
def test_transmits_and_acknowledgements(
    lab: Lab, tmp_path: Path, probing: Probing, way: str
) -> None:
    _needs(probing, WAYS[way], "__tcp_transmit_skb")
    lab.drop(3.0)
    path = tmp_path / "a.pm"
    with capturing(path, *EVERYTHING, *within(lab), kinds=WAYS[way]) as running:
        workload = Workload(server=lab.b.address4, count=100, size=4_000, reply=10)
        result = traffic.run(workload, lab.a.namespace.fd, lab.b.namespace.fd, timeout_s=300)
    outcome = running.stop()
    outcome.check_complete()
    client = outcome.records.where(rport=result.port)
    sent = client.at("TRANSMIT")
    final = client.at("DESTROY")
    # The kernel's own count of what went out, and ours, segment by segment.
    told = int(sent["callvalue"].sum())
    assert told == final.last("bytes_sent") >= 100 * 4_000, verify_file(path).missed
    assert final.last("bytes_sent") == final.last("bytes_retrans") + 100 * 4_000
    steps = client.at("SEGMENT_RECEIVED", "ACK_PROCESSED")
    assert outcome.capture.schema is not None
    numbers = {m.name: m.value for m in outcome.capture.schema.enum("location").members}
    before = steps["location"] == numbers["SEGMENT_RECEIVED"]
    moved = 0
    for here in range(len(steps) - 1):
        if not before[here] or before[here + 1]:
            continue
        una, ack = int(steps["snd_una"][here]), int(steps["seg_ack"][here])
        if (ack - una) % (1 << 32) < 1 << 31 and ack != una:
            assert int(steps["snd_una"][here + 1]) == ack, "the state is that after the ACK"
            moved += 1
    assert moved > 20
    last = client.at("ACK_PROCESSED")
    # All that was sent is acknowledged, but for the FIN: that ACK ends the connection.
    assert 0 <= last.last("snd_nxt") - last.last("snd_una") <= 1


@pytest.mark.parametrize("way", WAYS)
def test_calls_of_the_application(lab: Lab, tmp_path: Path, way: str) -> None:
    with capturing(tmp_path / "a.pm", *EVERYTHING, *within(lab), kinds=WAYS[way]) as running:
        workload = Workload(server=lab.b.address4, connections=2, count=30, size=700, reply=10)
        result = traffic.run(workload, lab.a.namespace.fd, lab.b.namespace.fd, timeout_s=300)
    outcome = running.stop()
    outcome.check_complete()
    ways = outcome.capture.settings["locations"]
    missing = outcome.capture.settings["missing_locations"]
    if "SEND_CALL" in missing:
        pytest.skip(missing["SEND_CALL"])
    sends = outcome.records.at("SEND_CALL")
    assert len(sends) == result.client.sends + result.server.sends
    # A kprobe runs before the call and tells what was asked; all else tells what was done.
    assert int(sends["callvalue"].sum()) == result.client.bytes_sent + result.server.bytes_sent
    if not ways["RECEIVE_CALL"].startswith("kprobe"):
        receives = outcome.records.at("RECEIVE_CALL")
        total = result.client.bytes_received + result.server.bytes_received
        assert int(receives["callvalue"].sum()) == total
        assert len(receives) == result.client.receives + result.server.receives


@pytest.mark.parametrize("way", WAYS)
def test_undone_reductions(lab: Lab, tmp_path: Path, probing: Probing, way: str) -> None:
    """The delay leaps: the timer fires, then the ACKs of the originals tell that it was wrong."""
    _needs(probing, WAYS[way], "tcp_undo_cwnd_reduction")
    delay = ["tc", "qdisc", "replace", "dev", "veth0", "root", "netem", "delay"]
    try:
        lab.run("b", [*delay, "1ms"])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"netem: {error.stderr.strip()}")
    with (
        capturing(tmp_path / "a.pm", *EVERYTHING, *within(lab), kinds=WAYS[way]) as running,
        connected(lab) as pair,
    ):
        port = pair.client_port
        for _ in range(20):
            pair.exchange()
        lab.run("b", [*delay, "3000ms"])
        for _ in range(5):
            pair.client.sendall(bytes(1000))
        receive(pair.server, 5000)
        pending = array.array("i", [1])

        def all_acknowledged() -> bool:
            fcntl.ioctl(pair.client, termios.TIOCOUTQ, pending)
            return pending[0] == 0

        wait_until(all_acknowledged, timeout_s=300)
        lab.run("b", [*delay, "1ms"])
    outcome = running.stop()
    outcome.check_complete()
    undone = _count_undone(str(lab.run("a", ["cat", "/proc/net/netstat"])))
    assert undone
    client = outcome.records.where(lport=port)
    assert len(client.at("RTO"))
    assert len(client.at("CWND_UNDO")) == undone


def _count_undone(netstat: str) -> int:
    lines = [line.split() for line in netstat.splitlines() if line.startswith("TcpExt:")]
    counts = dict(zip(lines[0], lines[1], strict=True))
    assert re.fullmatch(r"\d+", counts[UNDO_COUNTERS[0]])
    return sum(int(counts[name]) for name in UNDO_COUNTERS)
