# SPDX-License-Identifier: Apache-2.0
"""Times that TCP's own clocks tell: when the application wrote, and when TCP sent.

    snapshots           s0 ................................................... s1
    the application        all is acknowledged    writes   uncorks
    TCP                    nothing in flight      | holds  | sends | a round trip |
    busy_us                                       | counts .......................|
    first_tx_us                                            ^

A snapshot shows the end of its step. Where all that was written by s0 is acknowledged at s1, and
nothing more, these columns tell when that ended: busy_us grows from the first byte in the empty
buffer on, and first_tx_us is when the first segment left.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.limits import LOSS_TIMERS, NUMBER, is_paced, unsent
from tcpkmon.formats.analysis.why.parting import Cuts
from tcpkmon.formats.base.tcp import CaState, Location

FIRST_TX, NEXT_TX, _BUSY = CLOCKS = ("first_tx_us", "next_tx_us", "busy_us")
_JIFFY_NS = 5_000_000
"""busy_us counts in jiffies, on most kernels of 4 ms."""
FALSE_PROBE = 0
_AHEAD = 1000
_BURSTS = 3
"""Fewer of them tell nothing of a rate."""
_HELD_NS = 1_000_000
"""A piece that does not wait is sent sooner, when the ACK before it has come."""
_NOTHING = np.array([NUMBER["app"], NUMBER["closing"]], np.int8)


def age_ns(block: Block, name: str, rows: Array | slice = slice(None)) -> Array:
    """(k,) how long before these snapshots a clock of 32 bits in us stood there; below 0: after."""
    now = block.times_ns[rows] // 1000
    ahead = (now - block[name][rows].astype(np.int64)) & 0xFFFFFFFF
    return (ahead - (ahead >> 31 << 32)) * 1000


def paces(block: Block) -> NDArray[np.bool_]:
    """(n,) whether pacing lets nothing out at these snapshots."""
    if NEXT_TX not in block.rows:
        return np.zeros(len(block), np.bool_)
    return np.asarray(age_ns(block, NEXT_TX) < 0)


def without_false_probes(block: Block) -> Block:
    """The block, with the location FALSE_PROBE where a loss probe's timer found no loss.

    TCP reduces its window at the first ACK of data that was sent after the probe, unless the
    receiver had both the probe and what it was for: then only the ACK was late. Where that ACK is
    not among the next records of the block, nobody knows.
    """
    probes = np.flatnonzero(block["location"] == Location.LOSS_PROBE)
    if FIRST_TX not in block.rows or not len(probes):
        return block
    una = block["snd_una"].astype(np.uint32, copy=False)
    last = block.spread(block.lasts)
    is_loss = (block["location"] == Location.CONG_STATE) & (block["callvalue"] > CaState.DISORDER)
    location = block["location"].copy()
    for at in probes.tolist():
        rest = slice(at + 1, min(int(last[at]), at + _AHEAD) + 1)
        beyond = (una[rest] - block["snd_max"][at].astype(np.uint32)).view(np.int32) > 0
        first = int(beyond.argmax()) if beyond.any() else -1
        if first >= 0 and not is_loss[rest][: first + 1].any():
            location[at] = FALSE_PROBE
    return block.with_rows({**block.rows, "location": location})


def quiet(block: Block, limit: Array, before: Mapping[str, Array]) -> tuple[Array, Cuts]:
    """The rows of which the clocks tell, and the cuts of their steps.

    limit: (n,) of classify(). before: what the snapshots before had, with `written`, `snd_max`,
    `time`, `lost`, `unnumbered` and `busy`.
    """
    if not block.rows.keys() >= set(CLOCKS):
        none = np.zeros(0, np.int64)
        return none, Cuts.make(none, none, 0)
    una, sent = block["snd_una"], before["snd_max"]
    free = _free_ns(block)
    ends = una == before["written"]
    left = (before["written"] - sent).astype(np.uint32)
    # A piece that was there when all before it was acknowledged, and less than a segment.
    holds = (una == sent) & (left > 0) & (left < block["mss"]) & (free <= before["time"])
    rows = np.flatnonzero(
        (ends | holds)
        & (block["snd_sb_cc"] > 0)
        & ~before["unnumbered"]
        & (block.lost == before["lost"])
        & (limit != NUMBER["opening"])
    )
    end, start = block.times_ns[rows], before["time"][rows]
    flies = block["packets_out"][rows] > 0
    sent_at = np.where(flies, end - age_ns(block, FIRST_TX, rows), end)
    told = np.flatnonzero((sent_at >= start) & (sent_at <= end))
    rows, end, start, sent_at = rows[told], end[told], start[told], sent_at[told]
    grown = (block[_BUSY][rows].astype(np.int64) - before["busy"][rows]) * 1000
    wrote = np.where(ends[rows], np.clip(end - grown, start, sent_at), start)
    # Only corks hold back where nothing is in flight, the window is open and pacing lets it out.
    corked = (block["snd_wnd"][rows] > 0) & (free[rows] <= wrote)
    held = np.where(ends[rows], _JIFFY_NS, _HELD_NS)
    corked &= sent_at - wrote > held
    wrote = np.where(corked | ~ends[rows], wrote, sent_at)
    idles, holds_back = wrote > start, corked & (sent_at > wrote)
    # What was acknowledged and arrived, was so at the beginning.
    first = Cuts.make(rows[idles], wrote[idles], NUMBER["idle"], acked=1.0)
    held_until = _uncorked(block, rows, limit, sent_at)
    second = Cuts.make(rows[holds_back], held_until[holds_back], NUMBER["nagle"],
                       sent=np.where(held_until > sent_at, 1.0, 0.0)[holds_back],
                       acked=np.where(idles[holds_back], 0.0, 1.0))  # fmt: skip
    return rows, Cuts.join(first, second, _paced(block, rows, limit, sent_at))


def _free_ns(block: Block) -> Array:
    """(n,) from when on pacing let out what was written after the snapshot before each one [ns]:
    what was sent until then is paid for. 0 where nobody paces, and where nothing was sent."""
    paces = block.rows.get("sk_pacing_status", np.zeros(len(block), np.uint16)) > 0
    paid_for = np.where(block[NEXT_TX] > 0, block.times_ns - age_ns(block, NEXT_TX), 0)
    return np.where(paces, block.before(paid_for), 0)


def _uncorked(block: Block, rows: Array, limit: Array, sent_at: Array) -> Array:
    """(k,) when the last segment of a corked message was sent: until then the cork held back. That
    is a small one, and all is sent, with room, before the first ACK comes; else `sent_at`."""
    last = block.times_ns[rows] - age_ns(block, NEXT_TX, rows)
    size = (block["snd_max"][rows] - block["snd_una"][rows]).astype(np.uint32)
    columns = {name: block[name][rows] for name in ("snd_max", "snd_una", "snd_sb_cc")}
    is_small = size % np.maximum(block["mss"][rows], 1) > 0
    chosen = (limit[rows] == NUMBER["app"]) & is_small & (unsent(columns) == 0)
    chosen &= (last > sent_at + _HELD_NS) & (last <= block.times_ns[rows])
    return np.where(chosen, last, sent_at)


def _paced(block: Block, rows: Array, limit: Array, sent_at: Array) -> Cuts:
    """Where pacing let out what is in flight at the end, although all of it has left by then: from
    the first segment to the last one it took what the rate gives."""
    size = (block["snd_max"][rows] - block["snd_una"][rows]).astype(np.uint32).astype(np.float64)
    rate = np.maximum(block["pacing_rate"][rows].astype(np.float64), 1.0)
    burst = np.maximum(2.0 * block["mss"][rows], rate / 1000)
    ready = block.times_ns[rows] - age_ns(block, NEXT_TX, rows)
    paceable = rate * (ready - sent_at) / 1e9
    paced = is_paced(size, paceable, rate, block["mss"][rows]) & (size > _BURSTS * burst)
    paced &= block.rows.get("sk_pacing_status", block["state"] * 0)[rows] > 0
    at = np.flatnonzero(paced & (limit[rows] == NUMBER["app"]))
    # The last burst left when the one before it had been paid for.
    until = np.maximum(ready[at] - burst[at] / rate[at] * 1e9, sent_at[at]).astype(np.int64)
    until = np.minimum(until, block.times_ns[rows[at]])
    return Cuts.make(rows[at], until, NUMBER["pacing"], sent=1.0)


def lost_firsts(block: Block, limit: Array) -> Array:
    """The rows whose steps wait for a loss that ACKs tell later: nothing is unsent, nothing new is
    sent until then, and what is lost is the first segment in flight. limit: as lost_tails()."""
    tells = (block["location"] == Location.CONG_STATE) & (block["callvalue"] >= CaState.RECOVERY)
    if FIRST_TX not in block.rows or not tells.any():
        return np.zeros(0, np.int64)
    rows, told = _rows_before(block, tells, limit)
    same = [block[name][told] == block[name][rows] for name in ("snd_max", "snd_una")]
    found: Array = rows[same[0] & same[1]]
    return found


def _rows_before(block: Block, events: Array, limit: Array) -> tuple[Array, Array]:
    """The rows in whose steps there was nothing to send, with data in flight, and the next one of
    these events of the same connection."""
    count = len(block)
    after = np.minimum.accumulate(np.where(events, np.arange(count), count)[::-1])[::-1]
    last = block.spread(block.lasts)
    chosen = (after <= last) & is_one_of(limit, _NOTHING) & (block["packets_out"] > 0)
    rows = np.flatnonzero(chosen)
    return rows, after[rows]


def lost_tails(block: Block, limit: Array, before: Mapping[str, Array]) -> tuple[Array, Cuts]:
    """The rows whose steps wait for a loss that a timer finds later, and where that begins.

    What that timer finds was sent after the newest segment that is acknowledged then. limit: (n,)
    as found so far. Only within a block: the time before it is told already.
    """
    none = np.zeros(0, np.int64)
    is_timer = is_one_of(block["location"], LOSS_TIMERS)
    if FIRST_TX not in block.rows or not is_timer.any():
        return none, Cuts.make(none, none, 0)
    rows, timers = _rows_before(block, is_timer, limit)
    since = block.times_ns[timers] - age_ns(block, FIRST_TX, timers)
    chosen = (block["snd_max"][timers] == block["snd_max"][rows]) & (since < block.times_ns[rows])
    rows, since = rows[chosen], since[chosen]
    inside = since > before["time"][rows]
    at = rows[inside]
    return rows, Cuts.make(at, since[inside], limit[at], sent=1.0, acked=1.0)
