# SPDX-License-Identifier: Apache-2.0
"""Goes through the records of a connection, and says what happened as events of a script.

A record tells the state at its moment. What the kernel sent between two records is what snd_nxt and
segs_out rose by; only a retransmission has a record of its own. So a script of the default
locations says when a segment was sent at the earliest and at the latest, by the records around it
and by next_tx_us, the time of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.why import Block, Source
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.limits import MOST_SCRIPT_RECORDS
from tcpkmon.formats.base.ports import ANY, find_missing, match_ports, parse_connection
from tcpkmon.formats.base.sequence import ahead
from tcpkmon.formats.base.tcp import ARRIVED, Location, State
from tcpkmon.formats.base.text import address_of
from tcpkmon.formats.psc.header import KIND_KERNEL
from tcpkmon.formats.psc.reader import Capture

# Reads the records of one connection, and what a script needs to know of it.

NEEDED = (
    "location", "callvalue", "conn_id", "lport", "rport", "laddr", "raddr", "state", "ca_state",
    "ca_name", "seg_seq", "seg_ack", "seg_len", "seg_flags", "snd_una", "snd_nxt", "snd_fack",
    "write_seq", "rcv_nxt", "copied_seq", "snd_wnd", "max_window", "snd_wscale", "rcv_wscale",
    "mss", "advmss", "snd_cwnd_segs", "snd_ssthresh", "srtt_us", "packets_out", "sacked_out",
    "lost_out", "retrans_out", "total_retrans", "backoff", "dsack_dups", "segs_in", "segs_out",
    "data_segs_out", "first_tx_us", "next_tx_us", "sk_pacing_status", "ecn_flags",
)  # fmt: skip
"""The columns of which a script is made."""
_HZ = 100
"""The slowest, where the capture does not tell."""
Row = dict[str, int]
"""A record: its columns; `ns`, CLOCK_MONOTONIC; `lost`, records missing before it; `ca`, 1 + the
place of its ca_name in Recorded.algorithms, 0: it has none."""


@dataclass
class Recorded:
    """One connection. rows: in the capture's order. local, remote: addresses. sysctl: of the host.
    algorithms: the congestion controls that it used."""

    path: str
    rows: list[Row]
    local: str
    remote: str
    sysctl: dict[str, str]
    kernel: str
    algorithms: list[str]
    tick_ns: int
    """Of the kernel's timers."""
    sees_closing: bool
    """Whether it has the segments that arrived after an end was closed."""

    @property
    def name(self) -> str:
        """Both ends, as -p takes them."""
        return f"{self.rows[0]['lport'] or self.rows[-1]['lport']}.{self.rows[-1]['rport']}"


def read_connection(source: Source, connection: str) -> Recorded:
    """The records of the connection LPORT.RPORT, of the end with this local port if the capture has
    both. UsageError where it lacks a column; FileError where it has no such connection, or several.
    """
    pair = parse_connection(connection)
    if lacks := [name for name in NEEDED if name not in source.known]:
        raise UsageError(
            f"{source.reader.path} lacks what a script is made of: {', '.join(lacks[:5])}",
            "capture the schema tcp with --columns all",
        )
    source.names = [*dict.fromkeys((*source.names, *NEEDED))]
    chosen: dict[int, tuple[int, int]] = {}
    for piece in source.read():
        ids, lport, rport = (piece[name] for name in ("conn_id", "lport", "rport"))
        at = np.flatnonzero(match_ports((pair,), lport, rport))
        numbers, firsts = np.unique(ids[at], return_index=True)
        for one, first in zip(numbers.tolist(), at[firsts].tolist(), strict=True):
            chosen[one] = (int(lport[first]), int(rport[first]))
    if note := find_missing((pair,), set(chosen.values()), str(source.reader.path)):
        raise FileError(note)
    mine = [one for one, ends in chosen.items() if pair in (ends, (ends[0], ANY))] or [*chosen]
    if len(mine) > 1:
        raise FileError(f"{connection} are the ports of {len(mine)} connections in turn",
                        "tcpkmon cut leaves one: give --since and --until")  # fmt: skip
    # Its records from before it had its ports belong to it too: so the capture is read again.
    (block,) = source.blocks(ids=np.array(mine, np.uint64))
    return _recorded(source, block)


