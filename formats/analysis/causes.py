# SPDX-License-Identifier: Apache-2.0
"""Why a connection failed or waited, by name: the table causes. docs/causes.md says what to do.

    blocks of whole connections -> RULES -> Finder -> the table causes, why, check, report

A rule is a function from a block to causes. What a rule concludes from the absence of records is
claimed only where none is missing.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.listeners import is_listening, records_listeners
from tcpkmon.formats.analysis.why import Snapshots, Source, Table
from tcpkmon.formats.analysis.why.assemble import address
from tcpkmon.formats.analysis.why.columns import columns_of
from tcpkmon.formats.analysis.why.tables import Capture, opened
from tcpkmon.formats.analysis.why.words import human_bytes, human_time
from tcpkmon.formats.base.drops import REASONS, RESETS, Drop
from tcpkmon.formats.base.sequence import state_after
from tcpkmon.formats.base.tcp import ARRIVED, DROPS, SYNCHRONIZED, Location, State
from tcpkmon.formats.base.text import counted

CAUSES = columns_of("""
conn_id | int? | the connection; null: of a listener, or of none
cause | text | its name, see docs/causes.md
laddr | text | this host's address
lport | int | and port
start_ns | int | since when, CLOCK_MONOTONIC
end_ns | int | until when
certain | bool | what was recorded allows no other cause
records | int | records of the connection in that time
evidence | text | what shows it, and what to look at
""")
_COLUMNS = ("conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state",
            "snd_una", "snd_max", "snd_sb_cc", "rcv_sb_cc", "srtt_us", "rcv_nxt")  # fmt: skip
_OPTIONAL = ("netns", "seg_flags", "sk_rmem_bytes", "dsack_dups", "total_retrans",
             "packets_out", "sacked_out", "lost_out", "snd_wscale")  # fmt: skip
_COOKIE_US = 2_000_000
"""A cookie's time is stored once a second."""
_RESET_NS = 100_000_000
"""A listener that is closed resets what it has at once."""
_ANY = (bytes(16), bytes(10) + b"\xff\xff" + bytes(4))
"""A listener at any address."""
_ENDS = ("laddr", "lport", "raddr", "rport")
_Ends = tuple[int, bytes, int, bytes, int]
_Timeout = tuple[int, int, bytes, int]
_Key = tuple[str, int, bool, bool, Any]
"""The cause, the connection (0: none), whether a listener's, whether sent, and the ends."""
_LEAST_NS = 1_000_000_000
_SILENCE_NS = 10_000_000_000
"""No NAT or firewall forgets an established connection sooner."""
_TIMEOUTS = 3
_SHORT_US = 500_000
"""A longer round trip leaves open when the unanswered data was written."""
_FEWER = 12
"""Retransmissions of who gives up sooner than tcp_retries2 makes it, of which the default is 15."""
_OVERHEAD = 4
"""By how much the memory of unread bytes is larger, at least, where packets are small."""
_COLLAPSES = _NEEDLESS = 3
_NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH)
_SYN, _RST, _ECN = 2, 4, 64 | 128
"""Of seg_flags; _ECN: ECE and CWR."""
_TIMERS = (Location.RTO, Location.LOSS_PROBE)


@dataclass(frozen=True)
class Cause:
    """A row of CAUSES."""

    conn_id: int | None
    cause: str
    laddr: str
    lport: int
    start_ns: int
    end_ns: int
    certain: bool
    records: int
    evidence: str


@dataclass(frozen=True)
class Scope:
    """What rules know of the capture. until_ns: when it ended. lost: how many records are missing.
    sees_closing: it records segments of connections of which one end closed. resets: the numbers
    of the reasons of resets that this host sends, by name."""

    until_ns: int
    lost: int
    sees_closing: bool
    resets: Mapping[str, int]


