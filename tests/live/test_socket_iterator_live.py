# SPDX-License-Identifier: Apache-2.0
"""Connections that are open before the capture begins: recorded once each, as EXISTING."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tests.live.capturing import Outcome, Pair, capturing, capturing_each, join, listening, within

CONNECTIONS = 10
LISTEN = 10
CALLS = ("--locations", "default,SEND_CALL", "--columns", "full")


@contextmanager
def open_connections(lab: Lab) -> Iterator[list[Pair]]:
    """Ten connections from a to b, by turns of IPv4 and IPv6, each used a little."""
    with ExitStack() as stack:
        pairs = []
        for number in range(CONNECTIONS):
            address = ("10.77.0.2", "fd77::2")[number % 2]
            with listening(lab.b, address) as listener:
                pair = join(lab.a, listener, address)
            stack.callback(pair.close)
            pair.exchange(1000 + number)
            pairs.append(pair)
        yield pairs


def ends_of(pairs: list[Pair]) -> Counter[tuple[int, int]]:
    ports = [(pair.client_port, pair.server_port) for pair in pairs]
    return Counter(ports + [(there, here) for here, there in ports])


def check_existing(outcome: Outcome, ends: Counter[tuple[int, int]]) -> None:
    """All ends were recorded at the start, and what they do later has the same identity."""
    outcome.check_complete()
    found = outcome.records.at("EXISTING")
    assert Counter(zip(found["lport"].tolist(), found["rport"].tolist(), strict=True)) == ends
    assert len(set(found["conn_id"].tolist())) == 2 * CONNECTIONS
    assert set(found["state"].tolist()) == {1}
    for number, (lport, rport) in enumerate(sorted(ends)):
        one = outcome.records.where(lport=lport, rport=rport)
        assert len(set(one["conn_id"].tolist())) == 1, number
        assert len(one.at("EXISTING")) == len(one.at("SEND_CALL")) == 1
        first = one.at("EXISTING")
        assert first["seq"][0] == one["seq"][0]
        assert first.one("bytes_received") >= 1000
        assert first.one("snd_cwnd_segs") >= 10
        assert first.one("srtt_us") > 0


def test_open_connections_of_two_namespaces_are_recorded(tmp_path: Path, lab: Lab) -> None:
    with open_connections(lab) as pairs:
        ends = ends_of(pairs)
        with capturing(tmp_path / "a.pm", *CALLS, *within(lab)) as run:
            for pair in pairs:
                pair.exchange(1)
            outcome = run.stop()
        check_existing(outcome, ends)
        assert set(outcome.records.at("EXISTING")["netns"].tolist()) == {
            lab.a.namespace.cookie,
            lab.b.namespace.cookie,
        }
        assert LISTEN not in outcome.records.at("EXISTING")["state"].tolist()


HOLDER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(listener.getsockname()) as client:
    server, _ = listener.accept()
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding_process(lab: Lab) -> Iterator[int]:
    """Another process that has a connection open in b, and this one's child: its number."""
    held = lab.b.start(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        yield held.pid
    finally:
        held.kill()
        held.communicate()


def test_open_connections_of_one_process_are_recorded(tmp_path: Path, lab: Lab) -> None:
    with holding_process(lab) as held, open_connections(lab) as pairs:
        ends = ends_of(pairs)
        options = {
            "child": (*CALLS, "--pid", str(held), *within(lab)),
            "all": (*CALLS, "--pid", str(os.getpid()), *within(lab)),
        }
        with capturing_each(tmp_path, options) as captures:
            for pair in pairs:
                pair.exchange(1)
            child, both = captures["child"].stop(), captures["all"].stop()
    assert set(child.records["pid"].tolist()) == {held}
    assert child.records.counts() == {"EXISTING": 2}
    # The child's are its parent's too.
    existing = both.records.at("EXISTING")
    found = Counter(zip(existing["lport"].tolist(), existing["rport"].tolist(), strict=True))
    held_ends = set(zip(child.records["lport"], child.records["rport"], strict=True))
    assert found == ends + Counter(held_ends)
    assert set(existing["pid"].tolist()) == {os.getpid(), held}


def test_open_connections_can_be_left_out(tmp_path: Path, lab: Lab) -> None:
    options = ("--no-existing", *within(lab))
    with open_connections(lab) as pairs, capturing(tmp_path / "a.pm", *options) as run:
        pairs[0].exchange(1)
        outcome = run.stop()
    outcome.check_complete()
    assert len(outcome.records.at("EXISTING")) == 0
    # What moves is recorded all the same, under one identity.
    here, there = sorted(set(outcome.records["lport"].tolist()))
    assert len(set(outcome.records.where(lport=here, rport=there)["conn_id"].tolist())) == 1