def _recorded(source: Source, block: Block) -> Recorded:
    count = len(block)
    if count > MOST_SCRIPT_RECORDS:
        raise UsageError(f"the connection has {count:,} records, and a script at most "
                         f"{MOST_SCRIPT_RECORDS:,}",
                         "tcpkmon cut --since --until takes a part")  # fmt: skip
    columns = {
        name: block[name].astype(np.int64).tolist()
        for name in NEEDED if name not in ("laddr", "raddr", "ca_name")
    }  # fmt: skip
    texts = [bytes(one).rstrip(b"\0") for one in
             np.ascontiguousarray(block["ca_name"]).view("S16").ravel()]  # fmt: skip
    names = [one for one in dict.fromkeys(texts) if one]
    columns["ca"] = [names.index(one) + 1 if one else 0 for one in texts]
    columns["ns"], columns["lost"] = block.times_ns.tolist(), block.lost.tolist()
    rows: list[Row] = [dict(zip(columns, values, strict=True))
                       for values in zip(*columns.values(), strict=True)]  # fmt: skip
    local, remote = (
        address_of(np.ascontiguousarray(block[name]).tobytes()[-16:])
        for name in ("laddr", "raddr")
    )
    settings = source.settings()
    hz = settings.get("hz")
    system = settings.get("system")
    sysctl = system.get("sysctl") if isinstance(system, dict) else None
    if isinstance(reader := source.reader, Capture):
        kernel: Any = reader.header.text(KIND_KERNEL)
    else:
        kernel = reader.format.header.get("kernel")
    known = {name: value for name, value in (sysctl if isinstance(sysctl, dict) else {}).items()
             if isinstance(name, str) and isinstance(value, str)}  # fmt: skip
    algorithms = [one.decode("ascii", "replace") for one in names]
    return Recorded(str(source.reader.path), rows, local, remote, known,
                    kernel if isinstance(kernel, str) else "", algorithms,
                    1_000_000_000 // (hz if isinstance(hz, int) and hz > 0 else _HZ),
                    source.records("SEGMENT_CLOSING"))  # fmt: skip


def find_event(found: Recorded, name: str, codes: Mapping[str, int]) -> int:
    """When the first record of a location is, CLOCK_MONOTONIC. codes: numbers by name. UsageError,
    FileError."""
    location = name.upper().replace("-", "_")
    if location not in codes:
        raise UsageError(f"--around {name}: no location of this name", "see docs/locations.md")
    times = [row["ns"] for row in found.rows if row["location"] == codes[location]]
    if not times:
        raise FileError(f"connection {found.name} has no {location}", "give --since and --until")
    return times[0]


# What the peer has selectively acknowledged: deduced, as no record has the options of a segment.
#
# Each ACK's effect is known: how many segments are sacked after it, and the highest one. Mostly one
# set of segments alone has that effect. Where several have it, the likeliest is taken, and the
# script says at that line that it is an assumption.

_MOST_BLOCKS = 4
SackBlock = tuple[int, int]