class Drops:
    """The packets that the kernel dropped, by cause and by the connection or listener.

    What found no socket, as before one is looked up, is of the last connection of its ends.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self._causes = {number: _OF_REASON[name] for number, name in reasons.items()
                        if name in _OF_REASON}  # fmt: skip
        self._found: dict[_Key, list[int]] = {}
        self._ids: dict[_Ends, list[tuple[int, int]]] = {}

    def add(self, rows: Mapping[str, NDArray[Any]], times_ns: NDArray[np.int64]) -> None:
        """Rows at DROPS alone."""
        nothing = np.zeros(len(times_ns), np.int64)
        values = zip(
            times_ns.tolist(), rows["conn_id"].tolist(), rows["callvalue"].tolist(),
            rows["state"].tolist(), rows.get("seg_flags", nothing).tolist(),
            rows.get("netns", nothing).tolist(), *(rows[name].tolist() for name in _ENDS),
            strict=True,
        )  # fmt: skip
        for time_ns, conn_id, callvalue, state, flags, space, *ends in values:
            drop = Drop.of(callvalue)
            cause = self._causes.get(drop.reason)
            if state == State.TIME_WAIT and flags & (_SYN | _RST) == _SYN:
                cause = "time_wait"
            if cause is None:
                continue
            listens = state == State.LISTEN
            whose = (space, *ends)
            if not conn_id:
                self._ids.setdefault(whose, [])
            if listens:
                whose = (space, *ends[:2], b"", 0)
            key = (cause, 0 if listens else conn_id, listens, drop.sent, whose)
            first_last = self._found.setdefault(key, [time_ns, time_ns, 0])
            first_last[1], first_last[2] = time_ns, first_last[2] + 1

    def see(self, block: Block) -> None:
        """Take from a block which connections had the ends of what found no socket."""
        at = np.flatnonzero(is_one_of(block["location"], DROPS))
        self.add({name: values[at] for name, values in block.rows.items()}, block.times_ns[at])
        if not self._ids:
            return
        netns = block.rows.get("netns", np.zeros(len(block), np.int64))[block.lasts].tolist()
        ends = zip(netns, *(block[name][block.lasts].tolist() for name in _ENDS), strict=True)
        starts = block.times_ns[block.groups].tolist()
        for conn_id, start, one in zip(block["conn_id"][block.lasts].tolist(), starts, ends,
                                       strict=True):  # fmt: skip
            if one in self._ids:
                self._ids[one].append((start, conn_id))

    def causes(self) -> Iterator[Cause]:
        """A row for each cause of each connection or listener."""
        sums: dict[tuple[Any, ...], list[int]] = {}
        for (cause, conn_id, listens, sent, whose), (first, last, count) in self._found.items():
            before = [one for one in self._ids.get(whose, ()) if one[0] <= last]
            if cause == "no_socket" and (before or sent):
                continue  # it came late, after the end of its connection
            of = conn_id if conn_id or not before or listens else max(before)[1]
            key = (cause, of, listens, sent, whose[1], whose[2])
            one = sums.setdefault(key, [first, last, 0])
            one[:] = min(one[0], first), max(one[1], last), one[2] + count
        for (cause, conn_id, _, sent, laddr, lport), (first, last, count) in sums.items():
            packets = counted(count, f"{'outgoing' if sent else 'incoming'} packet")
            yield Cause(conn_id or None, cause, address(laddr), lport, first, last, True, count,
                        f"{packets} {OF_DROPS[cause]}")  # fmt: skip


@dataclass
class _Full:
    """A time in which a listener's accept queue was full. drops: SYNs and ACKs dropped meanwhile;
    uncounted: one that the last record is of."""

    laddr: bytes
    start_ns: int
    end_ns: int
    queue: int
    backlog: int
    drops: int = 0
    uncounted: int = 0


class Queues:
    """The accept queues of listeners.

    Each connection that is made says how many waited before it: a queue that is full is so until
    the next one.
    """

    def __init__(self) -> None:
        self._full: dict[tuple[int, int], list[_Full]] = {}
        self._drops: dict[int, int] = {}
        self._timeouts: dict[tuple[bytes, int], list[_Timeout]] = {}
        """Of SYNs, by the listener's address and port: when, the connection, and its own."""
        self._resets: list[tuple[int, int, bytes, int, bytes, int]] = []
        self._closed: list[tuple[int, bytes, int, int]] = []
        self._by_cookie: set[int] = set()
        self._found: list[Cause] = []

    def add(self, some: Snapshots) -> None:
        """Records of listeners, in order of time."""
        some = some.take(np.flatnonzero(is_listening(some.columns)))
        made = (some["state"] == State.LISTEN) & (some["callvalue"] == State.SYN_RECV)
        made &= (some["location"] == Location.STATE_CHANGE) & (some["srtt_us"] > 0)
        made &= some["srtt_us"] < _COOKIE_US
        self._by_cookie.update(some["conn_id"][made].tolist())
        names = ("location", "callvalue", "lport", "laddr", "packets_out", "sacked_out", "lost_out",
                 "snd_una")  # fmt: skip
        spaces = some.columns.get("netns", np.zeros(len(some), np.int64)).tolist()
        rows = zip(some.times_ns.tolist(), spaces, *(some[name].tolist() for name in names),
                   strict=True)  # fmt: skip
        for time_ns, space, location, state, lport, laddr, queue, backlog, drops, socket in rows:
            changes = location == Location.STATE_CHANGE
            is_made = changes and state == State.SYN_RECV
            found = self._full.setdefault((space, lport), [])
            last = found[-1] if found and not found[-1].end_ns else None
            if not is_made:
                more = drops - self._drops.get(socket, drops)
                self._drops[socket] = drops
                if last is not None:
                    last.drops, last.uncounted = last.drops + more, 0
            if (is_full := queue + is_made > backlog and not (changes and not is_made)):
                if last is None:
                    last = _Full(laddr, time_ns, 0, queue + is_made, backlog)
                    found.append(last)
                last.uncounted = int(location == Location.LISTENER)
            if last is not None and not is_full:
                last.end_ns = time_ns
            if changes and state == State.CLOSE and queue:
                self._closed.append((time_ns, laddr, lport, queue))

    def see(self, block: Block) -> None:
        """Take from a block whose SYNs had no answer, what was reset, and what a cookie made."""
        location = block["location"]
        times_out = (location == Location.RTO) & (block["state"] == State.SYN_SENT)
        resets = (location == Location.RESET_SENT) | (location == Location.RESET_RECEIVED)
        for time_ns, conn_id, laddr, lport, raddr, rport in _rows(block, times_out):
            listener = self._timeouts.setdefault((raddr, rport), [])
            listener.append((time_ns, conn_id, laddr, lport))
        self._resets += _rows(block, resets)
        if not self._by_cookie:
            return
        unscaled = (location == Location.STATE_CHANGE) & (block["state"] == State.SYN_RECV)
        unscaled &= (block["callvalue"] == State.ESTABLISHED) & (block["snd_wscale"] == 0)
        for one, at in _with(block, unscaled):
            if one.conn_id in self._by_cookie:
                self._found.append(one.make(
                    "syn_cookies", int(at[0]), len(one.times) - 1, False,
                    "a SYN cookie made this connection, as the listener's SYN queue was full, or "
                    "net.ipv4.tcp_syncookies is 2: without timestamps it has no room for options, "
                    "so windows are at most 65,535 bytes, and there is no SACK",
                ))  # fmt: skip

    def _closings(self) -> Iterator[Cause]:
        """A row for each listener that was closed with its queue, and for what was reset then."""
        for time_ns, laddr, lport, queue in self._closed:
            evidence = (
                f"the listener {address(laddr)} port {lport} was closed with "
                f"{counted(queue, 'connection')} that its program had not accepted: the kernel "
                "resets them. Other listeners of SO_REUSEPORT get them only with "
                "net.ipv4.tcp_migrate_req"
            )
            yield Cause(None, "listener_closed", address(laddr), lport, time_ns, time_ns, True,
                        queue, evidence)  # fmt: skip
            near = [it for it in self._resets if 0 <= it[0] - time_ns <= _RESET_NS]
            for place in (2, 4):  # of the listener's end: that which sent the reset, or got it
                some = [it for it in near if it[place + 1] == lport
                        and (laddr in _ANY or it[place] == laddr)]  # fmt: skip
                for at, conn_id, address_here, port, *_ in some[:queue]:
                    yield Cause(conn_id, "listener_closed", address(address_here), port, time_ns,
                                at, len(some) <= queue, 1, evidence)  # fmt: skip

    def causes(self, until_ns: int, certain: bool) -> Iterator[Cause]:
        """A row for each listener of these causes, and for each connection that has them."""
        yield from self._found
        yield from self._closings()
        timeouts = {listener: sorted(these) for listener, these in self._timeouts.items()}
        for (_, lport), times in self._full.items():
            for one in times:
                end_ns = one.end_ns or until_ns
                these = timeouts.get((one.laddr, lport), [])
                to = these[bisect_left(these, (one.start_ns,)) : bisect_left(these, (end_ns + 1,))]
                drops = max(one.drops + one.uncounted, len(to))
                if not drops:
                    continue
                evidence = (
                    f"the accept queue of the listener {address(one.laddr)} port {lport} was full "
                    f"({one.queue} of {one.backlog}) for "
                    f"{human_time((end_ns - one.start_ns) / 1000)}, and dropped {drops:,} of the "
                    "SYNs and ACKs that came: its program accepts too slowly, or not at all "
                    "(ss -ltn)"
                )
                yield Cause(None, "accept_queue", address(one.laddr), lport, one.start_ns, end_ns,
                            certain, drops, evidence)  # fmt: skip
                first = {it[1]: it for it in reversed(to)}
                for conn_id, (time_ns, _, laddr, port) in first.items():
                    count = sum(it[1] == conn_id for it in to)
                    yield Cause(conn_id, "accept_queue", address(laddr), port, time_ns, end_ns,
                                certain, count, evidence)  # fmt: skip


