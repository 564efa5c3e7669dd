# SPDX-License-Identifier: Apache-2.0
"""M8: what a scenario put between two layers is between their records, with its size."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time

import numpy as np
from numpy.typing import NDArray

from scripts.experiments import tools
from scripts.experiments.context import Context
from scripts.experiments.figure import Figure
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet import pcap
from scripts.magnet.recording import (
    HEADERS,
    RECEIVED,
    SENT,
    Columns,
    Recording,
    covered,
    first_times,
)
from scripts.magnet.wire import Link, Wire, recording, wired
from tcpkmon.collector.lab.pair import Pair, connected, join, listening, receive

NAME = "M8"
TITLE = "M8: layers"
SLEEP_MS, SLEEPS, QUICK_SLEEPS = 50, 20, 3
SLEPT_BYTES = 40_000
READER_PART, OTHERS = "mean of the part reader, less the sleep, ms", "mean of all other parts, ms"
OTHER_PARTS = ("buffer", "stack", "qdisc", "network", "hole")
RATE_MBIT, CONNECTIONS, BYTES_EACH = 10, 40, 10_000
FRAME = HEADERS + 14
"""Bytes that the queue counts for a packet beside its data."""
HOLE_S, HOLE_BYTES, BEHIND_BYTES, HOLES, QUICK_HOLES = 0.1, 1000, 500, 5, 2
READER, QUEUE, HOLE, FAILED = (
    "TCP_RECV to SOCK_RECV, ms", "QDISC_ENQUEUE to QDISC_DEQUEUE, ms",
    "IP_RECV to TCP_RECV, ms", "size of a failed send",
)  # fmt: skip
MANY, QUICK_MANY, OWN = 1000, 300, "connections with their own bytes"
PART = "longest time, by tcpkmon latency"
PARTS = ("reader", "qdisc", "hole")
PUT, FOUND = "put there", "in the records"


def measure(context: Context) -> None:
    with wired(context) as wire:
        for scenario in (sleeping_reader, full_queue, hole, failing_sends, many_connections):
            context.say(f"{NAME}: {scenario.__name__.replace('_', ' ')}")
            wire.set(Link(offload=False))
            scenario(context, wire)


def sleeping_reader(context: Context, wire: Wire) -> None:
    """Data that the reader takes 50 ms after it could; in packets, and in large segments."""
    for offload in (True, False):
        wire.set(Link(offload=offload))
        slept_ms = []
        with recording(context, wire.lab, parts=True) as found, connected(wire.lab) as pair:
            for _ in range(int(context.pick(SLEEPS, QUICK_SLEEPS))):
                pair.client.sendall(bytes(SLEPT_BYTES))
                begin = time.monotonic()
                time.sleep(SLEEP_MS / 1000)
                slept_ms.append(1e3 * (time.monotonic() - begin))
                receive(pair.server, SLEPT_BYTES)
        case = "GSO on" if offload else "GSO off"
        more = found.mean_ms.get("reader", 0.0) - float(np.mean(slept_ms))
        context.results.add(NAME, READER_PART, case, more)
        others = sum(mean for part, mean in found.mean_ms.items() if part in OTHER_PARTS)
        context.results.add(NAME, OTHERS, case, others)
    reader = found.busiest("SOCK_RECV")
    read, ready = (found.of(event, reader) for event in ("SOCK_RECV", "TCP_RECV"))
    first = int(read["seq_lo"][0])
    for place, slept in enumerate(slept_ms):
        low = first + place * SLEPT_BYTES
        _add(context.results, READER, slept, (_first(read, low) - _first(ready, low)) / 1e6)
    _compare_part(context.results, found, "reader", READER)


def full_queue(context: Context, wire: Wire) -> None:
    """A queue of known rate: each packet waits for the bytes before it."""
    link = Link(RATE_MBIT, offload=False)
    wire.set(link)
    pairs: list[Pair] = []
    # One connection alone would have two packets in the queue (TCP small queues).
    with (
        recording(context, wire.lab, "--using", "driver", ends="a", parts=True) as found,
        contextlib.ExitStack() as stack,
    ):
        listener = stack.enter_context(listening(wire.lab.b, wire.lab.b.address4))
        for _ in range(CONNECTIONS):
            pairs.append(join(wire.lab.a, listener, wire.lab.b.address4))
            stack.callback(pairs[-1].close)
        for pair in pairs:
            pair.client.sendall(bytes(BYTES_EACH))
        for pair in pairs:
            receive(pair.server, BYTES_EACH)
    entered, left = found.of("QDISC_ENQUEUE"), found.of("QDISC_DEQUEUE")
    bytes_in, bytes_out = (np.cumsum(one["size"] + FRAME) for one in (entered, left))
    # Bytes before each packet and its own: all that entered, less what had left by then.
    gone = np.searchsorted(left["time_ns"], entered["time_ns"])
    backlog = bytes_in - np.concatenate([[0], bytes_out])[gone]
    keys = [list(zip(one["connection"].tolist(), one["seq_lo"].tolist(), strict=True))
            for one in (entered, left)]  # fmt: skip
    left_at = dict(zip(keys[1], left["time_ns"].tolist(), strict=True))
    for key, at, ahead in zip(keys[0], entered["time_ns"].tolist(), backlog.tolist(), strict=True):
        # Of less, the bucket of tbf may take it at once.
        if key in left_at and ahead > 5 * link.burst_bytes:
            wait_ms = ahead * 8 / (RATE_MBIT * 1e6) * 1e3
            _add(context.results, QUEUE, wait_ms, (left_at[key] - at) / 1e6)
    _compare_part(context.results, found, "qdisc", QUEUE)


def hole(context: Context, wire: Wire) -> None:
    """nftables drops a packet until its hole is old; tcpdump has the times at the receiver."""
    b = wire.lab.b
    folder = context.folder / "hole"
    folder.mkdir(exist_ok=True)
    with (
        recording(context, wire.lab, ends="b", parts=True) as found,
        tools.tcpdump("tcpdump", b, "--immediate-mode").running(folder) as seen,
        connected(wire.lab) as pair,
    ):
        pair.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(int(context.pick(HOLES, QUICK_HOLES))):
            b.command(["nft", "add table inet hole; add chain inet hole in { type filter hook "
                       "input priority 0; }; add rule inet hole in meta length "
                       f"{HOLE_BYTES + HEADERS} counter drop"])  # fmt: skip
            pair.client.sendall(bytes(HOLE_BYTES))
            pair.client.sendall(bytes(BEHIND_BYTES))
            time.sleep(HOLE_S)
            b.command(["nft", "delete table inet hole"])
            receive(pair.server, HOLE_BYTES + BEHIND_BYTES)
        seen.end()
        packets = [one for one in pcap.read(seen.file, b.address4, b.address6) if not one.outgoing]
    reader = found.busiest("SOCK_RECV")
    arrived, ordered = (found.of(event, reader) for event in ("IP_RECV", "TCP_RECV"))
    for behind in (one for one in packets if one.size == BEHIND_BYTES):
        low = behind.seq_lo - HOLE_BYTES
        filled = [one.at_ns for one in packets if (one.seq_lo, one.size) == (low, HOLE_BYTES)]
        first = min(one.at_ns for one in packets if one.key == behind.key)
        if behind.at_ns == first:
            waited = _first(ordered, behind.seq_lo) - _first(arrived, behind.seq_lo)
            _add(context.results, HOLE, (max(filled) - first) / 1e6, waited / 1e6)
    _compare_part(context.results, found, "hole", HOLE)


def failing_sends(context: Context, wire: Wire) -> None:
    """Into a full buffer, and after the end."""
    with recording(context, wire.lab, ends="a") as found, connected(wire.lab) as pair:
        codes = []
        pair.client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                pair.client.send(bytes(1 << 16))
        codes.append(errno.EAGAIN)
        pair.client.shutdown(socket.SHUT_WR)
        try:
            pair.client.send(b"more", socket.MSG_NOSIGNAL)
        except OSError as error:
            codes.append(error.errno or 0)
    sizes = found.of("SOCK_SEND", found.busiest("SOCK_SEND"))["size"]
    for code, size in zip(codes, sizes[sizes < 0].tolist(), strict=True):
        _add(context.results, f"{FAILED}, {os.strerror(code)}", -code, size)


def _first(columns: Columns, seq: int) -> float:
    """The time of the first record whose range has this byte [ns]."""
    return float(first_times(columns, np.array([seq]))[0])


def many_connections(context: Context, wire: Wire) -> None:
    """Each writes as many bytes as no other does: they must be its own at each layer."""
    count = int(context.pick(MANY, QUICK_MANY))
    with recording(context, wire.lab) as found, contextlib.ExitStack() as stack:
        listener = stack.enter_context(listening(wire.lab.b, wire.lab.b.address4))
        pairs = [join(wire.lab.a, listener, wire.lab.b.address4) for _ in range(count)]
        for pair in pairs:
            stack.callback(pair.close)
        for size, pair in enumerate(pairs, 1):
            pair.client.sendall(bytes(size))
        for size, pair in enumerate(pairs, 1):
            receive(pair.server, size)
    for layer in (*SENT, *RECEIVED):
        own = len(set(range(1, count + 1)) & _bytes_by_connection(found.of(layer)))
        _add(context.results, f"{OWN}, {layer}", count, own)


def _bytes_by_connection(columns: Columns) -> set[int]:
    """How many bytes each connection moved."""
    moved = columns["seq_hi"] != columns["seq_lo"]
    ids = columns["connection"][moved]
    kept = {name: columns[name][moved] for name in ("seq_lo", "seq_hi")}
    sums = set()
    for one in np.unique(ids).tolist():
        mine = {name: column[ids == one] for name, column in kept.items()}
        sums.add(covered(mine, int(mine["seq_lo"].min())))
    return sums


def _compare_part(results: Results, found: Recording, part: str, subject: str) -> None:
    """The longest time of any byte, by `tcpkmon latency`, beside what was put there."""
    longest = max(results.all(NAME, subject, PUT), default=0.0)
    _add(results, f"{PART}, {part}", longest, found.longest_ms.get(part, 0.0))


def _add(results: Results, subject: str, put: float, found: float) -> None:
    results.add(NAME, subject, PUT, put)
    results.add(NAME, subject, FOUND, found)


def pairs_of(results: Results, subject: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the scenarios put there, and what the records say."""
    put, found = (np.array(results.all(NAME, subject, case)) for case in (PUT, FOUND))
    return put, found


