# SPDX-License-Identifier: Apache-2.0
"""Oracle 3: counted workloads; the records of each location are as many as the calls were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.traffic import Workload
from tests.live.capturing import Outcome, Records, capturing, within

ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE, CLOSE_WAIT, LAST_ACK, LISTEN = (
    *(1, 2, 3, 4, 5),
    *(7, 8, 9, 10),
)
CLIENT_STATES = [SYN_SENT, ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE]
SERVER_STATES = [SYN_RECV, ESTABLISHED, CLOSE_WAIT, LAST_ACK, CLOSE]
MESSAGES, CONNECTIONS = 211, 5  # both prime
CALLS = "STATE_CHANGE,SEND_CALL,RECEIVE_CALL,DESTROY"


def capture(path: Path, lab: Lab, work: Workload, *options: str) -> tuple[Outcome, traffic.Result]:
    """The capture of one workload from a to b; complete, so that counts may be compared."""
    exchange = traffic.Exchange(work, lab.a.namespace.fd, lab.b.namespace.fd)
    options = ("--buffer-size", "32", "--columns", "full", *within(lab), *options)
    try:
        with capturing(path, *options) as run:
            exchange.go()
            result = exchange.finish()
            outcome = run.stop()
    finally:
        exchange.stop()
    outcome.check_complete()
    return outcome, result


def of_connections(records: Records, port: int) -> tuple[Records, Records]:
    """The records of the clients' ends and of the servers' ends, the listener's left out.

    A server's first entry, from LISTEN to SYN_RECV, has no remote port before 6.18: the kernel sets
    that only afterwards. Its identity tells whose it is.
    """
    named = (records["lport"] == port) & (records["rport"] != 0)
    identities = np.setdiff1d(records["conn_id"][named], [0])
    same = (records["lport"] == port) & np.isin(records["conn_id"], identities)
    return records.where(rport=port), records.pick(named | same)


# Where the client connects, where the server listens; the families of both ends.
FAMILIES = {
    "v4": ("10.77.0.2", "", (2, 2)),
    "v6": ("fd77::2", "", (10, 10)),
    "mapped client": ("::ffff:10.77.0.2", "10.77.0.2", (10, 2)),
    "mapped server": ("10.77.0.2", "::", (2, 10)),
}


def test_every_call_has_its_record(tmp_path: Path, lab: Lab) -> None:
    options = ("--locations", CALLS, "--columns", "full", "--buffer-size", "32", *within(lab))
    results = {}
    with capturing(tmp_path / "a.pm", *options) as run:
        for name, (server, listen, _) in FAMILIES.items():
            work = Workload(
                server, listen=listen, connections=CONNECTIONS, count=MESSAGES, size=77, reply=5
            )
            results[name] = traffic.run(work, lab.a.namespace.fd, lab.b.namespace.fd)
        outcome = run.stop()
    outcome.check_complete()
    ways = outcome.capture.settings["locations"]
    for name, result in results.items():
        ends = of_connections(outcome.records, result.port)
        sides = (result.client, result.server)
        for records, tally, family in zip(ends, sides, FAMILIES[name][2], strict=True):
            check_calls(records, tally, family, "kprobe" in ways["RECEIVE_CALL"])
        check_states(ends[0], CLOSE, CLIENT_STATES)
        check_states(ends[1], LISTEN, SERVER_STATES)


def check_calls(records: Records, tally: traffic.Tally, family: int, by_kprobe: bool) -> None:
    """One side's records against what it counted itself."""
    assert set(records["family"].tolist()) == {family}
    sent, received = records.at("SEND_CALL"), records.at("RECEIVE_CALL")
    assert len(sent) == tally.sends == MESSAGES * CONNECTIONS
    assert len(received) == tally.receives
    assert int(sent["callvalue"].sum()) == tally.bytes_sent
    if not by_kprobe:  # else it is what was asked for, the end of the stream too
        assert int(received["callvalue"].sum()) == tally.bytes_received
    assert set(sent["pid"].tolist()) | set(received["pid"].tolist()) == {tally.pid}
    said = Counter(
        (
            *(one.local.removeprefix("::ffff:"), one.local_port),
            *(one.remote.removeprefix("::ffff:"), one.remote_port),
        )
        for one in tally.connections
    )
    assert Counter(records.at("DESTROY").ends()) == said


def check_states(records: Records, first: int, states: list[int]) -> None:
    """Each connection of one side went through these states, and each change tells the old one."""
    changes = records.at("STATE_CHANGE")
    assert set(changes["conn_id"].tolist()) == set(records["conn_id"].tolist())
    for identity in np.unique(changes["conn_id"]):
        one = changes.where(conn_id=identity)
        assert one["callvalue"].tolist() == states
        assert one["state"].tolist() == [first, *states[:-1]]
    assert len(np.unique(changes["conn_id"])) == CONNECTIONS


def check_identities(outcome: Outcome, result: traffic.Result, count: int) -> None:
    """Each end has an identity of its own, one DESTROY, and one pair of ports throughout."""
    identities: list[int] = []
    for records in of_connections(outcome.records, result.port):
        destroyed = records.at("DESTROY")
        assert len(destroyed) == count
        found = np.unique(destroyed["conn_id"])
        assert len(found) == count
        assert set(np.unique(records["conn_id"]).tolist()) == set(found.tolist())
        order = np.argsort(records["conn_id"], kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(records["conn_id"][order])) + 1)
        starts = (SYN_SENT, SYN_RECV)
        place = outcome.capture.schema.enum("location").members if outcome.capture.schema else ()
        value = {member.name: member.value for member in place}
        for group in groups:
            one = records.pick(group)
            # From its first state to its DESTROY, and nothing before or behind.
            assert one["callvalue"][0] in starts
            assert one["location"][0] == value["STATE_CHANGE"]
            assert one["location"][-1] == value["DESTROY"]
            assert np.count_nonzero(np.isin(one["callvalue"], starts)) == 1
            assert len(set(one["rport"][1:].tolist()) | set(one["rport"].tolist()) - {0}) == 1
            assert len(set(one["lport"].tolist()) - {0}) == 1
        identities += found.tolist()
    assert 0 not in identities
    assert len(set(identities)) == 2 * count


def test_no_two_of_2000_connections_are_merged(tmp_path: Path, lab: Lab) -> None:
    count = 2000
    work = Workload("10.77.0.2", connections=count, parallel=4, size=10, reply=3)
    places = "STATE_CHANGE,DESTROY"
    outcome, result = capture(tmp_path / "a.pm", lab, work, "--locations", places)
    check_identities(outcome, result, count)
    # Identities are worth something only because the kernel's own addresses come back.
    clients, servers = of_connections(outcome.records, result.port)
    for records in (clients, servers):
        assert len(np.unique(records["conn_id"])) == count
    ports = [one.local_port for one in result.client.connections]
    assert sorted(clients.at("DESTROY")["lport"].tolist()) == sorted(ports)