def _rows(block: Block, mask: NDArray[np.bool_]) -> list[tuple[int, int, bytes, int, bytes, int]]:
    """Time, connection and _ENDS of such rows."""
    at = np.flatnonzero(mask)
    columns = (block["conn_id"], *(block[name] for name in _ENDS))
    return list(zip(block.times_ns[at].tolist(), *(one[at].tolist() for one in columns),
                    strict=True))  # fmt: skip


class Finder:
    """Finds the causes of a capture whose blocks it sees. It is made before they are read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        more = (name for name in _OPTIONAL if name in source.known)
        source.names = [*dict.fromkeys((*source.names, *more))]
        self._drops = Drops(source.constants(REASONS))
        self._queues = Queues() if records_listeners(source) else None
        self._found: list[Cause] = []

    def add_drops(self, some: Snapshots) -> None:
        """Packets that were dropped and are of no connection, and records of listeners."""
        if self._queues is not None:
            self._queues.add(some)
        some = some.take(np.flatnonzero(is_one_of(some["location"], DROPS)))
        self._drops.add(some.columns, some.times_ns)

    def add(self, block: Block) -> None:
        """A block: all is read before the first one."""
        source = self._source
        scope = Scope(source.until_ns, source.reader.lost, source.records("SEGMENT_CLOSING"),
                      {name: number for number, name in source.constants(RESETS).items()})
        for rule in RULES:
            self._found += rule(block, scope)
        self._drops.see(block)
        if self._queues is not None:
            self._queues.see(block)

    def causes(self) -> list[Cause]:
        """What was found, the strongest first."""
        strength = {name: number for number, name in enumerate(NAMES)}
        found = [*self._found, *self._drops.causes()]
        if self._queues is not None:
            source = self._source
            found += self._queues.causes(source.until_ns, not source.reader.lost)
        return sorted(found, key=lambda one: (strength[one.cause], one.start_ns))


def causes(capture: Capture) -> Table:
    """The table causes, in order of time. CAUSES says what each column is. Raises as Source."""
    with opened(capture) as source:
        source.names = _COLUMNS
        finder = Finder(source)
        for block in source.blocks(drops=finder.add_drops):
            finder.add(block)
    found = sorted(finder.causes(), key=lambda one: one.start_ns)
    kinds: dict[str, Any] = {"int": np.int64, "bool": np.bool_, "text": object}
    return {
        column.name: np.array([getattr(one, column.name) for one in found],
                              np.float64 if column.null else kinds[column.kind])
        for column in CAUSES
    }  # fmt: skip


class _One:
    """A connection of a block. low, high: its rows."""

    def __init__(self, block: Block, number: int) -> None:
        self.low, self.high = int(block.groups[number]), int(block.lasts[number]) + 1
        self._block = block
        self.conn_id = int(block["conn_id"][self.low])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._block[name][self.low : self.high]

    @property
    def times(self) -> NDArray[np.int64]:
        return self._block.times_ns[self.low : self.high]

    def is_whole(self, low: int, high: int) -> bool:
        """Whether no record of the capture is missing between two of its rows."""
        lost = self._block.lost[self.low : self.high]
        return bool(lost[low] == lost[high])

    def is_whole_until_end(self, lost: int) -> bool:
        """Whether none is missing behind its last row, of so many that are in the capture."""
        return bool(self._block.lost[self.high - 1] == lost)

    def written(self) -> NDArray[np.uint32]:
        """(n,) the end of what the application wrote."""
        return np.asarray(self["snd_una"] + self["snd_sb_cc"], np.uint32)

    def heard(self, before: int) -> int | None:
        """The last row before this one at which a segment arrived."""
        found = np.flatnonzero(np.isin(self["location"][:before], ARRIVED))
        return int(found[-1]) if len(found) else None

    def make(self, cause: str, low: int, high: int, certain: bool, evidence: str,
             end_ns: int = 0, start_ns: int = 0) -> Cause:  # fmt: skip
        """Of these rows, the last one with them."""
        times, last = self.times, len(self.times) - 1
        return Cause(
            self.conn_id, cause, address(bytes(self["laddr"][last])), int(self["lport"][last]),
            start_ns or int(times[low]), end_ns or int(times[high]),
            certain and self.is_whole(low, high), high - low + 1, evidence,
        )  # fmt: skip


def _with(block: Block, rows: NDArray[np.bool_]) -> Iterator[tuple[_One, NDArray[np.int64]]]:
    """The connections that have such rows, and their places in each."""
    for number in np.unique(block.of_row[np.flatnonzero(rows)]).tolist():
        one = _One(block, number)
        yield one, np.flatnonzero(rows[one.low : one.high])


def self_connect(block: Block, scope: Scope) -> Iterator[Cause]:
    """Both ends are one socket."""
    same = (block["lport"] == block["rport"]) & (block["lport"] > 0)
    if block["laddr"].dtype != block["raddr"].dtype:  # a file whose columns are of other types
        return
    same &= (block["laddr"] == block["raddr"]) & (state_after(block.rows) == State.ESTABLISHED)
    for one, at in _with(block, same):
        yield one.make(
            "self_connect", int(at[0]), one.high - one.low - 1, True,
            "it is connected to itself: a program called connect() to a port of this host, nothing "
            "listened there, and its own port was the same by chance or by bind(). Its bytes count "
            "twice",
        )  # fmt: skip


def no_port(block: Block, scope: Scope) -> Iterator[Cause]:
    """connect() found no free local port, so nothing was sent."""
    failed = (block["location"] == Location.STATE_CHANGE) & (block["state"] == State.SYN_SENT)
    failed &= (block["callvalue"] == State.CLOSE) & (block["lport"] == 0)
    for one, at in _with(block, failed):
        yield one.make(
            "no_port", 0, int(at[0]), True,
            "connect() found no free local port (EADDRNOTAVAIL), and nothing was sent: widen "
            "net.ipv4.ip_local_port_range, close or reuse connections to that address, or connect "
            "from more addresses",
        )  # fmt: skip


def fast_open(block: Block, scope: Scope) -> Iterator[Cause]:
    """A SYN with data had no answer, and the next one, which has none, did."""
    lost = (block["location"] == Location.RTO) & (block["state"] == State.SYN_SENT)
    lost &= block["snd_sb_cc"] > 1  # the SYN itself has a number
    for one, at in _with(block, lost):
        made = np.flatnonzero((one["location"] == Location.STATE_CHANGE)
                              & (one["callvalue"] == State.ESTABLISHED))  # fmt: skip
        if not len(made):
            continue
        span = int(one.times[made[0]] - one.times[0])
        yield one.make(
            "fast_open", 0, int(made[0]), False,
            f"the SYN with {human_bytes(int(one['snd_sb_cc'][at[0]]) - 1)} of data (TCP Fast Open) "
            f"had no answer, one without came through, {human_time(span / 1000)} after the start: "
            "a box on the path drops SYNs with data, or that one was lost",
        )  # fmt: skip


def close_wait(block: Block, scope: Scope) -> Iterator[Cause]:
    """The peer closed, and this host's program neither writes nor closes."""
    begins = (block["location"] == Location.STATE_CHANGE) & (
        block["callvalue"] == State.CLOSE_WAIT
    ) | (block["location"] == Location.EXISTING) & (block["state"] == State.CLOSE_WAIT)
    for one, at in _with(block, begins):
        low, last = int(at[0]), one.high - one.low - 1
        left = np.flatnonzero((one["state"] == State.CLOSE_WAIT)
                              & (one["location"] == Location.STATE_CHANGE))  # fmt: skip
        high = int(left[0]) if len(left) else last
        written = one.written()
        others = np.flatnonzero(written[low : high + 1] != written[high])
        since = low + int(others[-1]) + 1 if len(others) else low
        end_ns = int(one.times[high]) if len(left) else max(scope.until_ns, int(one.times[high]))
        span = end_ns - int(one.times[since])
        if span < _LEAST_NS or not one.is_whole(since, high):
            continue
        if not len(left) and not (scope.sees_closing and one.is_whole_until_end(scope.lost)):
            continue  # what it did since the last record is in none
        unread = int(one["rcv_sb_cc"][high])
        yield one.make(
            "close_wait", since, high, True,
            f"the peer has closed, and for {human_time(span / 1000)} this host's program neither "
            f"wrote nor closed (CLOSE_WAIT){f', {unread} B unread' if unread > 1 else ''}: look at "
            "the program here, which is busy or has forgotten the socket", end_ns,
        )  # fmt: skip


