# SPDX-License-Identifier: Apache-2.0
"""Joins a packet capture with the records of the same traffic, some packets at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.beside.matching import (
    KINDS,
    NONE,
    REACH_NS,
    RECORD,
    SLACK_NS,
    TIME,
    Matches,
    match,
)
from tcpkmon.formats.analysis.beside.states import LIMIT_NAMES, Rows, read, words
from tcpkmon.formats.analysis.beside.window import Window
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.analysis.why.limits import in_flight
from tcpkmon.formats.base.arrow import encode, import_pyarrow, with_texts
from tcpkmon.formats.base.tcp import CA_STATES, STATES
from tcpkmon.formats.base.text import address_of
from tcpkmon.formats.packets.headers import Segments, parse
from tcpkmon.formats.packets.reading import Block, PacketFile, with_comment

DIRECTIONS = ("out", "in")
_SPAN_NS = 2_000_000_000
"""The records of so much time are looked at at once."""
_STATE = {
    "limit": None, "cwnd": "snd_cwnd_segs", "ssthresh": "snd_ssthresh", "srtt_us": "srtt_us",
    "min_rtt_us": "min_rtt_us", "in_flight": None, "lost": "lost_out", "retrans": "retrans_out",
    "snd_una": "snd_una", "snd_nxt": "snd_max", "rcv_nxt": "rcv_nxt", "snd_wnd": "snd_wnd",
    "rcv_wnd": "rcv_wnd", "ca_state": "ca_state", "state": "state",
}  # fmt: skip
"""The columns of the table for each state, and the snapshots' columns that they are."""
_TEXTS = {"limit": LIMIT_NAMES, "ca_state": CA_STATES, "state": STATES}
_NULL = {"seq": 0, "ssthresh": (1 << 31) - 1, "min_rtt_us": (1 << 32) - 1, "srtt_us": 0}


@dataclass
class Joined:
    """Some packets with what was found. blocks: of the new file. table(): see docs/open-with.md."""

    blocks: list[bytes]
    rows: Rows | None
    columns: dict[str, Array]
    segments: Segments
    packet: Array
    is_in: Array
    kind: Array
    before: Array
    after: Array

    def table(self) -> Any:
        """A pyarrow.Table with a row for each packet and end of a connection."""
        pyarrow = import_pyarrow()
        at, segments = self.packet, self.segments
        is_tcp = segments.is_tcp[at]
        known = self.kind != NONE
        own = np.where(self.before >= 0, self.before, self.after)
        found: dict[str, Any] = {
            "packet": self.columns["numbers"][at],
            "time": pyarrow.array(self.columns["times_ns"][at], pyarrow.timestamp("ns", "UTC")),
        }
        for name, ends in (("src", segments.source), ("dst", segments.target)):
            text = with_texts(encode(_void(ends[at, :16])), address_of)
            found[name] = _masked(text, is_tcp)
            port = ends[at, 16].astype(np.int64) << 8 | ends[at, 17]
            found[f"{name}_port"] = pyarrow.array(port, mask=~is_tcp)
        for name in ("seq", "ack", "length", "flags"):
            found[name] = pyarrow.array(getattr(segments, name)[at], mask=~is_tcp)
        found["direction"] = _named(self.is_in.astype(np.int64), DIRECTIONS, known)
        found["match"] = _named(self.kind, KINDS, np.ones(len(at), np.bool_))
        matched = known & (self.kind != TIME)
        rows = self.rows
        found["conn_id"] = _picked(rows, "conn_id", own, known)
        found["record"] = _picked(rows, "seq", self.before, matched, _NULL["seq"])
        delay = np.zeros(len(at))
        if rows is not None and len(rows):
            delay = (rows.real_ns[self.before] - self.columns["times_ns"][at]) / 1000
        found["delay_us"] = pyarrow.array(delay, mask=~matched)
        for end, places in (("before", self.before), ("after", self.after)):
            for name, column in _STATE.items():
                values = _picked(rows, column or name, places, places >= 0, _NULL.get(name))
                if name in _TEXTS:
                    values = _named(np.asarray(values.fill_null(0)), _TEXTS[name], places >= 0)
                found[f"{end}_{name}"] = values
        lacks = (self.before < 0) | (self.after < 0)
        found["lost_records"] = pyarrow.array(_lost(rows, self.before, self.after), mask=lacks)
        return pyarrow.table(found)


