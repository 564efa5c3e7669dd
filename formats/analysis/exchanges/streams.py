# SPDX-License-Identifier: Apache-2.0
"""How far the byte streams of both directions have come at each snapshot, and since when.

    snapshot      write_seq   snd_nxt   snd_una   rcv_nxt   copied_seq     of the kernel
    Streams       written     sent      acked     arrived   read           bytes since the handshake

Numbers are unwrapped; SYN and FIN, which have one too, do not count. A snapshot of a segment is
made before the segment counts: what it brings has arrived then. Each advance has a time and the
width of its bounds: a call is recorded at its end, a segment when it arrives, and of what neither
shows is known that it was between two snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, join
from tcpkmon.formats.analysis.exchanges.advances import Advances, after
from tcpkmon.formats.analysis.exchanges.ranked import MOST, running_maxima
from tcpkmon.formats.analysis.exchanges.resting import Resting
from tcpkmon.formats.analysis.why import Peers, Snapshots
from tcpkmon.formats.analysis.why.grouping import Grouped, Places, grown
from tcpkmon.formats.base.drops import SENT_BIT
from tcpkmon.formats.base.sequence import ahead_of, unwrap
from tcpkmon.formats.base.tcp import ARRIVED, SYNCHRONIZED, Location, State

UNKNOWN, CLIENT, SERVER = 0, 1, 2
NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "snd_una",
    "snd_max", "snd_sb_cc", "rcv_nxt", "rcv_sb_cc", "seg_seq", "seg_len", "srtt_us", "min_rtt_us",
    "sk_wmem_bytes", "sb_hiwat",
)  # fmt: skip
OWNER = ("pid", "comm", "netns")
OPTIONAL = (*OWNER, "seg_ack", "packets_out")
_DATA = (*SYNCHRONIZED, State.SYN_RECV)
"""States in which both streams are numbered."""
_WROTE_FIN = (
    State.FIN_WAIT1, State.FIN_WAIT2, State.CLOSE, State.LAST_ACK, State.CLOSING,
)  # fmt: skip
_READ_FIN = (
    State.TIME_WAIT, State.CLOSE, State.CLOSE_WAIT, State.LAST_ACK, State.CLOSING,
)  # fmt: skip
"""States in which the streams have a FIN at their end; CLOSE may have none, and has no data."""
_TAKES_FIN = (State.TIME_WAIT, State.CLOSE_WAIT, State.CLOSING)
"""States that a socket comes to by a FIN of the peer."""
_CLOSES = (State.FIN_WAIT1, State.CLOSE, State.CLOSE_WAIT)
"""The first states after one side closed."""
_RAW = ("written", "sent", "acked", "known", "read")
_TOPS = ("top_written", "top_sent", "top_arrived", "top_known", "top_read")
_CARRIED = (*_RAW, *_TOPS, "again", "fin")
_TIME, _LOST = "times_ns", "lost"
"""Names of rows that rest, beside their columns."""


@dataclass
class Events:
    """n snapshots at which a stream advanced, those of a connection together and in time order.

    place: of the connection. time: [ns]. lost, lost_before: records that are missing in the capture
    up to it, and up to the connection's snapshot before it. acked: what the peer had of the
    written stream when it sent the segment. known: what had arrived before the segment.
    written, arrived, read, sent: how far they came; time_X, width_X: when X came so far, and within
    which bounds [ns]. late_written: how much later the last of these bytes may have been written
    than the first [ns]. unread: whether some of what had arrived was not read. again: records of
    segments sent again so far. rtt: the path's round trip [ns], 0: unknown.
    """

    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.columns["place"])

    def __getitem__(self, name: str) -> Any:  # mypy tries all overloads of each operator of Array
        return self.columns[name]

    def take(self, at: Array) -> Events:
        """Those at these places."""
        return Events({name: values[at] for name, values in self.columns.items()})

    def widths(self, parts: Iterable[tuple[Array, str, Any]]) -> Array:
        """Sums of the widths of bounds: of rows, of a stream's name, where the third holds."""
        found: Any = 0
        for at, name, holds in parts:
            found = found + np.where(holds, self[f"width_{name}"][at], 0)
        return np.asarray(found, np.int64)


def calls_of(ways: Mapping[str, object] | None) -> tuple[bool, bool]:
    """Whether calls are recorded, both to send and to receive; and whether as they begin.

    ways: how each location is attached, as the header has it; None: it is not known.
    """
    names = ("SEND_CALL", "RECEIVE_CALL")
    if ways is None:
        return False, False
    at_entry = any(str(ways.get(name, "")).startswith("kprobe") for name in names)
    return all(name in ways for name in names), at_entry