def _unanswered(block: Block) -> Iterator[tuple[_One, int, int]]:
    """Established connections that ended by an error as nothing answered, the row of that, and the
    last at which a segment arrived."""
    failed = (block["location"] == Location.SOCKET_ERROR) & np.isin(block["callvalue"], _NO_ANSWER)
    state = state_after(block.rows) if failed.any() else block["state"]
    for one, at in _with(block, failed):
        high = int(at[0])
        if not np.isin(state[one.low : one.low + high], SYNCHRONIZED).any():
            continue
        heard = one.heard(high)
        yield one, high, 0 if heard is None else heard


def keepalive(block: Block, scope: Scope) -> Iterator[Cause]:
    """With nothing in flight or to send, the keepalive timer alone ends a connection."""
    for one, high, heard in _unanswered(block):
        if one["snd_una"][high] != one["snd_max"][high] or one["snd_sb_cc"][high]:
            continue
        span = int(one.times[high] - one.times[heard])
        yield one.make(
            "keepalive", heard, high, True,
            f"keepalive ended it: nothing was to be sent, and for {human_time(span / 1000)} no "
            "segment came, no answer to the last probes either: the peer's host or the path to it "
            "is gone, or a box on the path forgot the connection",
        )  # fmt: skip


def user_timeout(block: Block, scope: Scope) -> Iterator[Cause]:
    """Data was given up sooner than the kernel does by default."""
    for one, high, heard in _unanswered(block):
        if one["snd_una"][high] == one["snd_max"][high]:
            continue
        count = int((one["location"][heard:high] == Location.RTO).sum())
        if not 0 < count <= _FEWER or not one.is_whole(heard, high):
            continue
        first = heard + int(np.flatnonzero(np.isin(one["location"][heard:high], _TIMERS))[0])
        span = int(one.times[high] - one.times[first])
        yield one.make(
            "user_timeout", heard, high, False,
            f"unanswered data was given up after {count} timeout{'s' * (count > 1)}, "
            f"{human_time(span / 1000)} after the first: sooner than the kernel does by default, "
            "so the application set TCP_USER_TIMEOUT, or net.ipv4.tcp_retries2 is small",
        )  # fmt: skip


