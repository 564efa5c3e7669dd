# SPDX-License-Identifier: Apache-2.0
"""What a sender's capture shows of one connection: its ACKs, its losses, and what it was to send.

Round trips are those of single segments: when an ACK came, without when the newest segment was
sent that it acknowledges (`first_tx_us` of the record behind it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.pairing.ends import unwrapped
from tcpkmon.formats.analysis.trying.last_data import acknowledged, with_last_data
from tcpkmon.formats.analysis.why import LIMITS, NEEDED, Connection, Snapshots, Source, cut, tally
from tcpkmon.formats.analysis.why.grouping import joined
from tcpkmon.formats.base.errors import UsageError

SEGMENT_RECEIVED, RETRANSMIT = 1, 2
_RECOVERY = 3
_PAUSE_NS = 20_000_000
_LEAST_ACKS = 20
_IDLE = "idle"
_WRITES = (1, 8)
"""States in which a socket is written to: TCP_ESTABLISHED, TCP_CLOSE_WAIT. A change of state is
recorded before it, so the one that closes tells all that was written, without the FIN."""


@dataclass(frozen=True)
class Burst:
    """The application pauses after all was acknowledged [s], then writes so many bytes."""

    pause_s: float
    nbytes: int


@dataclass(frozen=True)
class Seen:
    """n ACKs of a connection.

    times_us: (n,) when each came, from the first record on. delivered: (n,) bytes that had arrived
    then, SACKed ones too. rtt_us: (n,) int64, of the newest segment acknowledged; -1: of none, or
    of one that was sent again. losses: (k, 2) places of the ACKs at which a recovery began, and
    segments sent again in it. bursts: what was to send. whole: whether that is all; else the
    capture goes on. settings: net.* of the sender's host as its header tells, by name.
    """

    connection: Connection
    times_us: Array
    delivered: Array
    rtt_us: Array
    losses: Array
    bursts: tuple[Burst, ...]
    whole: bool
    settings: dict[str, str]

    @property
    def base_us(self) -> float:
        """The round trip without a queue: of the least ones, beyond what one odd one has."""
        known = self.rtt_us[self.rtt_us >= 0]
        least = self.connection.min_rtt_us
        return float(np.quantile(known, 0.005)) if len(known) else float(least or 0)

    @property
    def overhead(self) -> float:
        """Bytes of a full IP packet by its payload: addresses, TCP header, timestamps."""
        mss = max(self.connection.mss, 1)
        return (mss + (72 if _is_ipv6(self.connection.raddr) else 52)) / mss


def see(source: Source, conn_id: int, most_s: float) -> Seen:
    """One connection, from its begin, for at most so long. UsageError: it did not send, or the
    capture does not tell when."""
    if "first_tx_us" not in source.known:
        raise UsageError(
            f"{source.reader.path} lacks first_tx_us, which tells round trips",
            "capture with --columns default or more",
        )
    rows, whole = _rows(source, conn_id, most_s)
    found = tally(iter([rows])) if len(rows) else []
    if not found:
        raise UsageError(f"{source.reader.path}: nothing is known of connection {conn_id}")
    one = with_last_data(found[0], acknowledged(rows).get(conn_id))
    if not one.sends or one.bytes_acked < 10 * max(one.mss, 1):
        raise UsageError(
            f"connection {conn_id} sent too little to be tried ({one.bytes_acked:,} bytes)",
            "a setting is tried for the end that sends: capture there, or choose it with -p",
        )
    unacked = unwrapped(rows["snd_una"])
    arrived = unacked + rows["sacked_out"].astype(np.int64) * rows["mss"].astype(np.int64)
    at = np.flatnonzero(rows["location"][:-1] == SEGMENT_RECEIVED)
    if len(at) < _LEAST_ACKS:
        raise UsageError(f"connection {conn_id} has {len(at)} ACKs, which is too few to fit a path")
    newer = unacked[at + 1] > unacked[at]
    calm = (rows["ca_state"][at] < _RECOVERY) & (rows["ca_state"][at + 1] < _RECOVERY)
    sent_us = rows["first_tx_us"][at + 1].astype(np.int64)
    trip = (rows.times_ns[at] // 1000 - sent_us) & 0xFFFFFFFF
    rtt = np.where(newer & calm & (trip < 1 << 31) & (rows["retrans_out"][at] == 0), trip, -1)
    sysctl = source.settings().get("system")
    told = sysctl.get("sysctl") if isinstance(sysctl, dict) else None
    known = {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}
    return Seen(
        one, (rows.times_ns[at] - rows.times_ns[0]) // 1000,
        np.maximum.accumulate(arrived[at + 1] - unacked[0]), rtt, _losses(rows, at),
        _bursts(rows, one), whole, known,
    )  # fmt: skip


def _rows(source: Source, conn_id: int, most_s: float) -> tuple[Snapshots, bool]:
    """The connection's snapshots, and whether these are all."""
    pieces: list[Snapshots] = []
    whole, until = True, None
    for piece in source.read():
        mine = piece.take(np.flatnonzero(piece["conn_id"] == conn_id))
        if not len(mine):
            continue
        until = int(mine.times_ns[0] + most_s * 1e9) if until is None else until
        early = mine.times_ns <= until
        whole = whole and bool(early.all())
        pieces.append(mine.take(np.flatnonzero(early)))
    if not pieces:
        return Snapshots({name: np.zeros(0, np.int64) for name in NEEDED},
                         np.zeros(0, np.int64), np.zeros(0, np.int64)), True  # fmt: skip
    return joined(pieces), whole


