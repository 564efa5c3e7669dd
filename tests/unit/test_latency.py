# SPDX-License-Identifier: Apache-2.0
"""formats/analysis/latency: scenarios whose times are known, what is not recorded, limits, speed.

tests/unit/test_latency_reference.py compares it with a plain reference on random traffic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.analysis.latency import (
    Latency,
    Report,
    Summary,
    as_json,
    find_flows,
    make_report,
)
from tcpkmon.formats.analysis.latency.peers import END, find_peers
from tcpkmon.formats.analysis.latency.stages import Chain, State
from tcpkmon.formats.base.errors import DamagedError
from tests.unit.log_files import UDP, MagnetLog, packed, write_folder

A, B = 1, 2
CLIENT, SERVER = ("10.0.0.1", 5000), ("10.0.0.2", 80)
FIRST = 1000


def begin(off: tuple[str, ...] = (), ends: tuple[int, ...] = (A, B)) -> MagnetLog:
    log = MagnetLog(0, off)
    if A in ends:
        log.connect(A, CLIENT, SERVER, 1, snd_nxt=FIRST, rcv_nxt=500)
    if B in ends:
        log.connect(B, SERVER, CLIENT, 2, snd_nxt=500, rcv_nxt=FIRST)
    return log


def transfer(
    log: MagnetLog, at: int = 1000, lo: int = FIRST, ends: tuple[int, ...] = (A, B)
) -> int:
    """100 bytes: 10 ns from the call to TCP, 20 in the buffer, 5 to the queue, 40 in it, 80 on the
    network, 3 to TCP, 2 until they are in order, 200 until they are read, 300 to the ACK."""
    hi = lo + 100
    sent: list[tuple[str, int]] = [
        ("TCP_SEND", 10), ("IP_SEND", 30), ("DEV_SEND", 35), ("DRIVER_START", 75),
    ]  # fmt: skip
    came = [("DEV_RECV", 155), ("IP_RECV", 158), ("TCP_RECV", 160)]
    for name, delay in sent if A in ends else ():
        log.put(name, at + delay, A, lo, hi)
    if A in ends:
        log.put("SOCK_SEND", at + 76, A, lo, hi, entered=at)
    for name, delay in came if B in ends else ():
        log.put(name, at + delay, B, lo, hi)
    if B in ends:
        log.put("SOCK_RECV", at + 360, B, lo, hi)
    if A in ends:
        log.put("IP_RECV", at + 375, A, 500, 500, ack=hi)
    return hi


PARTS = {
    "buffer": 20, "stack": 10 + 5 + 3 + 2, "qdisc": 40, "network": 80, "hole": 0, "reader": 200,
}  # fmt: skip


def measure(folder: Path, slowest: int = 3, memory: int | None = None) -> Report:
    with open_log(folder) as log:
        latency = Latency(log, memory)
        summary = Summary(find_flows(latency.survey, ()), latency.survey.begin_ns, slowest)
        for some in latency:
            summary.add(some)
        return make_report(latency, summary)


def means(spreads: dict[str, Any]) -> dict[str, int]:
    return {name: round(spread.mean_ns) for name, spread in spreads.items() if name != "whole"}


def only(report: Report) -> Any:
    (flow,) = report.flows
    return flow


def test_both_ends(tmp_path: Path) -> None:
    log = begin()
    transfer(log)
    flow = only(measure(write_folder(tmp_path, log)))
    assert (flow.name, flow.side) == ("10.0.0.1:5000 > 10.0.0.2:80", Chain.BOTH)
    assert flow.connections == (A, B)
    assert flow.sizes[State.MEASURED] == flow.size == 100
    assert means(flow.once) == PARTS
    assert flow.once["whole"].most_ns == 360
    (slow,) = flow.slowest
    assert (slow.seq_lo, slow.seq_hi, slow.whole_ns) == (FIRST, FIRST + 100, 360)


def test_a_server_thinks_between_both_directions(tmp_path: Path) -> None:
    """100 bytes arrive until 1160 and 5160; the server writes its answers at 3000 and 5660."""
    log = begin()
    transfer(log)
    second = transfer(log, at=5000, lo=FIRST + 100)
    assert second == FIRST + 200
    for at, lo in ((3000, 500), (5660, 600)):
        log.put("TCP_SEND", at + 10, B, lo, lo + 100)
        log.put("SOCK_SEND", at + 76, B, lo, lo + 100, entered=at)
    flows = as_json(measure(write_folder(tmp_path, log)))["flows"]
    thought = {flow["sender"]: flow["server_thinking"] for flow in flows}
    assert thought[A] is None
    assert thought[B] == {"answers": 2, "p50": 1170.0, "p95": 1773.0, "p99": 1826.6, "max_ns": 1840}


def test_only_the_sender_halves_the_round_trip(tmp_path: Path) -> None:
    log = begin(ends=(A,))
    transfer(log, ends=(A,))
    report = measure(write_folder(tmp_path, log))
    flow = only(report)
    assert flow.side == Chain.SENDER and flow.connections == (A, None)
    assert means(flow.once) == {
        "buffer": 20, "stack": 15, "qdisc": 40, "network": 150, "return": 150,
    }  # fmt: skip
    assert "sender's end: network is an estimate, half of the time to the ACK" in report.notes
    assert as_json(report)["flows"][0]["network_is_estimate"]


def test_only_the_receiver_knows_no_network(tmp_path: Path) -> None:
    log = begin(ends=(B,))
    transfer(log, ends=(B,))
    flow = only(measure(write_folder(tmp_path, log)))
    assert flow.side == Chain.RECEIVER and flow.name == "10.0.0.1:5000 > 10.0.0.2:80"
    assert means(flow.once) == {"stack": 5, "hole": 0, "reader": 200}


@pytest.mark.parametrize(
    ("off", "parts", "note"),
    [
        (("IP_SEND",), {"buffer": 25, "stack": 15}, ""),
        (("TCP_SEND",), {"buffer": 30, "stack": 10}, "both ends: buffer includes stack"),
        (
            ("DRIVER_START",), {"network": 120, "qdisc": None},
            "both ends: network includes qdisc",
        ),
        (("TCP_RECV",), {"reader": 202, "stack": 18}, "both ends: reader includes stack"),
        (("IP_RECV",), {"stack": 20, "hole": 0}, ""),
        (("SOCK_SEND", "SOCK_RECV"), {"reader": None, "stack": 10}, ""),
        (("DEV_SEND", "IP_SEND"), {"buffer": 65, "qdisc": 0}, ""),
    ],
)  # fmt: skip
def test_what_is_not_recorded_is_said_by_name(
    tmp_path: Path, off: tuple[str, ...], parts: dict[str, int | None], note: str
) -> None:
    log = begin(off)
    put = log.put

    def put_some(event: str, *values: Any, **more: Any) -> MagnetLog:
        return log if event in off else put(event, *values, **more)

    log.put = put_some  # type: ignore[method-assign]
    transfer(log)
    report = measure(write_folder(tmp_path, log))
    found = means(only(report).once)
    assert {name: found.get(name) for name in parts} == parts
    assert only(report).unknown == 0
    for name in off:
        assert f"not recorded: {name} (this kernel has no place to log it)" in report.notes
    assert not note or any(one.startswith(note) for one in report.notes), report.notes


@pytest.mark.parametrize("cause", ["table_full", "shed"])
def test_losses_without_a_serial_lie_between_ledgers(tmp_path: Path, cause: str) -> None:
    second = 1_000_000_000
    log = begin()
    lo = transfer(log, 1_000)
    log.end_dump()
    for at in (2, 4, 6):
        log.maker.time_ns = 1_000_000_000 + at * second  # of the ledger that follows
        if at == 4:
            log.lose(cause, 1, "SOCK_SEND")
        log.ledger()
        lo = transfer(log, (at + 1) * second, lo)
        log.end_dump()
    flow = only(measure(write_folder(tmp_path, log)))
    assert flow.sizes[State.LOST] == 100  # of the second between 2 and 4 s
    assert flow.sizes[State.MEASURED] == 300


def test_a_log_without_an_end_loses_what_was_under_way(tmp_path: Path) -> None:
    log = begin()
    transfer(log)
    for at in range(40_000, 40_004):
        log.put("IP_RECV", at, A, 500, 500, ack=FIRST + 100)
    log.put("TCP_SEND", 50_000, A, FIRST + 100, FIRST + 200)
    log.put("SOCK_SEND", 50_001, A, FIRST + 100, FIRST + 200, entered=49_999)
    log.end_dump().ledger()
    tmp_path.mkdir(exist_ok=True)
    log.write(tmp_path / "kernlog.dump.cpu0")
    flow = only(measure(tmp_path))
    assert flow.sizes[State.MEASURED] == 100 and flow.sizes[State.LOST] == 100


def test_records_that_cannot_be_joined_are_counted(tmp_path: Path) -> None:
    log = begin()
    transfer(log)
    log.put("IP_SEND", 2000, 0, FIRST, FIRST + 10)
    log.put("DEV_RECV", 2001, 77, FIRST, FIRST + 10)
    log.put("IP_SEND", 2002, A, 0, 0, flags=UDP, size=100)
    log.put("SOCK_SEND", 2003, A, FIRST, FIRST, entered=1999, size=-11)
    report = measure(write_folder(tmp_path, log))
    assert report.left_out == {"UDP": 1, "of no known connection": 2, "failed calls": 1}
    assert only(report).sizes[State.MEASURED] == 100


def test_sequence_numbers_wrap_and_jump(tmp_path: Path) -> None:
    """More than 4 GiB in which nothing was recorded: the same numbers are other bytes then."""
    log = begin()
    near_the_end = (1 << 32) - 50
    transfer(log, 1_000, FIRST)
    for at, lo in ((10_000, FIRST + (3 << 29)), (20_000, near_the_end), (30_000, FIRST)):
        transfer(log, at, lo)
    flow = only(measure(write_folder(tmp_path, log)))
    # The last one continues the one before it, and 950 bytes between them are not there.
    assert flow.sizes[State.MEASURED] == 300
    assert flow.unknown == flow.sizes[State.MISSING] == 950 + 100


def test_a_log_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    """It is spread over files, and both directions and ends of a connection stay together."""
    log = MagnetLog(0)
    for one in range(200):
        ends = ("10.0.0.1", 1000 + one), SERVER
        log.connect(2 * one + 1, *ends, at=one, snd_nxt=FIRST, rcv_nxt=7)
        log.connect(2 * one + 2, *ends[::-1], at=one, snd_nxt=7, rcv_nxt=FIRST)
    for at, one, both in ((a, b, c) for a in range(3) for b in range(200) for c in (0, 1)):
        now, lo = (200 * at + one + 1) * 20_000_000 + both, (FIRST, 7)[both] + 10 * at
        sender, receiver = 2 * one + 1 + both, 2 * one + 2 - both
        log.put("TCP_SEND", now + 1, sender, lo, lo + 10)
        log.put("IP_SEND", now + 2, sender, lo, lo + 10)
        log.put("SOCK_SEND", now + 3, sender, lo, lo + 10, entered=now)
        log.put("IP_RECV", now + 9, receiver, lo, lo + 10)
    folder = write_folder(tmp_path, log)
    whole, spread = as_json(measure(folder)), as_json(measure(folder, memory=1 << 14))
    assert len(whole["flows"]) == 400 and whole == spread


def test_equal_addresses_are_told_apart_by_sequence_numbers_and_time() -> None:
    """The same ports used again, and in two namespaces at once."""
    rows = np.zeros(6, END)
    for at, (number, mine, ns, sent, received) in enumerate(
        [(1, 1, 0, 100, 900), (2, 0, 5, 900, 100),  # one
         (3, 1, 9, 5_000, 70), (4, 0, 11, 70, 5_000),  # at the same time in another namespace
         (5, 1, 10**9, 300, 400), (6, 0, 10**9 + 1, 400, 300)]  # later
    ):  # fmt: skip
        ends = [CLIENT, SERVER] if mine else [SERVER, CLIENT]
        rows[at] = (
            number, ns, packed(ends[0][0]), ends[0][1], packed(ends[1][0]), ends[1][1],
            sent, received, 0, b"",
        )  # fmt: skip
    assert find_peers(rows).tolist() == [1, 0, 3, 2, 5, 4]
    assert find_peers(rows[::-1].copy()).tolist() == [1, 0, 3, 2, 5, 4]
    assert find_peers(rows[:1].copy()).tolist() == [-1]


def test_records_that_cover_each_other_without_end_are_refused(tmp_path: Path) -> None:
    log = begin()
    for at in range(3000):
        log.put("IP_SEND", 1000 + at, A, FIRST - at, FIRST + 1 + at)
    with (
        open_log(write_folder(tmp_path, log)) as opened, pytest.raises(DamagedError, match="again"),
    ):  # fmt: skip
        list(Latency(opened))