def silence(block: Block, scope: Scope) -> Iterator[Cause]:
    """The first data after a long silence was never answered."""
    fired = block["location"] == Location.RTO
    state = state_after(block.rows) if fired.any() else block["state"]
    for one, at in _with(block, fired):
        high = int(at[-1])
        heard = one.heard(one.high - one.low)
        if heard is None or heard > high:
            continue
        timers = np.flatnonzero(np.isin(one["location"][heard:], _TIMERS)) + heard
        count = int((one["location"][heard:] == Location.RTO).sum())
        if count < _TIMEOUTS or not one.is_whole(heard, high):
            continue
        idle = int(one.times[timers[0]] - one.times[heard])
        answered = np.isin(state[one.low + heard : one.low + high],
                           (State.ESTABLISHED, State.CLOSE_WAIT)).any()  # fmt: skip
        if idle < _SILENCE_NS or one["srtt_us"][high] > _SHORT_US or not answered:
            continue
        span = int(one.times[high] - one.times[timers[0]])
        yield one.make(
            "silence", int(timers[0]), high, False,
            f"after {human_time(idle / 1000)} of silence, what was written was never answered, in "
            f"{count} timeouts over {human_time(span / 1000)}: a NAT or firewall on the path "
            "forgot the connection, or the peer is gone. Keepalive in shorter times would keep it",
        )  # fmt: skip


