# SPDX-License-Identifier: Apache-2.0
"""How far the byte streams of both directions have come at each snapshot, and since when.

    snapshot      write_seq   snd_nxt   snd_una   rcv_nxt   copied_seq     of the kernel
    streams       written     sent      acked     arrived   read           bytes since the handshake

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

from tcpkmon.formats.analysis.arrays import Array, Mask, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.exchanges.advances import Advances
from tcpkmon.formats.analysis.why import Table
from tcpkmon.formats.base.drops import SENT_BIT
from tcpkmon.formats.base.sequence import ahead_of, unwrap
from tcpkmon.formats.base.tcp import ARRIVED, SYNCHRONIZED, Location, State

UNKNOWN, CLIENT, SERVER = 0, 1, 2
MOST = 1 << 43
"""Positions are below this. A connection is ranked above the one before by it, so that one pass
over a block does all of them; int64 has room for a million."""
NEVER = np.iinfo(np.int64).max
NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "snd_una",
    "snd_max", "snd_sb_cc", "rcv_nxt", "rcv_sb_cc", "seg_seq", "seg_len", "srtt_us", "min_rtt_us",
    "sk_wmem_bytes", "sb_hiwat",
)  # fmt: skip
OWNER = ("pid", "comm", "netns")
OPTIONAL = (*OWNER, "seg_ack", "packets_out")
DATA = (*SYNCHRONIZED, State.SYN_RECV)
"""States in which both streams are numbered."""
WROTE_FIN = (
    State.FIN_WAIT1, State.FIN_WAIT2, State.CLOSE, State.LAST_ACK, State.CLOSING,
)  # fmt: skip
READ_FIN = (
    State.TIME_WAIT, State.CLOSE, State.CLOSE_WAIT, State.LAST_ACK, State.CLOSING,
)  # fmt: skip
"""States in which the streams have a FIN at their end; CLOSE may have none, and has no data."""
TAKES_FIN = (State.TIME_WAIT, State.CLOSE_WAIT, State.CLOSING)
"""States that a socket comes to by a FIN of the peer."""
_CLOSES = (State.FIN_WAIT1, State.CLOSE, State.CLOSE_WAIT)
"""The first states after one side closed."""


@dataclass
class Events:
    """n snapshots at which a stream advanced, those of a connection together and in time order.

    place: of the connection in the block. time: [ns]. lost, lost_before: records that are missing
    in the capture up to it, and up to the connection's snapshot before it. acked: what the peer had
    of the written stream when it sent the segment. known: what had arrived before the segment.
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


def ends_of(block: Block) -> Table:
    """Of each connection of a block: its names; seen: the place of its first record in the file;
    side: of CLIENT and SERVER, as its handshake says; since: when that was over [ns], -1: it is
    older than the capture; start_ns, end_ns: of its records; closing: when one side had closed
    first [ns]; fin_sent, fin_came: when this end and the other one had."""
    count = len(block.groups)
    found = {"seen": block.at[block.groups], "start_ns": block.times_ns[block.groups],
             "end_ns": block.times_ns[block.lasts]}  # fmt: skip
    for name in ("conn_id", "lport", "rport", "laddr", "raddr", *OWNER):
        if name in block.rows:
            found[name] = block[name][block.lasts]
    opens = np.flatnonzero(_opens(block))
    place = block.of_row[opens]
    found |= {"side": np.full(count, UNKNOWN, np.int8), "since": np.full(count, -1)}
    active = block["state"][opens] == State.SYN_SENT
    found["side"][place] = np.where(active, CLIENT, SERVER)
    found["since"][place] = block.times_ns[opens]
    changes = block["location"] == Location.STATE_CHANGE
    by = {"fin_sent": (State.FIN_WAIT1,), "fin_came": (State.CLOSE_WAIT,), "closing": _CLOSES}
    for name, states in by.items():
        holds = changes & is_one_of(block["callvalue"], states)
        found[name] = np.full(count, NEVER)
        np.minimum.at(found[name], block.of_row[holds], block.times_ns[holds])
    return found


def events_of(block: Block, has_calls: bool, at_entry: bool) -> Events:
    """The advances that a block of wanted() shows. has_calls: the capture has SEND_CALL and
    RECEIVE_CALL; at_entry: as a call begins, not as it ends."""
    at = _positions(block)
    again = np.cumsum(block["location"] == Location.RETRANSMIT)
    at |= {"again": again, **_tops(block, at)}
    found = Advances(block, at, has_calls, at_entry).columns()
    return Events(found).take(np.flatnonzero(found.pop("moved")))