@dataclass
class Board:
    """Sequence numbers count from the SYN's, so that data begins at 1. segments: what was sent and
    is not acknowledged, each from .. to (exclusive), in order. sacked: begins of those that are.
    retried: begins of those that were sent again, the first of it first."""

    segments: list[SackBlock] = field(default_factory=list)
    sacked: set[int] = field(default_factory=set)
    retried: list[int] = field(default_factory=list)

    def send(self, low: int, high: int, mss: int) -> None:
        """New data, which leaves in segments of mss bytes."""
        step = max(mss, 1)
        for at in range(low, high, step):
            self.segments.append((at, min(at + step, high)))

    def retransmit(self, low: int, size: int) -> None:
        """Data is sent again."""
        for begin, _ in self.segments:
            if low <= begin < low + max(size, 1):
                if begin in self.retried:
                    self.retried.remove(begin)
                self.retried.append(begin)

    def acknowledge(
        self, una: int, sacked: int, highest: int, is_duplicate: bool
    ) -> tuple[list[SackBlock], str]:
        """An ACK, by its effect: una, and how many segments are sacked up to `highest` after it.
        is_duplicate: the peer told of data that it got twice. Returns the blocks of its SACK
        option, and what is assumed, "" if nothing is."""
        lost = [one for one in self.segments if one[0] < una]
        again = [one for one in self.retried if one < una]
        self.segments = [one for one in self.segments if one[1] > una]
        begins = {one[0] for one in self.segments}
        self.sacked &= begins
        self.retried = [one for one in self.retried if one in begins]
        if sacked < len(self.sacked):
            self.sacked = set()  # the kernel forgot them, as after a timeout
        before = set(self.sacked)
        new, assumed = self._new(sacked - len(self.sacked), una, highest)
        self.sacked |= new
        blocks = self._blocks(new)
        if is_duplicate:
            extra = (again or self.retried)[-1:]
            of = [one for one in (*lost, *self.segments) if one[0] in extra]
            if of:
                return [of[0], *blocks][:_MOST_BLOCKS], "which segment the peer got twice"
            return blocks, "the peer got a segment twice, which is left out: none is known"
        if before and not new:
            blocks = self._blocks(before)
        return blocks, assumed

    def _new(self, count: int, una: int, highest: int) -> tuple[set[int], str]:
        if count <= 0:
            return set(), ""
        # The first one has not arrived, or the ACK would acknowledge it.
        free = [one for one in self.segments
                if one[0] not in self.sacked and una < one[0] and one[1] <= highest]  # fmt: skip
        top = max((one[1] for one in self.segments if one[0] in self.sacked), default=0)
        above = [one[0] for one in free if one[1] > top]
        holes = [one[0] for one in free if one[1] <= top]
        if above:
            taken = above[-count:]
            sure = count == 1 or len(taken) == len(above)
            if (left := count - len(taken)) > 0:
                more, assumed = self._fill(holes, left)
                return {*taken, *more}, assumed
            return {*taken}, "" if sure else "the newest segments are in one block"
        more, assumed = self._fill(holes, count)
        return more, assumed

    def _fill(self, holes: list[int], count: int) -> tuple[set[int], str]:
        if len(holes) <= count:
            return {*holes}, ""
        tried = [one for one in self.retried if one in holes]
        if len(tried) == count:
            return {*tried}, ""
        order = [*tried, *(one for one in holes if one not in tried)]
        return {*order[:count]}, "which hole was filled: the first that was sent again"

    def _blocks(self, first: set[int]) -> list[SackBlock]:
        """The sacked segments as ranges; those that have one of `first` come first."""
        made: list[SackBlock] = []
        for low, high in self.segments:
            if low not in self.sacked:
                continue
            if made and made[-1][1] == low:
                made[-1] = (made[-1][0], high)
            else:
                made.append((low, high))
        made.reverse()
        made.sort(key=lambda one: not any(one[0] <= at < one[1] for at in first))
        return made[:_MOST_BLOCKS]