def figures(results: Results) -> list[Figure]:
    found = []
    put, waited = pairs_of(results, READER)
    if len(put):
        found.append(Figure(
            f"{NAME}: the reader sleeps {SLEEP_MS} ms: {READER.partition(',')[0]}", "-",
            f"{waited.min():.2f} to {waited.max():.2f} ms, {len(put)} times",
            f"{SLEEP_MS} ms or more", bool(np.all(waited >= SLEEP_MS)),
        ))  # fmt: skip
    means = {
        subject: [one for case in ("GSO on", "GSO off")
                  for one in results.all(NAME, subject, case)]
        for subject in (READER_PART, OTHERS)
    }  # fmt: skip
    if all(len(two) == 2 for two in means.values()):
        found.append(Figure(
            f"{NAME}: the same with GSO on and off, by tcpkmon latency: reader less the sleep; all "
            "other parts", "-",
            "; ".join(f"{on:.2f} and {off:.2f} ms" for on, off in means.values()),
            "the same within 1 ms",
            all(abs(on - off) <= 1 for on, off in means.values()),
        ))  # fmt: skip
    for subject, what in ((QUEUE, f"a queue of {RATE_MBIT} Mbit/s: backlog / rate"),
                          (HOLE, "a hole, by tcpdump")):  # fmt: skip
        put, waited = pairs_of(results, subject)
        if len(put):
            error = np.abs(waited - put)
            found.append(Figure(
                f"{NAME}: {what} = {subject.partition(',')[0]}", "-",
                f"{put.min():.1f} to {put.max():.1f} ms; {np.median(error):.3f} ms off in the "
                f"median, {error.max():.2f} at most, {len(put)} times",
                "within 5 % or 1 ms, in the median",
                bool(np.median(error - np.maximum(1, 0.05 * put)) <= 0),
            ))  # fmt: skip
    parts = {part: pairs_of(results, f"{PART}, {part}") for part in PARTS}
    if all(len(put) for put, _ in parts.values()):
        ours = {part: (float(put[0]), float(got[0])) for part, (put, got) in parts.items()}
        found.append(Figure(
            f"{NAME}: the parts of tcpkmon latency: {', '.join(PARTS)}", "-",
            f"{', '.join(number(got) for _, got in ours.values())} ms at most",
            f"{', '.join(number(put) for put, _ in ours.values())} ms, within 5 % or 1 ms",
            all(abs(got - put) <= max(1, 0.05 * put) for put, got in ours.values()),
        ))  # fmt: skip
    own = {layer: pairs_of(results, f"{OWN}, {layer}") for layer in (*SENT, *RECEIVED)}
    if all(len(put) for put, _ in own.values()):
        wrong = [f"{layer} {got[0]:.0f}" for layer, (put, got) in own.items() if put[0] != got[0]]
        count = number(own[SENT[0]][0][0], 0)
        found.append(Figure(
            f"{NAME}: {count} connections at once, each with its own number of bytes", "-",
            ", ".join(wrong) or f"{count} at each of {len(own)} layers", f"{count} at each",
            not wrong,
        ))  # fmt: skip
    failed = [name for name in results.values.get(NAME, {}) if name.startswith(FAILED)]
    if failed:
        pairs = [pairs_of(results, name) for name in failed]
        found.append(Figure(
            f"{NAME}: {FAILED}", "-",
            ", ".join(f"{number(got[0], 0)} ({name.partition(', ')[2]})"
                      for name, (_, got) in zip(failed, pairs, strict=True)),
            "the negative errno", all(bool(np.all(one == other)) for one, other in pairs),
        ))  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    rows = []
    for subject in (READER, QUEUE, HOLE):
        put, waited = pairs_of(results, subject)
        if len(put):
            rows.append([subject, number(len(put), 0), *(
                number(float(value), 2) for one in (put, waited)
                for value in (np.median(one), one.max())
            )])  # fmt: skip
    return [
        Table(
            "What was put between two layers, and what their records say",
            ("", "times", "put there, median", "most", "records, median", "most"), rows,
            f"The queue: {CONNECTIONS} connections write {BYTES_EACH:,} bytes at once; the backlog "
            "is that of the records themselves. A hole: nftables drops a packet for "
            f"{1000 * HOLE_S:.0f} ms, and tcpdump has the time from the packet behind it to the "
            "one that fills it.",
        )
    ]  # fmt: skip