class Streams:
    """Reads pieces of snapshots. has_calls: the capture has SEND_CALL and RECEIVE_CALL; at_entry:
    as a call begins, not as it ends.

    side: by place, of CLIENT and SERVER. first_ns, last_ns: by place, of its records. since: by
    place, when the handshake was over [ns]; -1: it is older than the capture. closing: by
    place, when one side had closed first [ns]. ended: by place. latest: by name and place, what
    names it.
    servers: ports on which connections were accepted; add those that are known from elsewhere.
    """

    def __init__(self, has_calls: bool, at_entry: bool = False) -> None:
        self.places = Places()
        self.side = np.zeros(0, np.int8)
        self.since = np.zeros(0, np.int64)
        self.closing, self._fin_sent, self._fin_came = (np.zeros(0, np.int64) for _ in range(3))
        self.first_ns, self.last_ns = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.ended = np.zeros(0, np.bool_)
        self.latest: dict[str, Array] = {}
        self._has_calls, self._at_entry = has_calls, at_entry
        self._at = {name: np.zeros(0, np.int64) for name in _CARRIED}
        self._seen = np.zeros(0, np.bool_)
        self._held = Resting("conn_id")
        self.touched = np.zeros(0, np.int64)
        """The places of the connections of the last piece, ascending."""
        self.servers: set[int] = set()

    def add(self, piece: Snapshots) -> Events:
        """The advances that the piece shows. Of each connection the last snapshot waits: the next
        one says what its segment acknowledged."""
        wanted = _is_wanted(piece)
        names = [name for name in (*NEEDED, *OPTIONAL) if name in piece.columns]
        columns = {name: piece[name] for name in names}
        columns |= {_TIME: piece.times_ns, _LOST: piece.lost}
        if not wanted.all():
            columns = {name: values[wanted] for name, values in columns.items()}
        held = self._held.take(np.unique(columns["conn_id"]))
        return self._read(columns if held is None else join([held, columns]), False)

    def finish(self) -> Events:
        """The advances of the snapshots that waited."""
        return self._read(self._held.take_all(), True)

    def _read(self, columns: dict[str, Array] | None, to_end: bool) -> Events:
        self.touched = self.touched[:0]
        if columns is None or not len(columns["conn_id"]):
            return _nothing()
        times_ns, lost = columns.pop(_TIME), columns.pop(_LOST)
        rows = Grouped(Snapshots(columns, times_ns, lost), self.places)
        self.touched = np.sort(rows.places)
        count = len(self.places)
        self.side, self.ended = grown(self.side, count), grown(self.ended, count)
        self.since, self._seen = grown(self.since, count, -1), grown(self._seen, count)
        for name in ("closing", "_fin_sent", "_fin_came", "first_ns"):
            setattr(self, name, grown(getattr(self, name), count, np.iinfo(np.int64).max))
        self.last_ns = grown(self.last_ns, count)
        self._at = {name: grown(values, count) for name, values in self._at.items()}
        # The first row of a connection that was seen is its last one that was read: a context.
        is_new = np.ones(len(rows), np.bool_)
        is_new[rows.firsts] = ~self._seen[rows.places]
        goes_on = (rows["location"][rows.lasts] != Location.DESTROY) & (not to_end)
        is_read = is_new.copy()
        is_read[rows.lasts[goes_on]] = False
        self._note(rows, is_new)
        events = self._events(rows, is_new, is_read)
        if not to_end:
            many = goes_on & (rows.lasts > rows.firsts)
            self._seen[rows.places[many]] = True
            kept = np.sort(np.concatenate([rows.lasts[goes_on], rows.lasts[many] - 1]))
            columns = {**rows.columns, _TIME: rows.times, _LOST: rows.lost}
            self._held.put({name: values[kept] for name, values in columns.items()})
        return events

    def _note(self, rows: Grouped, is_new: Array) -> None:
        """Who opened each connection, when, whether it ended, and what names it."""
        for name in ("conn_id", "lport", "rport", "laddr", "raddr", *OWNER):
            if name in rows.columns:
                values = rows[name]
                nothing = np.zeros(1, values.dtype)[0]
                mine = self.latest.get(name, np.zeros(0, values.dtype))
                mine = self.latest[name] = grown(mine, len(self.places), nothing)
                last = values[rows.lasts]
                told = last != nothing
                mine[rows.places[told]] = last[told]
        opens = np.flatnonzero(_opens(rows) & is_new)
        active = rows["state"][opens] == State.SYN_SENT
        place = rows.of_row[opens]
        self.side[place] = np.where(active, CLIENT, SERVER)
        self.since[place] = rows.times[opens]
        self.servers.update(rows["rport"][opens[active]].tolist())
        self.servers.update(rows["lport"][opens[~active]].tolist())
        closes = (rows["location"] == Location.STATE_CHANGE) & np.isin(rows["callvalue"], _CLOSES)
        np.minimum.at(self.closing, rows.of_row[closes], rows.times[closes])
        for found, state in ((self._fin_sent, State.FIN_WAIT1), (self._fin_came, State.CLOSE_WAIT)):
            some = closes & (rows["callvalue"] == state)
            np.minimum.at(found, rows.of_row[some], rows.times[some])
        np.minimum.at(self.first_ns, rows.places, rows.times[rows.firsts])
        np.maximum.at(self.last_ns, rows.places, rows.times[rows.lasts])
        self.ended[rows.of_row[rows["location"] == Location.DESTROY]] = True

    def _events(self, rows: Grouped, is_new: Array, is_read: Array) -> Events:
        at = _positions(rows, is_new, self._at)
        again = (rows["location"] == Location.RETRANSMIT) & is_new
        at["again"] = _summed(again, rows, self._at["again"])
        at |= _tops(rows, at, self._at)
        # The first row of a piece is only looked at, as the last one.
        last = np.where(is_read[rows.lasts], rows.lasts, rows.lasts - 1)
        some = last >= rows.firsts
        for name, values in self._at.items():
            values[rows.places[some]] = at[name][last[some]]
        found = Advances(rows, at, is_new, self._has_calls, self._at_entry).columns()
        keep = np.flatnonzero(is_read & found.pop("moved"))
        return Events({name: values[keep] for name, values in found.items()})

    def closed_by_asker(self, place: Array) -> Array:
        """When the end that asks closed, where that was the first to do so; else never [ns]."""
        is_client = self.side[place] == CLIENT
        ours, theirs = self._fin_sent[place], self._fin_came[place]
        asker = np.where(is_client, ours, theirs)
        never = np.iinfo(np.int64).max
        return np.where(asker <= np.where(is_client, theirs, ours), asker, never)

    def peers(self, place: Array) -> Array:
        """Of these connections, conn_id of the other end; 0: it is not here."""
        count, found = len(self.places), np.zeros(len(place), np.int64)
        if count:
            named = ("conn_id", "laddr", "lport", "raddr", "rport")
            table = {name: self.latest[name][:count] for name in named}
            times = {"start_ns": self.first_ns[:count], "end_ns": self.last_ns[:count]}
            others, ids = Peers({**table, **times}), table["conn_id"]
            for row, one in enumerate(ids[place].tolist()):
                if (other := others.of(one)) is not None:
                    found[row] = ids[other]
        return found

    def tell_sides(self, events: Events) -> None:
        """Of connections that are older than the capture: by a port on which others were accepted,
        else who speaks first is the client. events: of each place in time order."""
        place = events["place"]
        at = np.flatnonzero(self.side[place] == UNKNOWN)
        mine, firsts = np.unique(place[at], return_index=True)
        for row, one in zip(at[firsts].tolist(), mine.tolist(), strict=True):
            local = int(self.latest["lport"][one]) in self.servers
            remote = int(self.latest["rport"][one]) in self.servers
            speaks = events["written"][row] > 0
            is_client = remote if local != remote else speaks
            self.side[one] = CLIENT if is_client else SERVER