LOCKED = (
    *ARRIVED, Location.RETRANSMIT, Location.STATE_CHANGE, Location.CONG_STATE, Location.CWND_UNDO,
    Location.DESTROY,
)  # fmt: skip
"""Locations whose state is of one moment."""
_TIMERS = {
    Location.RTO: "retransmission", Location.LOSS_PROBE: "loss probe's",
    Location.ZERO_WINDOW_PROBE: "window probe's", Location.REO_TIMEOUT: "reordering",
}  # fmt: skip
_CLOSES = (State.FIN_WAIT1, State.LAST_ACK)
_GONE = (State.TIME_WAIT, State.CLOSE)
_READS = (State.ESTABLISHED, State.FIN_WAIT1, State.FIN_WAIT2)
_FIN, _PSH, _ACK, _URG, _ECE, _CWR = 1, 8, 16, 32, 64, 128
_UNSCALED = 65535
_TICKS = 2
"""After a timer, events come so much later: it expires at a tick, and an answer to what it sent
that is faster than the path counts as one to something else (tcp_rack_advance())."""
ASSERTED = {
    "ca_state": "tcpi_ca_state", "snd_cwnd_segs": "tcpi_snd_cwnd",
    "snd_ssthresh": "tcpi_snd_ssthresh", "packets_out": "tcpi_unacked",
    "sacked_out": "tcpi_sacked", "lost_out": "tcpi_lost", "retrans_out": "tcpi_retrans",
    "total_retrans": "tcpi_total_retrans", "backoff": "tcpi_backoff",
}  # fmt: skip
"""Columns, and what TCP_INFO calls them."""


@dataclass(frozen=True)
class Event:
    """A line of the script. at_ns, until_ns: when, CLOCK_MONOTONIC; the same where it is exact.
    note: what stands before it as a comment."""

    at_ns: int
    until_ns: int
    text: str
    note: str = ""
    values: Mapping[str, int] = field(default_factory=dict)
    """Of TCP_INFO, that are asserted then."""


