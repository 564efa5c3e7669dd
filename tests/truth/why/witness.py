# SPDX-License-Identifier: Apache-2.0
"""What a link's trace (lab.link.NOTE) tells of a connection: spans of known truth.

What is near the border of two spans belongs to none: the link is exact to 0.3 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.truth.why.acts import Span

Trace = Any
Witness = Callable[[Trace, float], list[Span]]
EDGE_S, LEAST_S = 0.0003, 0.002
STALL_S, MARGIN_S, OPEN_S = 0.1, 0.08, 0.1
REPAIR = ("recovery", "rto_wait")


def inner(spans: list[Span]) -> list[Span]:
    """Without their borders, and without what is too short to be sharp."""
    return [
        (begin + EDGE_S, end - EDGE_S, truth)
        for begin, end, truth in spans if end - begin >= LEAST_S
    ]  # fmt: skip


def data_of(trace: Trace) -> Trace:
    """The packets with data from a to b."""
    return trace[(trace["way"] == 0) & (trace["data"] > 0)]


def passes(trace: Trace, byte: int) -> float:
    """When a segment with this byte first came to the link: TCP has sent it."""
    data = data_of(trace)
    return _first(data, (data["seq"] <= byte) & (data["seq"] + data["data"] > byte), "in_ns")


def arrives(trace: Trace, byte: int) -> float:
    """When this byte first came out of the link."""
    data = data_of(trace)
    got = (data["fate"] == 0) & (data["seq"] <= byte) & (data["seq"] + data["data"] > byte)
    return _first(data, got, "out_ns")


def heard(trace: Trace, after_s: float) -> float:
    """When the sender hears of what arrived then: the next packet from there."""
    back = trace[trace["way"] == 1]
    return _first(back, (back["fate"] == 0) & (back["in_ns"] >= after_s * 1e9), "out_ns")


def _first(packets: Trace, chosen: Any, column: str) -> float:
    found = packets[column][chosen]
    assert len(found), "the network did not do what was meant"
    return float(found.min()) / 1e9


def closes(size: int, truth: tuple[str, ...], from_s: float = 0.0) -> Witness:
    """Of so many bytes: truth until TCP has sent the last one, then it is closing, until all has
    arrived and that is known. A loss in the last flight is repaired then: both are true."""

    def tell(trace: Trace, called: float) -> list[Span]:
        begin, sent = passes(trace, 0) + from_s, passes(trace, size - 1)
        fins = trace[(trace["way"] == 0) & (trace["flags"] & 1 > 0)]
        came = _first(fins, fins["fate"] == 0, "out_ns")
        end = heard(trace, max(came, arrives(trace, size - 1)))
        data = data_of(trace)
        again = data[(data["in_ns"] > sent * 1e9) & (data["seq"] < size - 1)]
        after = ("closing", *REPAIR) if len(again) else ("closing",)
        return inner([(begin, sent, truth), (sent, end, after)])

    return tell


def repairs() -> Witness:
    """While a lost segment is not yet known to have come: from its loss on. Only that is judged."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data, until = data_of(trace), 0.0
        spans: list[Span] = []
        for one in data[data["fate"] > 1]:
            lost = float(one["in_ns"]) / 1e9
            later = data[(data["fate"] == 0) & (data["seq"] <= one["seq"])
                         & (data["seq"] + data["data"] > one["seq"])]  # fmt: skip
            if lost < until or not len(later):
                continue
            until = heard(trace, float(later["out_ns"].min()) / 1e9)
            spans.append((lost, until, REPAIR))
        return inner(spans)

    return tell


def resent() -> Witness:
    """After the first segment that was sent again, until the last one."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data = data_of(trace)
        most = np.maximum.accumulate(np.concatenate([[-1], data["seq"].astype(np.int64)[:-1]]))
        again = data["in_ns"][data["seq"] <= most]
        assert len(again) > 1, "nothing was sent again"
        return inner([(float(again[0]) / 1e9, float(again[-1]) / 1e9, REPAIR)])

    return tell


def holes(from_s: float = 0.0) -> Witness:
    """For a receiver: rx_reorder while a byte is missing before what has arrived, else rx_none."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data = data_of(trace)
        data = data[data["fate"] == 0]
        data = data[np.argsort(data["out_ns"], kind="stable")]
        spans: list[Span] = []
        reached, waiting = 0, dict[int, int]()
        begin, missing = float(data["out_ns"][0]) / 1e9, False
        for one in data:
            waiting[int(one["seq"])] = int(one["seq"] + one["data"])
            while starts := [low for low in waiting if low <= reached]:
                reached = max(reached, *(waiting.pop(low) for low in starts))
            if bool(waiting) != missing:
                now = float(one["out_ns"]) / 1e9
                spans.append((begin, now, ("rx_reorder",) if missing else ("rx_none",)))
                begin, missing = now, not missing
        spans.append((begin, float(data["out_ns"][-1]) / 1e9,
                      ("rx_reorder",) if missing else ("rx_none",)))  # fmt: skip
        first = float(data["out_ns"][0]) / 1e9 + from_s
        return inner([(max(low, first), high, truth) for low, high, truth in spans])

    return tell