def _nothing() -> Events:
    names = ("place", "time", "lost", "lost_before", "acked", "known", "unread", "again", "rtt",
             "brings", "late_written")  # fmt: skip
    more = [f"{what}{name}" for name in ("written", "arrived", "read", "sent")
            for what in ("", "time_", "width_")]  # fmt: skip
    return Events({name: np.zeros(0, np.int64) for name in (*names, *more)})


def _opens(rows: Grouped | Snapshots) -> NDArray[np.bool_]:
    """(n,) whether it is the change of the state that ends a handshake."""
    found: NDArray[np.bool_] = (rows["location"] == Location.STATE_CHANGE) & (
        rows["callvalue"] == State.ESTABLISHED
    )
    return found


def _is_wanted(piece: Snapshots) -> NDArray[np.bool_]:
    """Snapshots of which the streams have numbers; of closed sockets, which may be read on, those
    of calls and of the end."""
    location = piece["location"]
    closed = (location == Location.RECEIVE_CALL) | (location == Location.DESTROY)
    closed &= piece["state"] == State.CLOSE
    found: NDArray[np.bool_] = np.isin(piece["state"], _DATA) | _opens(piece) | closed
    return found


def _summed(steps: Array, rows: Grouped, before: Array) -> Array:
    """Running sums of each connection, which go on from `before` (by place)."""
    sums = np.cumsum(steps, dtype=np.int64)
    base = before[rows.places] - sums[rows.firsts] + steps[rows.firsts]
    return sums + rows.spread(base)


def _highest(values: Array, rows: Grouped, before: Array) -> Array:
    """Running maxima of each connection, which are not below `before` (by place)."""
    values = np.clip(values, 0, MOST - 1)
    values[rows.firsts] = np.maximum(values[rows.firsts], before[rows.places])
    return running_maxima(values, rows.firsts)