def orphans(block: Block, scope: Scope) -> Iterator[Cause]:
    """This host's kernel had no room for what its program had closed."""
    if (reason := scope.resets.get("TCP_ABORT_ON_MEMORY")) is None:
        return
    for one, at in _with(block, _resets(block, reason)):
        yield one.make(
            "orphans", int(at[0]), int(at[0]), True,
            "this host's kernel reset it: its program had closed it, and there were more such "
            "connections than net.ipv4.tcp_max_orphans allows, or more memory in use than "
            "net.ipv4.tcp_mem",
        )  # fmt: skip


def time_wait(block: Block, scope: Scope) -> Iterator[Cause]:
    """An old connection of the same ports answered the SYN."""
    refused = _resets(block, scope.resets.get("TCP_INVALID_ACK_SEQUENCE", 0))
    for one, at in _with(block, refused & (block["state"] == State.SYN_SENT)):
        last = int(at[-1])
        opened = np.isin(one["state"][last:], SYNCHRONIZED).any()
        yield one.make(
            "time_wait", 0, last, False,
            f"an old connection of the same ports answered its SYN: the peer's socket is in "
            f"TIME_WAIT, or open. This host reset that {counted(len(at), 'time')} and sent the SYN "
            f"again{'' if opened else ', without success (net.ipv4.tcp_rfc1337 there?)'}: let the "
            "kernel choose the port, or use timestamps",
        )  # fmt: skip


