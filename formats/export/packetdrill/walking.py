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

from tcpkmon.formats.base.sequence import ahead
from tcpkmon.formats.base.tcp import ARRIVED, Location, State
from tcpkmon.formats.export.packetdrill.reading import Row
from tcpkmon.formats.export.packetdrill.sacks import Board

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
