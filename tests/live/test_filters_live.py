# SPDX-License-Identifier: Apache-2.0
"""Each filter lets exactly its own connections pass, and the others are counted as filtered."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.lab.traffic import Workload
from tcpkmon.collector.plan.filters import find_cgroup
from tests.live.capturing import (
    Outcome,
    Pair,
    capturing,
    capturing_each,
    family_of,
    listening,
    make_socket,
    wait_until,
    within,
)

ROUNDS = 3
V4, V6, MAPPED, LOCAL = 5001, 5002, 5003, 5004
OWN = 36_000  # the client's port is the server's plus this
LOCATIONS = ("--locations", "STATE_CHANGE,SEND_CALL,SEGMENT_RECEIVED,DESTROY")
OWNER = ("--columns", "default,pid,comm")

Ends = set[tuple[int, int]]


def client_of(port: int) -> Ends:
    return {(port + OWN, port)}


def server_of(port: int) -> Ends:
    return {(port, port + OWN)}


def both_of(*ports: int) -> Ends:
    return set().union(*(client_of(port) | server_of(port) for port in ports))


EVERYTHING = both_of(V4, V6, MAPPED, LOCAL)


def connect(stack: ExitStack, sides: tuple[Side, Side], address: str, port: int) -> Pair:
    """A connection from the first side to the second, both ports known before."""
    wanted = address.removeprefix("::ffff:")
    listener = stack.enter_context(listening(sides[1], wanted, port))
    client = stack.enter_context(make_socket(sides[0], family_of(address)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("::" if client.family == socket.AF_INET6 else "", port + OWN))
    client.connect((address, port))
    server, _ = listener.accept()
    return Pair(client, stack.enter_context(server))


def talk(lab: Lab) -> None:
    """The same traffic for every filter: four connections, ROUNDS sends of each end."""
    with ExitStack() as stack:
        for sides, address, port in (
            ((lab.a, lab.b), "10.77.0.2", V4),
            ((lab.a, lab.b), "fd77::2", V6),
            ((lab.a, lab.b), "::ffff:10.77.0.2", MAPPED),
            ((lab.b, lab.b), "127.0.0.1", LOCAL),
        ):
            pair = connect(stack, sides, address, port)
            for _ in range(ROUNDS):
                pair.exchange()


def check_passed(outcome: Outcome, expected: Ends) -> None:
    """Every event of the expected ends was recorded, and none of another."""
    outcome.check_complete()
    records = outcome.records.pick(outcome.records["rport"] != 0)
    ports = list(zip(records["lport"].tolist(), records["rport"].tolist(), strict=True))
    assert set(ports) == expected
    sends = records.at("SEND_CALL")
    counted = Counter(zip(sends["lport"].tolist(), sends["rport"].tolist(), strict=True))
    assert counted == dict.fromkeys(expected, ROUNDS)
    destroyed = records.at("DESTROY")
    assert len(destroyed) == len(expected)
    assert len(set(records["conn_id"].tolist())) == len(expected)
    assert outcome.books("SEND_CALL")["written"] == ROUNDS * len(expected)
    # Others' traffic on this machine is filtered as well: at least ours is among it.
    left_out = len(EVERYTHING) - len(expected)
    assert outcome.books("SEND_CALL")["filtered"] >= ROUNDS * left_out
    assert outcome.books("DESTROY")["filtered"] >= left_out
    for name, books in outcome.ledger.items():
        assert books["attempts"] == books["filtered"] + books["written"], name


def test_each_filter_lets_its_own_pass(tmp_path: Path, lab: Lab) -> None:
    here = within(lab)
    filters: dict[str, tuple[tuple[str, ...], Ends]] = {
        "ports": (("--ports", f"{V4},{MAPPED}-{LOCAL}", *here), both_of(V4, MAPPED, LOCAL)),
        "local": (("-L", f"{V6}", *here), server_of(V6)),
        "remote": (("-D", f"{V6}", *here), client_of(V6)),
        "local-or-remote": (
            ("-L", f"{V6}", "-D", f"{V4}", *here),
            server_of(V6) | client_of(V4),
        ),
        "pair": (("--pair", f"{V4 + OWN}.{V4}", *here), client_of(V4)),
        "prefix": (("--addr", "10.77.0.0/24", *here), both_of(V4, MAPPED)),
        "ipv4": (("-4", *here), both_of(V4, MAPPED, LOCAL)),
        "ipv6": (("-6", *here), both_of(V6)),
        "netns": (("--netns", lab.a.name), client_of(V4) | client_of(V6) | client_of(MAPPED)),
        "all-of-them": (
            ("--ports", f"{V4},{V6}", "-6", "--addr", "fd77::/64", "--netns", lab.b.name),
            server_of(V6),
        ),
    }
    options = {name: (*LOCATIONS, *given) for name, (given, _) in filters.items()}
    with capturing_each(tmp_path, options) as captures:
        talk(lab)
    for name, (_, expected) in filters.items():
        try:
            check_passed(captures[name].stop(), expected)
        except AssertionError as error:
            raise AssertionError(f"--{name}: {error}") from error


@contextmanager
def other_process(lab: Lab) -> Iterator[traffic.Exchange]:
    """A connection between two other processes, that waits for go()."""
    work = Workload("10.77.0.2", port=V4, client_port=V4 + OWN, count=ROUNDS, reply=3)
    exchange = traffic.Exchange(work, lab.a.namespace.fd, lab.b.namespace.fd)
    try:
        yield exchange
    finally:
        exchange.stop()


def test_a_process_is_chosen_by_its_number(tmp_path: Path, lab: Lab) -> None:
    with other_process(lab) as exchange:
        pid = str(exchange.client.pid)
        comm = Path(f"/proc/{pid}/comm").read_bytes().strip()
        with capturing(tmp_path / "a.pm", *LOCATIONS, *OWNER, "--pid", pid, *within(lab)) as run:
            exchange.go()
            result = exchange.finish()
            outcome = run.stop()
    outcome.check_complete()
    records = outcome.records
    assert set(records["pid"].tolist()) == {result.client.pid}
    assert set(records["comm"].tolist()) == {comm}
    # Also what softirqs record of the connection: from its first state to its end.
    assert set(records["rport"].tolist()) == {V4}
    assert records.counts()["SEND_CALL"] == result.client.sends == ROUNDS
    assert records.counts()["SEGMENT_RECEIVED"] >= ROUNDS
    assert records.counts()["DESTROY"] == 1
    assert records.counts()["STATE_CHANGE"] == 5
    assert outcome.books("SEND_CALL")["filtered"] >= result.server.sends


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A new cgroup of version 2, two levels below the root."""
    mounts = [
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if " - cgroup2 " in line
    ]
    if not mounts:
        pytest.skip("there is no cgroup2 here")
    outer = Path(mounts[0]) / f"tcpkmon-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        inner.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield inner
    finally:
        for place in (inner, outer):

            def remove(place: Path = place) -> bool:
                with suppress(OSError):
                    place.rmdir()
                return not place.exists()

            wait_until(remove)