def wanted(block: Block) -> Block:
    """The snapshots of which the streams have numbers; of closed sockets, which may be read on,
    those of calls and of the end."""
    location = block["location"]
    closed = (location == Location.RECEIVE_CALL) | (location == Location.DESTROY)
    closed &= block["state"] == State.CLOSE
    keep = is_one_of(block["state"], DATA) | _opens(block) | closed
    return block if keep.all() else block.take(np.flatnonzero(keep))


def _opens(block: Block) -> Mask:
    """(n,) whether it is the change of the state that ends a handshake."""
    changes = block["location"] == Location.STATE_CHANGE
    return np.asarray(changes & (block["callvalue"] == State.ESTABLISHED))


def running_maxima(values: Array, group: Array) -> Array:
    """Of each group. values: (n,) below MOST; group: (n,) ascending from 0."""
    ranks = group * MOST
    return np.asarray(np.maximum.accumulate(values + ranks) - ranks)


def _highest(values: Array, block: Block) -> Array:
    """Running maxima of each connection, which are not below 0."""
    return running_maxima(np.clip(values, 0, MOST - 1), block.of_row)


def _positions(block: Block) -> Table:
    """How far each stream has come at each row, a FIN with it."""
    una, arrived = block["snd_una"], block["rcv_nxt"]
    raw = {
        "written": una + block["snd_sb_cc"], "sent": block["snd_max"], "acked": una,
        "known": arrived, "read": arrived - block["rcv_sb_cc"],
    }  # fmt: skip
    firsts = block.groups
    closed, receives = block["state"] == State.CLOSE, block["location"] == Location.RECEIVE_CALL
    bases = _bases(block)
    found = {}
    for name, numbers in raw.items():
        # A socket that is closed may have been disconnected, which takes new numbers.
        values = unwrap(numbers, firsts=firsts, known=~closed | (receives & (name == "read")))
        found[name] = values + block.spread(bases[name] - values[firsts])
    return found


def _bases(block: Block) -> Table:
    """Where the streams are at the first row of a connection: TCP Fast Open has data already.

    What was written, or arrived, before the capture does not count.
    """
    at = block.groups
    first = {name: block[name][at] for name in (
        "state", "location", "callvalue", "snd_una", "snd_max", "snd_sb_cc", "rcv_sb_cc",
        "seg_len")}  # fmt: skip
    opens = _opens(block)[at]
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


def _tops(block: Block, at: Table) -> Table:
    """How far each stream had come at most, in bytes of data."""
    state = block["state"]
    now = np.where(block["location"] == Location.STATE_CHANGE, block["callvalue"], 0)
    wrote_fin = is_one_of(state, WROTE_FIN)
    has_fin = is_one_of(state, READ_FIN) | is_one_of(now, READ_FIN)
    # A call may return while another CPU takes the FIN in: then its row still has the state before.
    same = block.after(block["rcv_nxt"]) == block["rcv_nxt"]
    received = block["location"] == Location.RECEIVE_CALL
    has_fin |= received & is_one_of(block.after(now), TAKES_FIN) & same
    fin = _highest(has_fin.astype(np.int64), block)
    has_fin = fin > 0
    known = at["known"] - fin
    found = {"fin": fin, "top_known": _highest(known, block)}
    ahead = ahead_of(block["seg_seq"], block["rcv_nxt"])
    sent_out = block["callvalue"].astype(np.int64) >> SENT_BIT
    end = ahead + block["seg_len"].astype(np.int64)
    where = block.after(block["location"])
    # A DROPPED can also be of another segment: of one that was sent, or that waited here.
    own = (block.after(block["seg_seq"]) == block["seg_seq"]) & (block.after(sent_out) == 0)
    dropped = (where == Location.RCVQ_FULL) | ((where == Location.DROPPED) & own)
    brings = is_one_of(block["location"], ARRIVED) & (ahead <= 0) & (end > 0) & ~has_fin & ~dropped
    at["brings"] = brings
    arrived = np.where(brings, at["known"] + end, known)
    found["top_arrived"] = _highest(arrived, block)
    found["top_written"] = _highest(at["written"] - wrote_fin, block)
    sent = np.minimum(at["sent"], found["top_written"])
    found["top_sent"] = _highest(sent, block)
    read = np.minimum(at["read"], found["top_arrived"])
    found["top_read"] = _highest(read, block)
    return found