def kept_back(first: int, size: int) -> Witness:
    """Messages of so many bytes of which the first segment goes out at once: the rest is kept back
    until it is sent (nagle), then the answer is waited for (app)."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data, spans = data_of(trace), []
        count = int((data["seq"].astype(np.int64) + data["data"]).max()) // size
        for number in range(2, count - 1):
            begin, rest, after = (
                passes(trace, number * size + at) for at in (0, first, size)
            )  # fmt: skip
            spans += [(begin, rest, ("nagle",)), (rest, after, ("app", "idle"))]
        return inner(spans)

    return tell


def opens(truth: tuple[str, ...], until_byte: int) -> Witness:
    """While it opens, from the first SYN on; then this truth, until the byte is sent."""

    def tell(trace: Trace, called: float) -> list[Span]:
        syns = trace[(trace["way"] == 0) & (trace["flags"] & 18 == 2)]
        answered = trace[(trace["way"] == 1) & (trace["flags"] & 18 == 18)]
        opened = _first(answered, answered["fate"] == 0, "out_ns")
        begin = float(syns["in_ns"][0]) / 1e9
        sent = passes(trace, until_byte - 1)
        return inner([(begin, opened, ("opening",)), (opened, sent, truth)])

    return tell


def of_the_last(tell: Witness) -> Witness:
    """The same, of the last connection that was opened."""

    def last(trace: Trace, called: float) -> list[Span]:
        syns = trace[(trace["way"] == 0) & (trace["flags"] & 18 == 2)]
        return tell(trace[trace["in_ns"] >= syns["in_ns"].max()], called)

    return last


def messages(
    *sizes: int, truth: tuple[str, ...], skip: int = 1, least_s: float = 0.006
) -> Witness:
    """Messages of these sizes in turn, each written in one call: truth from the first byte of each
    to the last, then, until the next one begins, there is nothing to send. A loss belongs to
    neither; nor does a message that went out in less than least_s: nothing bounded it."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data, spans = data_of(trace), []
        reached = int((data["seq"].astype(np.int64) + data["data"]).max())
        low, number = 0, 0
        while (high := low + sizes[number % len(sizes)]) < reached:
            begin, sent, after = (passes(trace, at) for at in (low, high - 1, high))
            if number >= skip:
                if sent - begin >= least_s:
                    spans.append((begin, sent, truth))
                lost = (data["fate"] > 1) & (data["seq"] >= low) & (data["seq"] < high)
                if not np.any(lost):
                    spans.append((sent, after, ("app", "idle")))
            low, number = high, number + 1
        return inner(spans)

    return tell


def stalls(
    stalled: tuple[str, ...], flows: tuple[str, ...] = (), received_s: float = 0.0
) -> Witness:
    """While no data passes for STALL_S, the one truth; between, without a margin, the other one.

    received_s: judged is who receives; so long before new data comes, its reader went on.
    """
    seen_by = "out_ns" if received_s else "in_ns"

    def tell(trace: Trace, called: float) -> list[Span]:
        data, spans = data_of(trace), []
        at = np.sort(data[seen_by][data["fate"] == 0]) / 1e9
        begin = float(at[0]) + 0.2
        for number in np.flatnonzero(np.diff(at) > STALL_S):
            low, high = float(at[number]), float(at[number + 1])
            spans.append((begin, low - MARGIN_S, flows))
            spans.append((low + MARGIN_S / 2, high - received_s, stalled))
            begin = high + MARGIN_S
        assert spans, "nothing stalled"
        spans.append((begin, float(at[-1]), flows))
        return inner([one for one in spans if one[2]])

    return tell


def outage(flows: tuple[str, ...]) -> Witness:
    """The link drops everything for a while: from the last ACK of what came before until the sender
    hears of what came after, it waits for a loss to be found and repaired."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data = data_of(trace)
        down = data[data["fate"] == 2]["in_ns"].astype(np.int64)
        assert len(down), "nothing was lost"
        after = data[(data["fate"] == 0) & (data["in_ns"] > down.max())]
        end = heard(trace, float(after["out_ns"].min()) / 1e9)
        back = trace[(trace["way"] == 1) & (trace["fate"] == 0)]["out_ns"] / 1e9
        last = float(back[back < end - 1e-6].max())
        begin = passes(trace, 0) + OPEN_S
        return inner([(begin, last, flows), (last, end, REPAIR),
                      (end, float(data["in_ns"].max()) / 1e9, flows)])  # fmt: skip

    return tell


def dies(alive: tuple[str, ...]) -> Witness:
    """Until the first segment that is dropped since the link is down: this; then nothing arrives
    any more. From the first segment that is sent again on, it waits for a loss to be repaired;
    before, it waits for that too, but the program for its next message as well."""

    def tell(trace: Trace, called: float) -> list[Span]:
        data = data_of(trace)
        down = data[data["fate"] == 2]
        assert len(down) > 1, "nothing was lost"
        begin, dead = passes(trace, 0) + OPEN_S, float(down["in_ns"][0]) / 1e9
        return [*inner([(begin, dead, alive)]), *resent()(down, called)]

    return tell
