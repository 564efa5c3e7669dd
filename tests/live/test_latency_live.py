# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon latency` on captures of traffic whose waits the test makes, and measures by itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.analysis.latency import Latency, Summary, find_flows, make_report
from tcpkmon.formats.analysis.latency.parts import Measured
from tcpkmon.formats.analysis.latency.report import Flow
from tcpkmon.formats.analysis.latency.stages import CHAINS, Chain, State
from tests.live.capturing import Pair, connected, receive, within
from tests.live.schema_logs import Logging

MS = 1_000_000
Ends = tuple[int, int]
EVENTS = ("SOCK_", "TCP_", "IP_", "DEV_", "QDISC_", "DRIVER_", "MAGNET_")
"""How the names of the schema's events begin; the times of the others are those of writing."""
HEADERS = 66
"""Ethernet, IPv4, TCP with timestamps."""


@dataclass
class Found:
    """What the analysis found: pieces of ranges, and a flow for each direction with data."""

    folder: Path
    latency: Latency
    pieces: list[Measured]
    flows: dict[tuple[int, int], Flow]
    notes: list[str]

    def of(self, ends: Ends) -> Flow:
        """What the client sent."""
        return self.flows[ends]

    def column(self, ends: Ends, name: str) -> Any:
        """(n,) a time t_... or a part of the ranges that the client sent, in order."""
        number = self.of(ends).number
        parts = []
        for some in self.pieces:
            mine = some.ranges.flow == number
            times = {f"t_{time}": column for time, column in some.ranges.times.items()}
            at = {**times, **some.parts, "whole": some.whole, "sizes": some.sizes}
            if name == "sent_again":
                at[name] = some.ranges.sent_again
            parts.append((at[name] if name in at else getattr(some, name))[mine])
        return np.concatenate(parts)


Scenario = Generator[None, Found, None]


def ends_of(pair: Pair) -> Ends:
    """The ports of client and server; a closed socket has none."""
    return pair.client_port, pair.server_port


def look(folder: Path) -> Found:
    with open_log(folder) as log:
        latency = Latency(log)
        summary = Summary(find_flows(latency.survey, ()), latency.survey.begin_ns)
        pieces = []
        for some in latency:
            summary.add(some)
            pieces.append(some)
        report = make_report(latency, summary)
    flows = {}
    for flow in report.flows:
        ports = [int(end.rpartition(":")[2]) for end in flow.name.split(" > ")]
        flows[ports[0], ports[1]] = flow
    return Found(folder, latency, pieces, flows, report.notes)


@contextlib.contextmanager
def capturing(folder: Path, lab: Lab, *more: str) -> Iterator[None]:
    """Captures the lab's traffic of the body."""
    words = ["--schema", "magnet", "--using", "driver", "--format", "klogger", *within(lab)]
    running = Logging(folder, [*words, "--buffer-size", "16", *more], "")
    try:
        running.wait_until_ready()
        yield
        running.interrupt()
        _, errors = running.process.communicate(timeout=60)
        assert running.process.returncode == 0, errors
    finally:
        running.close()


def check(found: Found, ends: Ends, size: int) -> None:
    """All bytes are measured, times rise through all layers, and the parts fit the whole."""
    flow = found.of(ends)
    assert flow.size == flow.sizes[State.MEASURED] == size, flow.sizes
    for some in found.pieces:
        assert (sum(some.parts.values()) == some.whole).all()
        assert all((part >= 0).all() for part in some.parts.values())
    recorded = found.latency.survey.is_recorded
    steps = [step for step in CHAINS[Chain.BOTH] if any(map(recorded, step.events))]
    assert len(steps) == len(CHAINS[Chain.BOTH]), f"not on this kernel: {found.notes}"
    columns = [found.column(ends, f"t_{step.time}") for step in steps]
    for before, after in pairwise(columns):
        assert (before > 0).all() and (before <= after).all()


def bytes_until(sizes: Any) -> Any:
    """The number of the last byte of each range, from 1 on."""
    return np.cumsum(sizes)