def _positions(rows: Grouped, is_new: Array, before: dict[str, Array]) -> dict[str, Array]:
    """How far each stream has come at each row, a FIN with it."""
    una, arrived = rows["snd_una"], rows["rcv_nxt"]
    raw = {
        "written": una + rows["snd_sb_cc"], "sent": rows["snd_max"], "acked": una,
        "known": arrived, "read": arrived - rows["rcv_sb_cc"],
    }  # fmt: skip
    firsts, begins = rows.firsts, is_new[rows.firsts]
    closed, receives = rows["state"] == State.CLOSE, rows["location"] == Location.RECEIVE_CALL
    bases = _bases(rows, firsts)
    found = {}
    for name, numbers in raw.items():
        # A socket that is closed may have been disconnected, which takes new numbers.
        known = ~closed | (receives & (name == "read"))
        values = unwrap(numbers, firsts=firsts, known=known)
        base = np.where(begins, bases[name], before[name][rows.places])
        found[name] = values + rows.spread(base - values[firsts])
    return found


def _bases(rows: Grouped, at: Array) -> dict[str, Array]:
    """Where the streams are at the first row of a connection: TCP Fast Open has data already.

    What was written, or arrived, before the capture does not count.
    """
    first = {name: rows[name][at] for name in (
        "state", "location", "callvalue", "snd_una", "snd_max", "snd_sb_cc", "rcv_sb_cc",
        "seg_len")}  # fmt: skip
    opens = _opens(rows)[at]
    active = opens & (first["state"] == State.SYN_SENT)
    early = first["state"] == State.SYN_RECV
    of_syn = first["seg_len"].astype(np.int64)
    flying = ahead_of(first["snd_max"], first["snd_una"])
    waiting, unread = first["snd_sb_cc"].astype(np.int64), first["rcv_sb_cc"].astype(np.int64)
    acked = np.where(active, of_syn, np.where(early, 0, -waiting))
    returned = first["callvalue"].astype(np.uint32).view(np.int32).astype(np.int64)
    got = np.where(first["location"] == Location.RECEIVE_CALL, np.maximum(returned, 0), 0)
    known = np.where(active, 0, np.where(opens, of_syn, np.where(early, unread + got, 0)))
    return {"acked": acked, "written": acked + waiting, "sent": acked + flying, "known": known,
            "read": known - unread}  # fmt: skip


def _tops(rows: Grouped, at: dict[str, Array], before: dict[str, Array]) -> dict[str, Array]:
    """How far each stream had come at most, in bytes of data."""
    state = rows["state"]
    now = np.where(rows["location"] == Location.STATE_CHANGE, rows["callvalue"], 0)
    wrote_fin = np.isin(state, _WROTE_FIN)
    has_fin = np.isin(state, _READ_FIN) | np.isin(now, _READ_FIN)
    # A call may return while another CPU takes the FIN in: then its row still has the state before.
    same = after(rows["rcv_nxt"], rows) == rows["rcv_nxt"]
    received = rows["location"] == Location.RECEIVE_CALL
    has_fin |= received & np.isin(after(now, rows), _TAKES_FIN) & same
    fin = _highest(has_fin.astype(np.int64), rows, before["fin"])
    has_fin = fin > 0
    known = at["known"] - fin
    found = {"fin": fin, "top_known": _highest(known, rows, before["top_known"])}
    ahead = ahead_of(rows["seg_seq"], rows["rcv_nxt"])
    sent_out = rows["callvalue"].astype(np.int64) >> SENT_BIT
    end = ahead + rows["seg_len"].astype(np.int64)
    where = after(rows["location"], rows)
    # A DROPPED can also be of another segment: of one that was sent, or that waited here.
    own = (after(rows["seg_seq"], rows) == rows["seg_seq"]) & (after(sent_out, rows) == 0)
    dropped = (where == Location.RCVQ_FULL) | ((where == Location.DROPPED) & own)
    brings = _is_segment(rows) & (ahead <= 0) & (end > 0) & ~has_fin & ~dropped
    at["brings"] = brings
    arrived = np.where(brings, at["known"] + end, known)
    found["top_arrived"] = _highest(arrived, rows, before["top_arrived"])
    found["top_written"] = _highest(at["written"] - wrote_fin, rows, before["top_written"])
    sent = np.minimum(at["sent"], found["top_written"])
    found["top_sent"] = _highest(sent, rows, before["top_sent"])
    read = np.minimum(at["read"], found["top_arrived"])
    found["top_read"] = _highest(read, rows, before["top_read"])
    return found


def _is_segment(rows: Grouped) -> NDArray[np.bool_]:
    return np.isin(rows["location"], ARRIVED)