@dataclass
class _Part:
    """Some blocks, and the packets among them; low: the number in its Batch of the first one."""

    blocks: list[Block]
    low: int
    columns: dict[str, Array]
    segments: Segments


class Join:
    """Goes through a packet file once. counts: packets by the best of KINDS on any side, and
    "other": what is no segment of TCP, or has none of its headers.
    """

    def __init__(self, source: Source, packets: PacketFile) -> None:
        self._packets = packets
        self._window = Window(read(source))
        self._has_transmit = source.locations() is not None and source.records("TRANSMIT")
        self.counts: Counter[str] = Counter()
        self.late = 0
        """Packets that came so long after later ones that their records were gone."""
        self._low_ns = -(1 << 62)

    def pieces(self, with_comments: bool = True) -> Iterator[Joined]:
        """All packets in file order. DamagedError, UsageError, FileError."""
        before: _Part | None = None
        for part in self._parts():
            if before is not None:
                yield self._join(before, part, with_comments)
            before = part
        if before is not None:
            yield self._join(before, None, with_comments)
        self._window.finish()

    def _parts(self) -> Iterator[_Part]:
        for batch in self._packets.batches():
            columns = batch.columns()
            segments = parse(batch.data, columns)
            starts = [low for low, _ in _spans(columns["times_ns"])] or [0]
            first = 0
            for low, high in zip(starts, [*starts[1:], len(batch)], strict=True):
                last = len(batch.blocks)
                if high < len(batch):
                    last = next(n for n in range(first, last) if batch.blocks[n].packet == high)
                some = {name: values[low:high] for name, values in columns.items()}
                yield _Part(batch.blocks[first:last], low, some, segments.take(slice(low, high)))
                first = last

    def _join(self, part: _Part, following: _Part | None, with_comments: bool) -> Joined:
        """following: its packets have records too, which those of the part must not take."""
        times, segments, window = part.columns["times_ns"], part.segments, self._window
        count = len(times)
        if count:
            # Packets of several interfaces are not in order; what is too late finds no record.
            lowest, highest = max(int(times.min()), self._low_ns), int(times.max())
            self.late += int((times < self._low_ns - REACH_NS).sum())
            self._low_ns = max(self._low_ns, highest - REACH_NS)
            window.move(lowest - REACH_NS - SLACK_NS, highest + 2 * REACH_NS)
            if following is not None:
                more = np.flatnonzero(following.columns["times_ns"] <= highest + REACH_NS)
                times = np.concatenate([times, following.columns["times_ns"][more]])
                segments = segments.joined(following.segments.take(more))
        sides = []
        for is_in in (False, True):
            ends = [segments.source, segments.target][:: -1 if is_in else 1]
            pairs = window.find(np.concatenate(ends, axis=1))
            pairs[~segments.is_tcp] = -1
            found = match(window, segments, times, pairs, not is_in, self._has_transmit)
            sides.append(found.first(count))
        for side in sides:
            window.used[side.before[side.kind == RECORD]] = True
        rows = self._collect(part.segments, sides)
        texts = _comments(window.rows, rows) if with_comments else {}
        blocks = [
            with_comment(one, texts.get(one.packet - part.low, [])) if one.packet >= 0 else one.raw
            for one in part.blocks
        ]
        return Joined(blocks, window.rows, part.columns, part.segments, *rows)

    def _collect(
        self, segments: Segments, sides: list[Matches]
    ) -> tuple[Array, Array, Array, Array, Array]:
        """packet, is_in, kind, before, after: a row for each end that was found, else one."""
        out, into = sides
        count = len(out.kind)
        best = np.where(out.kind == NONE, into.kind, out.kind)
        both = (out.kind != NONE) & (into.kind != NONE)
        best = np.where(both, np.minimum(out.kind, into.kind), best)
        names = np.where(segments.is_tcp, best, len(KINDS))
        for number, times in zip(*np.unique(names, return_counts=True), strict=True):
            self.counts[(*KINDS, "other")[int(number)]] += int(times)
        # Of two ends the later rows are those that arrive.
        packet = np.concatenate([np.arange(count)] * 2)
        kind = np.concatenate([out.kind, into.kind])
        keep = kind != NONE
        keep[:count] |= into.kind == NONE
        at = np.flatnonzero(keep)
        at = at[np.argsort(packet[at], kind="stable")]
        is_in = np.arange(2 * count) >= count
        before, after = (
            np.concatenate([getattr(side, name) for side in sides]) for name in ("before", "after")
        )
        return packet[at], is_in[at], kind[at], before[at], after[at]