class Walk:
    """rows: of an established connection, the first one the state from which on it goes.
    descriptor: of the socket. not_asserted: columns of ASSERTED. sees_closing: see Recorded. base:
    sequence numbers before the first byte, sent and received. tick_ns: of the kernel's timers."""

    def __init__(
        self, rows: Sequence[Row], base: tuple[int, int], descriptor: int, first: Row,
        not_asserted: Sequence[str] = (), sees_closing: bool = True, tick_ns: int = 4_000_000,
    ) -> None:  # fmt: skip
        self._sees_closing, self._tick_ns = sees_closing, tick_ns
        self.shift_ns = 0
        """By how much later than recorded events are, by now."""
        self._timed = False
        self.rows, self._base, self._descriptor = rows, base, descriptor
        self.events: list[Event] = []
        self.board = Board()
        self.assumed = 0
        self.gap: tuple[int, int] | None = None
        """Of the first records missing that may be of this connection: how many, and when."""
        self.passed_gaps = 0
        """Records missing of which the numbers show that none is of this connection."""
        self._asserted = {key: name for key, name in ASSERTED.items() if key not in not_asserted}
        self._last = first
        self._sent = self._out(first["snd_nxt"])
        self.written = self._sent
        self._read = first["copied_seq"]
        self._pure = _pure(first)
        self._closed = self._probing = False

    def _out(self, seq: int) -> int:
        return ahead(seq, self._base[0])

    def _in(self, seq: int) -> int:
        return ahead(seq, self._base[1])

    def run(self) -> list[Event]:
        """All events, up to the first gap."""
        afters: list[Row | None] = []
        """For each record the next one in LOCKED."""
        after = None
        for row in reversed(self.rows):
            afters.append(after)
            after = row if row["location"] in LOCKED else after
        for row, after in zip(self.rows, reversed(afters), strict=True):
            if row["location"] in _TIMERS:
                self._add(row["ns"], row["ns"], "",
                          f"the {_TIMERS[row['location']]} timer expires")  # fmt: skip
                self._probing |= row["location"] == Location.ZERO_WINDOW_PROBE
                self._timed = True
            if row["location"] not in LOCKED and row["location"] not in (Location.RESET_SENT,
                                                                         Location.RESET_RECEIVED):
                continue
            if missing := row["lost"] - self._last["lost"]:
                if not self._misses_nothing(row):
                    self.gap = missing, row["ns"]
                    return self.events
                self.passed_gaps += missing
            self._between(row)
            if self._at(row, after):
                break
            self._last = row
        return self.events

    def _misses_nothing(self, row: Row) -> bool:
        """Whether the counters say that between the last record and this one nothing of which a
        script is made happened."""
        last = self._last
        arrived = int(row["location"] in ARRIVED)
        again = int(row["location"] == Location.RETRANSMIT)
        return (row["segs_in"] - last["segs_in"] == arrived
                and row["total_retrans"] == last["total_retrans"] and not again)  # fmt: skip

    def _add(self, at: int, until: int, text: str, note: str = "") -> None:
        self.assumed += note.startswith("assumed")
        shift = self.shift_ns
        self.events.append(Event(at + shift, max(at, until) + shift, text, note))

    def _between(self, row: Row) -> None:
        """What happened since the last record, of which this record's state tells."""
        begin, now = self._last["ns"], row["ns"]
        self._reads(row, begin)
        # Without an arrival on record, what arrived (a FIN, see SEGMENT_CLOSING) came later.
        of = row if self._last["location"] in ARRIVED else self._last
        pure, ack = _pure(row), self._in(of["rcv_nxt"])
        seq = self._sent
        if self._probing and pure > self._pure:
            seq, self._probing = self._out(row["snd_una"]) - 1, False
        again = row["location"] == Location.RETRANSMIT
        if pure > self._pure and not self._closed:
            many = pure - self._pure > 1 and row["rcv_nxt"] != self._last["rcv_nxt"]
            for _ in range(pure - self._pure):
                self._add(begin, now, f"> . {seq}:{seq}(0) ack {ack} <...>",
                          "assumed: what each of these ACKs says" if many else "")
        self._pure = pure
        high = self._out(row["snd_nxt"])
        last_sent = _time_of(row["next_tx_us"], begin, now)
        if row["sk_pacing_status"] or last_sent is None:
            last_sent = now
        waits = self._sent < self.written
        first = begin
        if not waits and high > self._sent:
            first = _time_of(row["first_tx_us"], begin, last_sent) or begin
            if first == begin and self._last["packets_out"] == 0:
                first = last_sent
        self._writes(row, first)
        if high > self._sent:
            self._sends(high, first, last_sent, row, ack)
        if again:
            self._retransmits(row)

    def _reads(self, row: Row, begin: int) -> None:
        size = ahead(row["copied_seq"], self._read)
        if size > 0 and self._last["state"] in _READS:
            fin = ahead(row["copied_seq"], self._last["rcv_nxt"]) > 0
            if (size := size - fin) > 0:
                self._add(begin, begin, f"read({self._descriptor}, ..., {size}) = {size}")
            self._read = row["copied_seq"]

    def _writes(self, row: Row, at: int) -> None:
        high = self._out(row["write_seq"]) - self._closed
        if (size := high - self.written) > 0:
            self._add(at, at, f"write({self._descriptor}, ..., {size}) = {size}")
            self.written = high

    def _sends(self, high: int, begin: int, end: int, row: Row, ack: int) -> None:
        fin = self._closed and high == self._out(row["write_seq"]) and high > self.written
        size = high - self._sent - fin
        self._add(begin, end, f"> {'F' * fin}. {self._sent}:{self._sent + size}({size}) ack {ack} "
                              "<...>")  # fmt: skip
        self.board.send(self._sent, self._sent + size, row["mss"])
        if fin:
            self.board.send(high - 1, high, 1)
        self._sent = high

    def _retransmits(self, row: Row) -> None:
        low, size = self._out(row["seg_seq"]), row["seg_len"]
        fin = bool(row["seg_flags"] & _FIN)
        self.board.retransmit(low, size)
        self._pure += not size
        self._add(row["ns"], row["ns"], f"> {'F' * fin}. {low}:{low + size}({size}) "
                  f"ack {self._in(row['rcv_nxt'])} <...>", "sent again")  # fmt: skip

    def _at(self, row: Row, after: Row | None) -> bool:
        """The record itself. Returns whether the script ends with it."""
        where = row["location"]
        if where in ARRIVED:
            if self._timed:
                self._timed = False
                self.shift_ns += _TICKS * self._tick_ns
            self._assert(row)
            self._arrives(row, after or row)
        elif where == Location.STATE_CHANGE and row["callvalue"] in _CLOSES:
            self._closed = True
            self._add(row["ns"], row["ns"], f"shutdown({self._descriptor}, SHUT_WR) = 0")
            if not self._sees_closing:
                self._ends_here(row)
                return True
        elif where == Location.RESET_RECEIVED:
            self._add(row["ns"], row["ns"], f"< R. {self._in(row['rcv_nxt'])}:"
                      f"{self._in(row['rcv_nxt'])}(0) ack {self._out(row['snd_nxt'])} win 0",
                      "assumed: the numbers of the reset, of which only the time is "
                      "recorded")  # fmt: skip
            return True
        elif where == Location.RESET_SENT:
            self._add(row["ns"], row["ns"], "", "a reset is sent: the script ends here")
            return True
        return where == Location.DESTROY or (
            where == Location.STATE_CHANGE and row["callvalue"] in _GONE
        )

    def _ends_here(self, row: Row) -> None:
        """Of what arrives from now on the capture has nothing."""
        if self._sent == self.written and row["packets_out"] < row["snd_cwnd_segs"]:
            self._add(row["ns"], row["ns"], f"> F. {self._sent}:{self._sent}(0) "
                      f"ack {self._in(row['rcv_nxt'])} <...>")  # fmt: skip
        self._add(row["ns"], row["ns"], "", "the script ends: what arrived after an end was closed "
                  "is not recorded here (SEGMENT_CLOSING)")  # fmt: skip

    def _assert(self, row: Row) -> None:
        if row["state"] != State.ESTABLISHED:
            return
        values = {name: row[key] for key, name in self._asserted.items()}
        at = row["ns"] + self.shift_ns
        self.events.append(Event(at, at, "", values=values))

    def _arrives(self, row: Row, after: Row) -> None:
        flags = row["seg_flags"]
        text = "".join(name for bit, name in ((_FIN, "F"), (_PSH, "P"), (_URG, "U"), (_ECE, "E"),
                                              (_CWR, "W")) if flags & bit)  # fmt: skip
        text += "." if flags & _ACK else ""
        una = self._out(after["snd_una"])
        window = after["snd_wnd"]
        scaled = min(window >> row["snd_wscale"], _UNSCALED)
        blocks, assumed = self.board.acknowledge(
            una, after["sacked_out"], self._out(after["snd_fack"]),
            after["dsack_dups"] > row["dsack_dups"],
        )  # fmt: skip
        low = self._in(row["seg_seq"])
        size = row["seg_len"]
        options = ""
        if blocks:
            ranges = " ".join(f"{begin}:{end}" for begin, end in blocks)
            options = f" <sack {ranges},nop,nop>"
        self._add(row["ns"], row["ns"], f"< {text or '.'} {low}:{low + size}({size}) "
                  f"ack {self._out(row['seg_ack'])} win {scaled}{options}",
                  f"assumed: {assumed}" if assumed else "")  # fmt: skip


def _pure(row: Row) -> int:
    """Segments without data that were sent so far."""
    return row["segs_out"] - row["data_segs_out"]


def _time_of(low_us: int, begin: int, end: int) -> int | None:
    """A time of which the record has the low 32 bits in us, if it lies between these [ns]."""
    whole = end // 1000
    found = (whole + ahead(low_us, whole % (1 << 32))) * 1000
    return min(max(found, begin), end) if begin - 1000 <= found <= end else None