def ecn_syn(block: Block, scope: Scope) -> Iterator[Cause]:
    """Of its SYNs, those that asked for ECN were lost, and the next one came through."""
    if "seg_flags" not in block.rows:
        return
    asked = block["seg_flags"] & _ECN != 0
    lost = (block["location"] == Location.RTO) & (block["state"] == State.SYN_SENT)
    for one, at in _with(block, lost & asked):
        tries = np.flatnonzero((one["location"] == Location.RTO)
                               & (one["state"] == State.SYN_SENT))  # fmt: skip
        last, flags = int(tries[-1]), one["seg_flags"]
        again = last + np.flatnonzero(one["location"][last:] == Location.RETRANSMIT)
        opened = last + np.flatnonzero(one["callvalue"][last:] == State.ESTABLISHED)
        opened = opened[one["location"][opened] == Location.STATE_CHANGE]
        if len(at) < len(tries) or not len(again) or flags[again[0]] & _ECN or not len(opened):
            continue
        yield one.make(
            "ecn_syn", 0, int(opened[0]), False,
            f"{counted(len(at), 'SYN')} that asked for ECN had no answer, and the one without came "
            "through: a box on the path may drop them. Where that is so each time, set "
            "net.ipv4.tcp_ecn=0 or 2",
        )  # fmt: skip


def small_packets(block: Block, scope: Scope) -> Iterator[Cause]:
    """Packets that are small filled the receive buffer, so the kernel copied them together."""
    if "sk_rmem_bytes" not in block.rows:
        return
    memory, unread = (block[name].astype(np.int64) for name in ("sk_rmem_bytes", "rcv_sb_cc"))
    before, copied = block.before(memory), block["rcv_nxt"] - block["rcv_sb_cc"]
    shrank = (copied == block.before(copied)) & (unread > 0) & (2 * memory < before)
    shrank &= (before >= _OVERHEAD * block.before(unread)) & ~block.is_first
    for one, at in _with(block, shrank & (block["location"] == Location.SEGMENT_RECEIVED)):
        if len(at) < _COLLAPSES:
            continue
        most = one.low + int(at[np.argmax(before[one.low + at])])
        yield one.make(
            "small_packets", int(at[0]), int(at[-1]), True,
            f"{human_bytes(block.before(unread)[most])} unread took {human_bytes(before[most])} of "
            f"memory, as they came in small packets: the kernel had to copy them together at least "
            f"{counted(len(at), 'time')} (TcpExtTCPRcvCollapsed), and offers a smaller window. Let "
            "the peer write more at once, or read sooner here",
        )  # fmt: skip