def _spans(times_ns: Array) -> Iterator[tuple[int, int]]:
    """Parts of some packets, each of a short time."""
    low, count = 0, len(times_ns)
    while low < count:
        far = np.abs(times_ns[low:] - times_ns[low]) > _SPAN_NS
        high = low + int(np.argmax(far)) if far.any() else count
        yield low, high
        low = high


def _comments(
    rows: Rows | None, found: tuple[Array, Array, Array, Array, Array]
) -> dict[int, list[str]]:
    """The comments of packets, by their numbers in the part."""
    if rows is None:
        return {}
    packet, is_in, kind, before, after = found
    needed = np.unique(np.concatenate([before, after]))
    needed = needed[needed >= 0]
    texts = dict(zip(needed.tolist(), words(rows.take(needed)), strict=True))
    seqs = dict(zip(needed.tolist(), rows.seq[needed].tolist(), strict=True))
    lost = _lost(rows, before, after)
    made: dict[int, list[str]] = {}
    listed = (one.tolist() for one in (packet, is_in, kind, before, after, lost))
    for number, arrives, how, first, second, missing in zip(*listed, strict=True):
        if how == NONE:
            continue
        said = made.setdefault(number, [])
        way = DIRECTIONS[arrives]
        if first >= 0:
            by = "by time" if how == TIME else f"{KINDS[how]} {seqs[first] or ''}".rstrip()
            said.append(f"tcpkmon {way} before ({by}): {texts[first]}")
        if second >= 0:
            gap = f" ({missing} records lost between)" if first >= 0 and missing else ""
            said.append(f"tcpkmon {way} after{gap}: {texts[second]}")
    return made


def _lost(rows: Rows | None, before: Array, after: Array) -> Array:
    if rows is None or not len(rows):
        return np.zeros(len(before), np.int64)
    return np.asarray(rows.lost[after] - rows.lost[before])


def _picked(
    rows: Rows | None, name: str, at: Array, valid: Array, null: int | None = None
) -> Any:
    """Values of rows as an Arrow array of int64."""
    pyarrow = import_pyarrow()
    if rows is None or not len(rows):
        return pyarrow.nulls(len(at), pyarrow.int64())
    if name == "in_flight":
        values = in_flight(rows.take(np.maximum(at, 0)).columns)
    elif name in ("seq", "limit"):
        values = getattr(rows, name)[at].astype(np.int64)
    else:
        values = rows[name][at].astype(np.int64)
    mask = ~valid if null is None else ~valid | (values == null)
    return pyarrow.array(values, mask=mask)


def _named(values: Array, names: tuple[str, ...], valid: Array) -> Any:
    pyarrow = import_pyarrow()
    indices = pyarrow.array(np.clip(values, 0, len(names)).astype(np.int32), mask=~valid)
    return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array([*names, "other"]))


def _void(rows: NDArray[np.uint8]) -> Array:
    return np.ascontiguousarray(rows).view("V16").reshape(len(rows))


def _masked(values: Any, valid: Array) -> Any:
    pyarrow = import_pyarrow()
    return pyarrow.compute.if_else(pyarrow.array(valid), values.cast(pyarrow.string()), None)
