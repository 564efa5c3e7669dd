# SPDX-License-Identifier: Apache-2.0
"""The locations that hang on functions tell what independent counts tell."""

from __future__ import annotations

import array
import fcntl
import re
import subprocess
import termios
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.traffic import Workload
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.plan.probes import counts_skipped
from tcpkmon.formats.verify import verify_file
from tests.live.capturing import (
    Outcome,
    Records,
    capturing,
    connected,
    receive,
    wait_until,
    within,
)

EVERYTHING = ("--columns", "all", "--locations", "all")
WAYS = {"typed": "btf,fentry,fexit,iter", "untyped": "raw,kprobe,iter"}
UNDO_COUNTERS = ("TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo")
LARGEST = 1 << 16
"""Bytes that go out at once."""
FUNCTION_KINDS = {"fentry", "fexit", "kprobe"}


def _lacking(probing: Probing, kinds: str, function: str) -> str:
    """Why no program can hang on it; empty where one can."""
    reasons = [probing.why_not(k, function) for k in kinds.split(",") if k in FUNCTION_KINDS]
    return str(reasons[0]) if all(reasons) else ""


def _records_of(outcome: Outcome, lab: Lab) -> Records:
    spaces = [lab.a.namespace.cookie, lab.b.namespace.cookie]
    return outcome.records.pick(np.isin(outcome.records["netns"], spaces))


@pytest.mark.parametrize("way", WAYS)
def test_functions(tmp_path: Path, probing: Probing, way: str) -> None:
    """In one capture, since an emulated CPU takes long to start each; each has its own lab."""
    kinds = WAYS[way]
    path = tmp_path / "a.pm"
    with Lab() as lossy, Lab() as plain, Lab() as late:
        lossy.drop(3.0)
        has_netem = _delay(late, "1ms")
        labs = [*within(lossy), *within(plain), *within(late)]
        # Programs by kprobe may miss events; the others have second copies from the start.
        strict = () if way == "untyped" else ("--fail-on-loss",)
        with capturing(path, *EVERYTHING, *labs, *strict, kinds=kinds) as running:
            work = Workload(server=lossy.b.address4, count=100, size=4_000, reply=10)
            transmitted = _run(lossy, work)
            work = Workload(
                server=plain.b.address4, connections=2, count=30, size=700, reply=10
            )  # fmt: skip
            called = _run(plain, work)
            if has_netem:
                port = _be_late(late)
        outcome = running.stop()
        undone = _count_undone(late.a.command(["cat", "/proc/net/netstat"]))
        outcome.check_complete()
        _check_calls(outcome, _records_of(outcome, plain), called)
        report = verify_file(path)
        by_kprobe = [
            name
            for name, place in outcome.capture.settings["locations"].items()
            if place.startswith("kprobe:")
        ]
        counted = counts_skipped(Btf.from_kernel(), "kprobe")
        assert sorted(report.unproven) == ([] if counted else sorted(by_kprobe))
        # Events that a kprobe in an interrupt of another's handler did not see.
        missed = Counter({one.name: one.recursion + one.kprobe for one in report.missed})
        lacking = _lacking(probing, kinds, "__tcp_transmit_skb")
        place = "kprobe:tcp_check_space" if way == "untyped" else "fexit:tcp_ack"
        no_acks = _lacking(probing, *place.split(":"))
        assert ("ACK_PROCESSED" in outcome.capture.settings["missing_locations"]) == bool(no_acks)
        if not lacking:
            client = _records_of(outcome, lossy).where(rport=transmitted.port)
            _check_transmits(outcome, client, missed["TRANSMIT"])
        lacking = lacking or _lacking(probing, kinds, "tcp_undo_cwnd_reduction")
        if has_netem and not lacking:
            client = _records_of(outcome, late).where(lport=port)
            assert undone
            assert len(client.at("RTO"))
            assert undone - missed["CWND_UNDO"] <= len(client.at("CWND_UNDO")) <= undone
    if lacking or not has_netem:
        pytest.skip(f"the rest was tested; {lacking or 'no netem here'}")


def _run(lab: Lab, work: Workload) -> traffic.Result:
    return traffic.run(work, lab.a.namespace.fd, lab.b.namespace.fd, timeout_s=300)


def _check_transmits(outcome: Outcome, client: Records, missed: int) -> None:
    sent = client.at("TRANSMIT")
    final = client.at("DESTROY")
    # The kernel's own count of what went out, and ours, segment by segment.
    told = int(sent["callvalue"].sum())
    assert 0 <= final.last("bytes_sent") - told <= missed * LARGEST
    assert final.last("bytes_sent") == final.last("bytes_retrans") + 100 * 4_000
    if "ACK_PROCESSED" not in outcome.capture.settings["missing_locations"]:
        _check_acks(outcome, client)


def _check_acks(outcome: Outcome, client: Records) -> None:
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


def _check_calls(outcome: Outcome, records: Records, done: traffic.Result) -> None:
    ways = outcome.capture.settings["locations"]
    if "SEND_CALL" in outcome.capture.settings["missing_locations"]:
        return
    sends = records.at("SEND_CALL")
    assert len(sends) == done.client.sends + done.server.sends
    # A kprobe runs before the call and tells what was asked; all else tells what was done.
    assert int(sends["callvalue"].sum()) == done.client.bytes_sent + done.server.bytes_sent
    if not ways["RECEIVE_CALL"].startswith("kprobe"):
        receives = records.at("RECEIVE_CALL")
        total = done.client.bytes_received + done.server.bytes_received
        assert int(receives["callvalue"].sum()) == total
        assert len(receives) == done.client.receives + done.server.receives


def _delay(lab: Lab, delay: str) -> bool:
    """What b sends takes so long; whether the kernel has netem."""
    try:
        lab.b.command(["tc", "qdisc", "replace", "dev", "veth0", "root", "netem", "delay", delay])
    except subprocess.CalledProcessError:
        return False
    return True


def _be_late(lab: Lab) -> int:
    """The delay leaps: the timer fires, then the ACKs of the originals tell that it was wrong.

    Returns the client's port.
    """
    with connected(lab) as pair:
        for _ in range(20):
            pair.exchange()
        _delay(lab, "3000ms")
        for _ in range(5):
            pair.client.sendall(bytes(1000))
        receive(pair.server, 5000)
        pending = array.array("i", [1])

        def all_acknowledged() -> bool:
            fcntl.ioctl(pair.client, termios.TIOCOUTQ, pending)
            return pending[0] == 0

        wait_until(all_acknowledged, timeout_s=300)
        _delay(lab, "1ms")
        return pair.client_port


def _count_undone(netstat: str) -> int:
    lines = [line.split() for line in netstat.splitlines() if line.startswith("TcpExt:")]
    counts = dict(zip(lines[0], lines[1], strict=True))
    assert re.fullmatch(r"\d+", counts[UNDO_COUNTERS[0]])
    return sum(int(counts[name]) for name in UNDO_COUNTERS)