def needless(block: Block, scope: Scope) -> Iterator[Cause]:
    """All that was sent again had arrived already."""
    if not block.rows.keys() >= {"dsack_dups", "total_retrans"}:
        return
    known = np.zeros(len(block), np.bool_)
    known[block.lasts] = True
    again, twice = (block[name].astype(np.int64) for name in ("total_retrans", "dsack_dups"))
    for one, at in _with(block, known & (again >= _NEEDLESS) & (twice >= again)):
        count = int(again[one.low + at[0]])
        if 2 * np.isin(one["location"], _TIMERS).sum() > count:
            continue  # by timers: an ACK waited, as for a reader
        sent = np.flatnonzero(one["location"] == Location.RETRANSMIT)
        yield one.make(
            "needless", int(sent[0]) if len(sent) else 0, int(at[0]), True,
            f"all {count:,} segments that were sent again had arrived already, as the peer's "
            "D-SACKs say: they, or their ACKs, came late or out of order. That is no loss, and no "
            "policer",
        )  # fmt: skip


def _resets(block: Block, reason: int) -> NDArray[np.bool_]:
    """(n,) where this host sent a reset of this reason."""
    is_reset = block["location"] == Location.RESET_SENT
    return np.asarray(is_reset & (block["callvalue"] == reason))


Rule = Callable[[Block, Scope], Iterator[Cause]]
RULES: tuple[Rule, ...] = (
    self_connect, no_port, orphans, time_wait, ecn_syn, fast_open, close_wait,
    keepalive, user_timeout, silence, small_packets, needless,
)  # fmt: skip
"""The strongest first."""
OF_DROPS = {
    "netfilter": "dropped by netfilter in this host: look at its rules (nft list ruleset, iptables "
    "-nvL), not at the path",
    "checksum": "dropped as its checksum is wrong: something on the way damages packets, or a "
    "device computes it wrongly (ethtool -k)",
    "no_socket": "refused: nothing listens there",
    "receive_memory": "dropped as there was no memory for them: the receive buffer is full of what "
    "its program has not read (ss -tm), or TCP uses more than net.ipv4.tcp_mem",
    "time_wait": "refused: a SYN from the ports of a connection that is in TIME_WAIT here, with a "
    "number that is not beyond its last",
}
"""By cause, what is said of the packets."""
_OF_REASON = {
    "NETFILTER_DROP": "netfilter", "TCP_CSUM": "checksum", "IP_CSUM": "checksum",
    "SKB_CSUM": "checksum", "NO_SOCKET": "no_socket",
    "PROTO_MEM": "receive_memory", "SOCKET_RCVBUFF": "receive_memory",
    "TCP_OFO_QUEUE_PRUNE": "receive_memory",
}  # fmt: skip
"""By the name of a reason."""
OF_LISTENERS = ("accept_queue", "listener_closed", "syn_cookies")
NAMES = tuple(dict.fromkeys((*(rule.__name__ for rule in RULES), *OF_LISTENERS, *OF_DROPS)))
EXCUSES = {
    "netfilter": frozenset({"named", "nagle", "pacing", "recovery", "unknown"}),
    "receive_memory": frozenset({"named", "recovery", "rto_wait"}),
    "self_connect": frozenset({"*"}), "silence": frozenset({"named"}),
    "needless": frozenset({"named", "recovery"}),
    "accept_queue": frozenset({"opening", "named"}), "listener_closed": frozenset({"ended", "app"}),
    "close_wait": frozenset({"app"}), "orphans": frozenset({"ended"}),
    "time_wait": frozenset({"opening"}), "ecn_syn": frozenset({"opening"}),
    "fast_open": frozenset({"opening"}),
}  # fmt: skip
"""What the verdict does not say beside a cause: a limit, "named", "ended", or *: nothing of it."""
assert [one.name for one in fields(Cause)] == [column.name for column in CAUSES]