def a_counted_transfer(lab: Lab) -> Scenario:
    """Times lie within those that the application sees, in both directions."""
    sizes = [1, 100, 1448, 5000, 40_000, 3] * 20
    writes, reads = [], []
    with connected(lab) as pair:
        ends = ends_of(pair)
        for size in sizes:
            begin = time.monotonic_ns()
            pair.client.sendall(bytes(size))
            writes.append((begin, time.monotonic_ns()))
            begin = time.monotonic_ns()
            receive(pair.server, size)
            reads.append((begin, time.monotonic_ns()))
        pair.server.sendall(bytes(777))
        receive(pair.client, 777)
    found = yield
    check(found, ends, sum(sizes))
    back = found.flows[ends[::-1]]
    assert back.size == back.sizes[State.MEASURED] == 777
    call = np.searchsorted(np.cumsum(sizes), bytes_until(found.column(ends, "sizes")))
    for name, calls in (("write", writes), ("read", reads)):
        times = found.column(ends, f"t_{name}")
        earliest, latest = (np.array(one)[call] for one in zip(*calls, strict=True))
        assert (earliest <= times).all() and (times <= latest).all(), name


def a_reader_that_sleeps(lab: Lab) -> Scenario:
    with connected(lab) as pair:
        ends = ends_of(pair)
        for _ in range(5):
            pair.client.sendall(bytes(10_000))
            time.sleep(0.05)
            receive(pair.server, 10_000)
    found = yield
    check(found, ends, 50_000)
    reader = found.column(ends, "reader")
    assert (reader > 45 * MS).all() and (reader < 150 * MS).all()
    rest = found.column(ends, "whole") - reader
    assert np.median(rest) < 5 * MS
    part = found.of(ends).once["reader"]
    assert part.total_ns / found.of(ends).once["whole"].total_ns > 0.9


