# SPDX-License-Identifier: Apache-2.0
"""formats/analysis/latency finds what a plain and slow reference finds, byte by byte."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.analysis.latency import Latency
from tcpkmon.formats.analysis.latency.stages import State
from tests.full import examples
from tests.unit.log_files import ACK, RETRANSMISSION, MagnetLog, write_folder

MS = 1_000_000
SENDER, RECEIVER = 1, 2
NEVER = 1 << 62
CHAIN = (
    ("write", ""), ("tcp_send", "stack"), ("transmit", "buffer"), ("resent", "recovery"),
    ("qdisc", "stack"), ("driver", "qdisc"), ("driver_in", "network"), ("tcp", "stack"),
    ("complete", "hole"), ("inorder", "stack"), ("read", "reader"),
)  # fmt: skip
SENDER_CHAIN = (*CHAIN[:3], ("qdisc", "stack"), ("driver", "qdisc"), ("ack", "round_trip"))
AGAIN_CHAIN = (*CHAIN[:3], ("ack", "recovery"))


@dataclass(frozen=True)
class Record:
    """lo, hi: bytes from 0 on. time, entered: ns since the capture began; entered 0: none."""

    event: str
    time: int
    lo: int = 0
    hi: int = 0
    flags: int = ACK
    ack: int = 0
    entered: int = 0

    @property
    def is_senders(self) -> bool:
        return self.event.endswith("_SEND") or self.event in {"DRIVER_START", "ACK"}

    def covers(self, byte: int) -> bool:
        return self.lo <= byte < self.hi


@dataclass
class Traffic:
    """A transfer's records in time order, and which of them the capture has.

    cpus: of each record. lost: whether each got lost. begin, end: what was before or after was
    never recorded.
    """

    records: list[Record]
    cpus: list[int]
    lost: list[bool]
    size: int
    first_seq: int
    ends: tuple[int, ...] = (SENDER, RECEIVER)
    begin: int = 0
    end: int = NEVER
    anchor: int = 0
    kept: list[Record] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)
    arrivals: dict[int, int] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """The logs of two CPUs; keeps what is in them, and when records are missing."""
        logs = [MagnetLog(0), MagnetLog(1)]
        for number, local, remote in (
            (SENDER, ("10.0.0.1", 1000), ("10.0.0.2", 80)),
            (RECEIVER, ("10.0.0.2", 80), ("10.0.0.1", 1000)),
        ):
            if number in self.ends:
                first = self.first_seq + self.anchor
                numbers = (
                    {"snd_nxt": first, "rcv_nxt": 7}
                    if number == SENDER
                    else {"snd_nxt": 7, "rcv_nxt": first}
                )
                numbers = {name: value % (1 << 32) for name, value in numbers.items()}
                logs[0].connect(number, local, remote, at=self.begin + number, **numbers)
        times: list[list[int]] = [[self.begin + n for n in self.ends], []]
        gaps: list[int | None] = [None, None]
        for record, cpu, lost in zip(self.records, self.cpus, self.lost, strict=True):
            number = SENDER if record.is_senders else RECEIVER
            if number not in self.ends or not self.begin <= record.time < self.end:
                continue
            if lost:
                logs[cpu].lose("ring_full", 1, name=_event(record), **_values(record, self))
                if gaps[cpu] is None:
                    gaps[cpu] = min(times[cpu][-4:], default=-NEVER)
                continue
            if (since := gaps[cpu]) is not None:
                self.windows.append((since, record.time))
                gaps[cpu] = None
            times[cpu].append(record.time)
            self.kept.append(record)
            logs[cpu].put(
                _event(record), record.time, number, record.lo + self.first_seq,
                record.hi + self.first_seq, flags=record.flags, entered=record.entered or -1,
                ack=record.ack + self.first_seq, size=record.hi - record.lo,
            ) if record.event != "ACK" else logs[cpu].put(
                "IP_RECV", record.time, number, 7, 7, ack=record.ack + self.first_seq
            )  # fmt: skip
        for since in gaps:
            if since is not None:
                self.windows.append((since, NEVER))
        return write_folder(folder, *logs)


def _event(record: Record) -> str:
    return "IP_RECV" if record.event == "ACK" else record.event


def _values(record: Record, traffic: Traffic) -> dict[str, int]:
    return {"seq_lo": record.lo + traffic.first_seq & 0xFFFFFFFF}


def make_traffic(choose: random.Random, size: int = 120, lossy: float = 0.0) -> Traffic:
    """A transfer of `size` bytes, in writes, segments and reads of any size.

    Segments are lost, sent again and overtake each other. Times are some ms apart.
    """
    found: list[Record] = []
    now = 5 * MS
    at = 0
    arrivals: list[tuple[int, int, int]] = []

    def soon(most: int = 4) -> int:
        return choose.randint(1, most * MS)

    def send(lo: int, hi: int, time: int, flags: int, most: float) -> int:
        """One transmission; the pieces of it that get lost are sent again."""
        found.append(Record("IP_SEND", time, lo, hi, flags))
        time += soon()
        found.append(Record("DEV_SEND", time, lo, hi, flags))
        cut = choose.choice([hi, choose.randint(lo + 1, hi)])
        last = time
        for one, two in ((lo, cut), (cut, hi)):
            if one == two:
                continue
            time += soon()
            found.append(Record("DRIVER_START", time, one, two, flags))
            if choose.random() < most:
                last = max(
                    last, send(one, two, time + soon(60) + 20 * MS, ACK | RETRANSMISSION, most / 2)
                )
                continue
            came = time + soon(25)
            if choose.random() < 0.1:  # seen by the driver, then dropped
                found.append(Record("DEV_RECV", came, one, two))
                last = max(last, send(one, two, came + soon(60), ACK | RETRANSMISSION, 0))
                continue
            found.append(Record("DEV_RECV", came, one, two))
            arrivals.append((came + soon(1), one, two))
            last = max(last, came)
        return last

    while at < size:
        length = min(choose.choice([1, 5, 30, 60]), size - at)
        entered = now
        now += soon(1)
        if choose.random() < 0.2:  # a call that failed with the same first byte
            found.append(Record("TCP_SEND", now, at, at + length))
            found.append(Record("SOCK_SEND", now + 1, at, at, entered=entered))
            now += soon(1)
            entered = now
            now += soon(1)
        found.append(Record("TCP_SEND", now, at, at + length + choose.randint(0, 9)))
        segment, wait = at, now
        while segment < at + length:
            end = min(segment + choose.choice([1, 10, 40]), at + length)
            wait += soon()
            send(segment, end, wait, ACK, 0.15)
            segment = end
        now = choose.choice([now, wait, wait + 40 * MS]) + soon(1)
        found.append(Record("SOCK_SEND", now, at, at + length, entered=entered))
        now += soon(30)
        at += length
    _receive(choose, found, arrivals, size)
    found.sort(key=lambda record: record.time)
    # Unique times, so that there is one truth.
    found = [replace(one, time=one.time + at) for at, one in enumerate(found)]
    cpus = [choose.randint(0, 1) for _ in found]
    lost = [choose.random() < lossy for _ in found]
    first = choose.choice([1000, (1 << 32) - 50, (1 << 31) - 60])
    return Traffic(found, cpus, lost, size, first)


def _receive(
    choose: random.Random, found: list[Record], arrivals: list[tuple[int, int, int]], size: int
) -> None:
    there: set[int] = set()
    reached = 0
    steps = []
    for time, lo, hi in sorted(arrivals):
        found.append(Record("IP_RECV", time, lo, hi))
        there.update(range(lo, hi))
        before = reached
        while reached in there:
            reached += 1
        if reached > before:
            told = time + choose.randint(1, MS)
            steps.append((told, reached))
            found.append(Record("TCP_RECV", told, before, reached))
            found.append(Record("ACK", told + choose.randint(1, 30) * MS, ack=reached))
    done = 0
    now = 0
    while done < size and steps:
        now = max(now, min(t for t, n in steps if n > done)) + choose.randint(1, 20 * MS)
        able = max(n for t, n in steps if t <= now)
        take = min(able - done, choose.choice([1, 20, 200]))
        found.append(Record("SOCK_RECV", now, done, done + take))
        done += take


Answer = tuple[str, dict[str, int]]


def explain(traffic: Traffic) -> list[Answer]:
    """For each byte its state and parts, by the words of docs/latency.md."""
    return [_Byte(traffic, byte).answer() for byte in range(traffic.size)]


class _Byte:
    def __init__(self, traffic: Traffic, byte: int) -> None:
        self.traffic, self.byte = traffic, byte
        self.both = len(traffic.ends) == 2
        self.times: dict[str, int] = {}
        self.overlapping = False
        self._look()

    def all(self, event: str) -> list[Record]:
        return [r for r in self.traffic.kept if r.event == event and r.covers(self.byte)]

    def _look(self) -> None:
        kept = self.traffic.kept
        times = self.times
        calls, reads = self.all("SOCK_SEND"), self.all("SOCK_RECV")
        self.overlapping = len(calls) > 1 or len(reads) > 1
        if calls:
            times["write"] = calls[0].entered
            same = [
                r.time
                for r in kept
                if r.event == "TCP_SEND" and r.lo == calls[0].lo and r.time >= calls[0].entered
            ]
            if same:
                times["tcp_send"] = min(same)
        if reads:
            times["read"] = reads[0].time
        sends = self.all("IP_SEND")
        self.again = max(0, len(sends) - 1, sum(r.flags & RETRANSMISSION != 0 for r in sends))
        if sends and not sends[0].flags & RETRANSMISSION:
            times["transmit"] = sends[0].time
        came = [r.time for r in self.all("IP_RECV")]
        arrived = min(came, default=NEVER)
        if came:
            times["tcp"] = arrived
        resent = max((r.time for r in sends if r.time <= arrived), default=-1)
        if SENDER in self.traffic.ends and not self.both:
            resent = sends[0].time if sends else -1
        if resent >= 0:
            times["resent"] = resent
        acks = [r.time for r in kept if r.event == "ACK" and r.ack > self.byte]
        if acks:
            times["ack"] = min(acks)
        limit = arrived if self.both else times.get("ack", NEVER)
        if RECEIVER in self.traffic.ends and not self.both:
            limit = arrived
        until = min([limit, *(r.time - 1 for r in sends if r.time > resent)])
        queued = [r.time for r in self.all("DEV_SEND") if resent <= r.time <= until]
        if queued:
            times["qdisc"] = min(queued)
        started = [r.time for r in self.all("DRIVER_START") if resent <= r.time <= until]
        if started:
            times["driver"] = max(started)
        seen = [r.time for r in self.all("DEV_RECV")]
        if seen:
            here = max((t for t in seen if t <= arrived), default=-1) if came else min(seen)
            if here >= times.get("driver", 0):
                times["driver_in"] = here
        ordered = [r.time for r in kept if r.event == "TCP_RECV" and r.hi > self.byte]
        if ordered:
            times["inorder"] = min(ordered)

    def answer(self) -> Answer:
        chain = CHAIN if self.both else CHAIN[6:]
        if self.traffic.ends == (SENDER,):
            chain = AGAIN_CHAIN if self.again else SENDER_CHAIN
        if RECEIVER in self.traffic.ends:
            self._find_complete()
        names = [name for name, _ in chain]
        known = [self.times.get(name, -1) for name in names]
        state = self._judge(names, known)
        parts: dict[str, int] = {}
        if state == "MEASURED":
            for (_, part), before, after in zip(chain[1:], known, known[1:], strict=False):
                if part == "round_trip":
                    parts["network"] = (after - before) // 2
                    parts["return"] = after - before - (after - before) // 2
                else:
                    parts[part] = parts.get(part, 0) + after - before
        return state, parts

    def _find_complete(self) -> None:
        if "tcp" not in self.times:
            return
        surely = perhaps = 0
        for byte in range(self.traffic.anchor, self.byte + 1):
            there = _arrival(self.traffic, byte)
            if there is not None:
                surely, perhaps = max(surely, there), max(perhaps, there)
                continue
            by = [r.time for r in self.traffic.kept if r.event == "TCP_RECV" and r.hi > byte]
            perhaps = max(perhaps, min(by, default=NEVER))
        if surely == perhaps:
            self.times["complete"] = surely

    def _judge(self, names: Sequence[str], known: Sequence[int]) -> str:
        begin = known[0] if known[0] >= 0 else -NEVER
        end = known[-1] if known[-1] >= 0 else NEVER
        state = self._judge_known(names, known)
        if state == "MISSING" and names[0] == "write" and known[0] < 0:
            end = NEVER  # a call is logged when it returns
        if any(a <= end and b >= begin for a, b in self.traffic.windows):
            return "LOST"
        return state

    def _judge_known(self, names: Sequence[str], known: Sequence[int]) -> str:
        if all(time >= 0 for time in known):
            rises = all(a <= b for a, b in pairwise(known))
            return "MEASURED" if rises and not self.overlapping else "CONTRADICTORY"
        text = "".join("x" if time >= 0 else "." for time in known)
        is_run = (
            "x" in text
            and "x.x" not in text.replace("..", ".").replace("..", ".")
            and ("." not in text.strip("."))
        )
        ended = is_run and text[-1] == "." and self.byte >= self._over()
        event = "SOCK_SEND" if names[0] == "write" else "IP_RECV"
        first = min((r.lo for r in self.traffic.kept if r.event == event and r.lo < r.hi),
                    default=NEVER)  # fmt: skip
        began = (is_run or "x" not in text) and text[0] == "." and self.byte < first
        if began and (text[-1] == "x" or ended or "x" not in text):
            return "BEGAN"
        if ended and text[0] == "x":
            return "ENDED"
        return "MISSING"

    def _over(self) -> int:
        kept = self.traffic.kept
        marks = []
        if RECEIVER in self.traffic.ends:
            marks.append(max((r.hi for r in kept if r.event == "SOCK_RECV"), default=0))
        if SENDER in self.traffic.ends:
            marks.append(max((r.ack for r in kept if r.event == "ACK"), default=0))
        return min(marks)


def _arrival(traffic: Traffic, byte: int) -> int | None:
    if not traffic.arrivals:
        for record in traffic.kept:
            if record.event == "IP_RECV":
                for each in range(record.lo, record.hi):
                    traffic.arrivals.setdefault(each, record.time)
    return traffic.arrivals.get(byte)


def find(folder: Path, traffic: Traffic) -> list[Answer | None]:
    """What the analysis says of each byte; None: nothing."""
    found: list[Answer | None] = [None] * traffic.size
    with open_log(folder) as log:
        latency = Latency(log)
        for some in latency:
            for at in range(len(some)):
                parts = {name: int(values[at]) for name, values in some.parts.items()}
                state = State(int(some.state[at])).name
                told = {name: ns for name, ns in parts.items() if ns}
                assert int(some.whole[at]) == sum(told.values())
                assert all(ns >= 0 for ns in parts.values())
                for number in range(int(some.ranges.lo[at]), int(some.ranges.hi[at])):
                    byte = (number - traffic.first_seq) % (1 << 32)
                    assert found[byte] is None, "a byte was put out twice"
                    found[byte] = (state, told)
    return found


def compare(traffic: Traffic) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        traffic.write(folder)
        found = find(folder, traffic)
    finally:
        shutil.rmtree(folder)
    for byte, (ours, right) in enumerate(zip(found, explain(traffic), strict=True)):
        if ours is None:  # no record covers it
            assert right[0] in ("BEGAN", "LOST", "MISSING", "ENDED"), (byte, right)
            continue
        state, parts = right
        wanted = (state, {name: ns for name, ns in parts.items() if ns})
        assert ours == wanted, f"byte {byte}"


EXAMPLES = examples(25)
ENDS = st.sampled_from([(SENDER, RECEIVER), (SENDER, RECEIVER), (SENDER,), (RECEIVER,)])


@given(seed=st.integers(0, 1 << 32), ends=ENDS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_whole_capture(seed: int, ends: tuple[int, ...]) -> None:
    traffic = make_traffic(random.Random(seed))
    traffic.ends = ends
    compare(traffic)


@given(seed=st.integers(0, 1 << 32), ends=ENDS, share=st.sampled_from([0.003, 0.02, 0.2]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_capture_with_losses(seed: int, ends: tuple[int, ...], share: float) -> None:
    traffic = make_traffic(random.Random(seed), lossy=share)
    traffic.ends = ends
    compare(traffic)


@given(seed=st.integers(0, 1 << 32), ends=ENDS, cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@example(seed=3142, ends=(SENDER, RECEIVER), cuts=(1.0, 0.5625))  # what had come before it began
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_capture_that_begins_late_or_ends_early(
    seed: int, ends: tuple[int, ...], cuts: tuple[float, float]
) -> None:
    traffic = make_traffic(random.Random(seed))
    traffic.ends = ends
    last = traffic.records[-1].time
    traffic.begin, traffic.end = (int(cut * last) for cut in sorted(cuts))
    before = [r for r in traffic.records if r.time < traffic.begin and r.event == "TCP_RECV"]
    traffic.anchor = max((r.hi for r in before), default=0)
    compare(traffic)
