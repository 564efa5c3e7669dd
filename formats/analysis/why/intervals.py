# SPDX-License-Identifier: Apache-2.0
"""Runs of one limit: the time of each connection cut where what limits it changes.

    snapshots of a connection    s0      s1      s2      s3      s4
    steps between them              app     app     cwnd    cwnd
    intervals                    |     app      |     cwnd     |

A step belongs to the snapshot at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why import clocks, closing
from tcpkmon.formats.analysis.why.holding import held_back, probed, was_full
from tcpkmon.formats.analysis.why.limits import (
    NUMBER,
    classify,
    in_flight,
    is_paced,
    runs_bbr,
    unsent,
)
from tcpkmon.formats.analysis.why.parting import Cuts, part
from tcpkmon.formats.analysis.why.quiet import mostly_quiet
from tcpkmon.formats.analysis.why.receiving import NEEDS, waits_of
from tcpkmon.formats.base.sequence import ahead_of, has_numbers, state_after
from tcpkmon.formats.base.tcp import Location, State

INTERVAL = np.dtype(
    [
        ("conn_id", "u8"), ("start_ns", "i8"), ("end_ns", "i8"), ("limit", "i1"),
        ("bytes_sent", "i8"), ("bytes_acked", "i8"), ("bytes_received", "i8"), ("records", "i8"),
        ("lost_records", "i8"), ("certain_ns", "i8"), ("cwnd_end", "u4"), ("inflight_end", "i4"),
        ("snd_wnd_end", "u4"), ("notsent_end", "i8"), ("srtt_end_us", "u4"), ("mss", "u4"),
        ("pacing_rate", "u8"), ("paceable", "i8"), ("ca_state", "i1"), ("place", "i4"),
    ]
)  # fmt: skip
"""A row of the table `intervals`. start_ns, end_ns: CLOCK_MONOTONIC. limit: a number of LIMITS.
cwnd_end in segments. lost_records: missing somewhere in the capture in that time; where it is not
0 the interval is not certain. certain_ns: of its steps in which none is missing, and each segment
was recorded. paceable: bytes that the pacing gives, where that may be the limit. place: the number
of its connection in the block."""
_NO_STEP = -1


@dataclass(frozen=True)
class Steps:
    """(n,) each: the times between the snapshots of a block and those before them.

    limit: a number of LIMITS, _NO_STEP for a connection's first snapshot. start_ns, end_ns.
    sent, acked, received: bytes. lost: records that are missing in the capture in that time.
    receiving: a number of RECEIVING or NOTHING; None where the capture lacks what tells it.
    unseen: (k,) the rows of those of which segments were not recorded. limit is that of their ends;
    cuts: of those whose limit changes. paces: (n,) whether pacing lets nothing out at their ends.
    """

    limit: NDArray[np.int8]
    start_ns: Array
    end_ns: Array
    sent: Array
    acked: Array
    received: Array
    lost: Array
    receiving: NDArray[np.int8] | None
    unseen: Array
    cuts: Cuts
    paces: NDArray[np.bool_]


def cut(block: Block) -> tuple[Array, Steps]:
    """The intervals of a block, a structured array of INTERVAL, those of a connection together and
    in time order; and its steps."""
    return cut_alive(until_closed(block))


def until_closed(block: Block) -> Block:
    """The block with its records of dead sockets at the time of the change to CLOSE: a program may
    keep a socket for long after that."""
    alive = block.last(block["state"] != State.CLOSE)
    last = block.spread(alive[block.lasts])
    is_change = (last >= 0) & (state_after(block.rows)[last] == State.CLOSE)
    dead = is_change & (np.arange(len(block)) > last)
    return block.with_rows(block.rows, np.where(dead, block.times_ns[last], block.times_ns))


def cut_alive(block: Block) -> tuple[Array, Steps]:
    """cut() of what until_closed() gave."""
    steps = _steps(block)
    return _settle(_runs(block, steps)), steps


def _steps(block: Block) -> Steps:
    block = clocks.without_false_probes(block)
    now = {name: block[name] for name in ("snd_max", "snd_una", "rcv_nxt")}
    state, unnumbered = state_after(block.rows), ~has_numbers(block.rows)
    written = (now["snd_una"] + block["snd_sb_cc"]).astype(np.uint32, copy=False)
    paces = clocks.paces(block)
    now |= {
        "time": block.times_ns, "lost": block.lost, "unnumbered": unnumbered, "written": written,
        "busy": block.rows.get("busy_us", unnumbered).astype(np.int64),
    }  # fmt: skip
    limit = classify(block.rows, was_full(block), paces)
    now |= closing.carry(block, state, limit)
    before = {name: block.before(values) for name, values in now.items()}
    sent, acked, received = (
        advance(now[name], before[name]) for name in ("snd_max", "snd_una", "rcv_nxt")
    )
    for bytes_of in (sent, acked, received):
        bytes_of[before["unnumbered"]] = 0
    opens = block["location"] == Location.STATE_CHANGE
    opens = np.flatnonzero(opens & (state == State.ESTABLISHED))
    opens = opens[block["state"][opens] == State.SYN_SENT]
    acked[opens] = block["seg_len"][opens]
    sent[opens] = acked[opens] + advance(now["snd_max"][opens], now["snd_una"][opens])
    unseen = closing.find(block, limit, before, now, sent, acked)
    limit[unseen.rows] = unseen.ended_by
    told, quiet = clocks.quiet(block, limit, before)
    paces[quiet.rows[quiet.limit == NUMBER["pacing"]]] = True
    is_open = np.ones(len(block), np.bool_)
    is_open[told] = False
    rows = mostly_quiet(block, limit, before, acked)
    limit[rows[is_open[rows]]] = NUMBER["idle"]
    rows, held = held_back(block, limit, before, told)
    limit[rows] = NUMBER["nagle"]
    limit[probed(block, limit, before)] = NUMBER["recovery"]
    limit[clocks.lost_firsts(block, limit)] = NUMBER["recovery"]
    tails, tail = clocks.lost_tails(block, limit, before)
    limit[tails] = NUMBER["rto_wait"]
    limit[block.groups] = _NO_STEP
    end = np.maximum(now["time"], before["time"])
    receiving = waits_of(block, ~unnumbered) if NEEDS in block.rows else None
    return Steps(limit, before["time"], end, sent, acked, received,
                 now["lost"] - before["lost"], receiving, unseen.rows,
                 Cuts.join(quiet, held, tail, unseen.cuts), paces)  # fmt: skip


def _runs(block: Block, steps: Steps) -> Array:
    """The runs of one limit in a block, as rows of INTERVAL."""
    names = ("limit", "start_ns", "end_ns", "sent", "acked", "received", "lost")
    of, parts = part(steps.cuts, {name: getattr(steps, name) for name in names})
    limit = parts["limit"]
    begins = block.is_first[of]
    begins[1:] &= of[1:] != of[:-1]
    begins[1:] |= limit[1:] != limit[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(begins)) - 1
    is_run = limit[starts] != _NO_STEP
    unseen = np.zeros(len(block), np.bool_)
    unseen[steps.unseen] = True
    spans = np.where((parts["lost"] == 0) & ~unseen[of], parts["end_ns"] - parts["start_ns"], 0)
    paceable = np.zeros(len(spans), np.int64)
    at = np.flatnonzero(limit == NUMBER["pacing"])
    seconds = (parts["end_ns"][at] - parts["start_ns"][at]) / 1e9
    paceable[at] = np.minimum(block["pacing_rate"][of[at]].astype(np.float64) * seconds, 1 << 60)
    # BBR always paces, in bursts that can be long: nothing else holds back what has room.
    is_sure = at[runs_bbr(block.rows, of[at]) | steps.paces[of[at]]]
    paceable[is_sure] = parts["sent"][is_sure]
    sums = {
        "bytes_sent": parts["sent"], "bytes_acked": parts["acked"],
        "bytes_received": parts["received"], "lost_records": parts["lost"], "certain_ns": spans,
        "paceable": paceable,
    }  # fmt: skip
    rows = np.zeros(int(is_run.sum()), INTERVAL)
    for name, values in sums.items():
        rows[name] = np.add.reduceat(values, starts)[is_run]
    starts, ends = starts[is_run], ends[is_run]
    last = {name: values[of[ends]] for name, values in block.rows.items() if name in _AT_END}
    rows["conn_id"], rows["place"] = last["conn_id"], block.of_row[of[ends]]
    rows["limit"], rows["records"] = limit[starts], ends - starts + 1
    rows["start_ns"], rows["end_ns"] = parts["start_ns"][starts], parts["end_ns"][ends]
    rows["cwnd_end"], rows["snd_wnd_end"] = last["snd_cwnd_segs"], last["snd_wnd"]
    rows["inflight_end"] = np.clip(in_flight(last), -(1 << 31), (1 << 31) - 1)
    rows["notsent_end"], rows["srtt_end_us"] = unsent(last), last["srtt_us"]
    rows["mss"], rows["pacing_rate"] = last["mss"], last["pacing_rate"]
    rows["ca_state"] = np.clip(last["ca_state"], 0, 127)
    return rows


_AT_END = {
    "conn_id", "snd_cwnd_segs", "snd_wnd", "packets_out", "sacked_out", "lost_out", "retrans_out",
    "snd_max", "snd_una", "snd_sb_cc", "srtt_us", "mss", "pacing_rate", "ca_state",
}  # fmt: skip


def advance(now: Array, before: Array) -> Array:
    """(n,) int64 how far 32-bit sequence numbers went forward; steps back are 0."""
    return np.maximum(ahead_of(now, before), 0)


def _settle(rows: Array) -> Array:
    """Whole intervals: those that were taken for paced, and were not, are unknown."""
    # Damaged times can go back: no interval ends before it begins, or is more certain than long.
    rows["end_ns"] = np.maximum(rows["end_ns"], rows["start_ns"])
    rows["certain_ns"] = np.minimum(rows["certain_ns"], rows["end_ns"] - rows["start_ns"])
    guessed = np.flatnonzero(rows["limit"] == NUMBER["pacing"])
    confirmed = is_paced(*(rows[name][guessed] for name in (
        "bytes_sent", "paceable", "pacing_rate", "mss")))  # fmt: skip
    rows["limit"][guessed[~confirmed]] = NUMBER["unknown"]
    return rows