def a_queue_of_known_rate(lab: Lab) -> Scenario:
    """In the queue a byte waits for what is before it: bytes that left meanwhile, by the rate."""
    rate = 4_000_000 // 8  # bytes a second
    tbf = ["rate", "4mbit", "burst", "1600", "limit", "1000000"]
    lab.a.command(["tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *tbf])
    with connected(lab) as pair:
        ends = ends_of(pair)
        reading = threading.Thread(target=receive, args=(pair.server, 100_000))
        reading.start()
        pair.client.sendall(bytes(100_000))
        reading.join()
    lab.a.command(["tc", "qdisc", "del", "dev", DEVICE, "root"])
    found = yield
    check(found, ends, 100_000)
    left = _departures(found.folder)
    waits, since = found.column(ends, "qdisc"), found.column(ends, "t_qdisc")
    long = np.flatnonzero(waits > 10 * MS)
    assert len(long) > 10
    for wait, begin in zip(waits[long].tolist(), since[long].tolist(), strict=True):
        meanwhile = sum(size for time_ns, size in left if begin < time_ns <= begin + wait)
        assert wait == pytest.approx(meanwhile / rate * 1e9, rel=0.15, abs=4 * MS)


def _departures(folder: Path) -> list[tuple[int, int]]:
    """When the driver got how many bytes, with headers."""
    with open_log(folder) as log:
        return [
            (event.timestamp, event["size"] + HEADERS * max(event["gso_segs"], 1))
            for event in log.choose("DRIVER_START")
        ]


def a_hole_of_known_length(lab: Lab) -> Scenario:
    """A segment of 1000 bytes is dropped for a while, and sent again; those behind it wait."""
    chain = "chain in { type filter hook input priority 0; meta length 1052 drop; }"
    with connected(lab) as pair:
        ends = ends_of(pair)
        pair.client.setsockopt(6, 1, 1)  # TCP_NODELAY
        lab.b.command(["nft", f"table inet hole {{ {chain}; }}"])
        begin = time.monotonic_ns()
        for size in (1448, 1000, 1448, 1448, 1448):
            pair.client.sendall(bytes(size))
        receive(pair.server, 1448)
        time.sleep(0.15)
        lab.b.command(["nft", "delete table inet hole"])
        opened = time.monotonic_ns()
        receive(pair.server, 1000 + 3 * 1448)
        filled = time.monotonic_ns()
    found = yield
    check(found, ends, 1000 + 4 * 1448)
    hole, again = found.column(ends, "hole"), found.column(ends, "sent_again")
    place = bytes_until(found.column(ends, "sizes"))
    # TCP may hold small segments back while others are under way; those wait in the buffer.
    came = found.column(ends, "t_tcp")
    behind = (place > 2448) & (again == 0) & (came < opened)
    assert behind.any()
    assert (hole[place <= 1448] == 0).all()
    assert (hole[behind] > opened - begin - 20 * MS).all()
    assert (hole[behind] < filled - begin).all()
    # The application's view: from when it was sent to when the reader got on.
    assert (np.abs(hole[behind] - (filled - begin)) < 20 * MS).all()
    lost = (place > 1448) & (place <= 2448)
    assert (again[lost] >= 1).all() and (hole[lost] == 0).all()
    recovery = found.column(ends, "recovery")
    assert (recovery[lost] > opened - begin - 20 * MS).all()
    assert found.of(ends).size_again >= 1000


def offloads(lab: Lab) -> Scenario:
    """The same transfer with large segments and with small ones has the same parts."""
    both = []
    for segments in (64, 1):
        for side in (lab.a, lab.b):
            words = ["gso_max_segs", str(segments)]
            side.command(["ip", "link", "set", "dev", DEVICE, *words])
        with connected(lab) as pair:
            both.append(ends_of(pair))
            for _ in range(10):
                pair.client.sendall(bytes(30_000))
                time.sleep(0.02)
                receive(pair.server, 30_000)
    found = yield
    means = []
    for ends, is_large in zip(both, (True, False), strict=True):
        check(found, ends, 300_000)
        means.append({part: one.mean_ns for part, one in found.of(ends).once.items()})
        assert (found.column(ends, "sizes").max() > 1448) == is_large
    large, small = means
    assert large.keys() == small.keys()
    assert small["reader"] == pytest.approx(large["reader"], rel=0.25)
    for part in large.keys() - {"reader", "whole"}:
        assert abs(small[part] - large[part]) < 5 * MS, part


SCENARIOS = (
    a_counted_transfer, a_reader_that_sleeps, a_hole_of_known_length, a_queue_of_known_rate,
    offloads,
)  # fmt: skip


def test_scenarios(tmp_path: Path, lab: Lab) -> None:
    """All in one capture: each makes its traffic, and then looks at what was found of it."""
    with capturing(tmp_path / "log", lab):
        under_way = [scenario(lab) for scenario in SCENARIOS]
        for one in under_way:
            next(one)
    found = look(tmp_path / "log")
    assert not any(flow.unknown for flow in found.flows.values())
    for one in under_way:
        with contextlib.suppress(StopIteration):
            one.send(found)


def test_losses_make_unknown_what_they_concern(tmp_path: Path, lab: Lab) -> None:
    """With tiny rings: no range that was on its way then is called known, and all others are."""
    folder = tmp_path / "log"
    with capturing(folder, lab, "--buffer-size", "0.008"), connected(lab) as pair:
        ends = ends_of(pair)
        for pause in (0.01,) * 20 + (0.0,) * 3:
            size = 2000 if pause else 2_000_000
            reading = threading.Thread(target=receive, args=(pair.server, size))
            reading.start()
            pair.client.sendall(bytes(size))
            reading.join()
            time.sleep(pause)
    found = look(folder)
    flow = found.of(ends)
    assert flow.sizes[State.LOST] > 0, "nothing was lost"
    assert flow.sizes[State.MEASURED] > 0, flow.sizes
    assert flow.unknown == flow.sizes[State.LOST], flow.sizes
    spans, missed = _gaps(folder)
    assert spans
    state = found.column(ends, "state")
    begin, end = found.column(ends, "t_write"), found.column(ends, "t_read")
    whole = (begin > 0) & (end > 0)
    touched = np.zeros(len(state), bool)
    for first, last in spans:
        touched |= (begin <= last) & (end >= first)
    assert (state[whole & touched] == State.LOST).all()
    known = found.latency.survey.windows.touch(begin[whole], end[whole])
    assert ((state[whole] == State.LOST) == known).all()
    if not missed:  # what a program missed has no gap: it concerns a second
        assert (state[whole & ~touched] == State.MEASURED).mean() > 0.9


def _gaps(folder: Path) -> tuple[list[tuple[int, int]], int]:
    """When serials are missing: from the record before to the one after; and other losses."""
    spans, missed = [], 0
    with open_log(folder) as log:
        for reader in log.readers:
            ours = [e.number for e in reader.format.events if e.name.startswith(EVENTS)]
            before, read = (0, 0), 0  # absent serials and time of the last record
            for batch in reader.batches():
                absent = batch.serials.astype(int) - np.arange(read + 1, read + 1 + len(batch))
                read += len(batch)
                mine = np.isin(batch.numbers, ours)
                times = batch.times_ns[mine].tolist()
                for one in zip(absent[mine].tolist(), times, strict=True):
                    if before[1] and one[0] != before[0]:
                        spans.append((before[1], one[1]))
                    before = one
            missed += reader.losses.missed
    return spans, missed