def _losses(rows: Snapshots, at: Array) -> Array:
    lost = rows["ca_state"] >= _RECOVERY
    begins = np.flatnonzero(lost & ~np.append(False, lost[:-1]))
    again = np.cumsum(rows["location"] == RETRANSMIT)
    ends = np.append(begins[1:], len(again) - 1)
    before = np.maximum(begins - 1, 0)
    counts = again[ends] - again[before]
    places = np.searchsorted(at, begins, side="right") - 1
    found: Array = np.stack([np.maximum(places, 0), counts], axis=1)
    kept: Array = found[counts > 0]
    return kept


def _bursts(whole: Snapshots, one: Connection) -> tuple[Burst, ...]:
    """A burst is what was written between two pauses of 20 ms and more. What is before the first
    write is no pause."""
    rows = whole.take(np.flatnonzero(np.isin(whole["state"], _WRITES)))
    ends = (rows["snd_una"] + rows["snd_sb_cc"]).astype(np.uint32)
    ends = unwrapped(np.append(rows["snd_una"][:1].astype(np.uint32), ends))
    written = np.maximum.accumulate(ends[1:] - ends[:1])
    intervals = [run for some in cut(iter([whole])) for run in some]
    pauses = [
        (int(run["start_ns"]), int(run["end_ns"]))
        for run in sorted(intervals, key=lambda run: int(run["start_ns"]))
        if LIMITS[int(run["limit"])] == _IDLE and run["end_ns"] - run["start_ns"] >= _PAUSE_NS
    ]
    found: list[Burst] = []
    pause, before = 0.0, 0
    for begin, end in [*pauses, (int(rows.times_ns[-1]) + 1, 0)]:
        place = int(np.searchsorted(rows.times_ns, begin, side="right")) - 1
        upto = int(written[place]) if place >= 0 else 0
        if upto > before:
            found.append(Burst(pause, upto - before))
            pause, before = 0.0, upto
        pause += max(end - begin, 0) / 1e9 if found else 0
    # What was written after the last record of a segment is known by its acknowledgement.
    if not found:
        return (Burst(pause, one.bytes_acked),)
    fin = whole["state"][-1] not in _WRITES
    missed = max(one.bytes_acked - fin - sum(burst.nbytes for burst in found), 0)
    return (*found[:-1], Burst(found[-1].pause_s, found[-1].nbytes + missed))


def _is_ipv6(address: str) -> bool:
    return ":" in address and not address.startswith("::ffff:")