def test_a_cgroup_is_chosen_with_all_below(tmp_path: Path, lab: Lab, cgroup: Path) -> None:
    assert find_cgroup(str(cgroup)).id == cgroup.stat().st_ino
    options = {
        "inner": (*LOCATIONS, "--cgroup", str(cgroup), *within(lab)),
        "outer": (*LOCATIONS, "--cgroup", str(cgroup.parent), *within(lab)),
        "column": (*LOCATIONS, "--columns", "default,cgroup", *within(lab)),
    }
    with other_process(lab) as exchange:
        (cgroup / "cgroup.procs").write_text(str(exchange.client.pid))
        with capturing_each(tmp_path, options) as captures:
            exchange.go()
            result = exchange.finish()
    records = captures["column"].stop().records
    ours = records["rport"] == V4
    assert set(records["cgroup"][ours].tolist()) == {cgroup.stat().st_ino}
    assert cgroup.stat().st_ino not in records["cgroup"][~ours].tolist()
    for name in ("inner", "outer"):
        outcome = captures[name].stop()
        outcome.check_complete()
        assert set(outcome.records["rport"].tolist()) == {V4}, name
        assert outcome.records.counts()["SEND_CALL"] == result.client.sends
        assert outcome.records.counts()["DESTROY"] == 1
        assert outcome.books("SEND_CALL")["filtered"] >= result.server.sends
