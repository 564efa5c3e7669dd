# SPDX-License-Identifier: Apache-2.0
"""What limited a sender in the time before a snapshot.

A snapshot is taken before its ACK counts, so it holds exactly what bounded sending until then. The
first rule that holds names the limit; docs/why.md explains each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.base.tcp import CaState, Location, State

Columns = Mapping[str, Array]

LIMITS = (
    "opening", "rto_wait", "recovery", "sndbuf", "idle", "nagle", "app", "zero_window", "rwnd",
    "slow_start", "cwnd", "tsq", "pacing", "closing", "unknown",
)  # fmt: skip
"""The names by number. idle: app with nothing in flight; nagle: app with a small segment that
waits for an ACK; zero_window: rwnd; slow_start: cwnd."""
NUMBER = {name: number for number, name in enumerate(LIMITS)}
FAMILY = {"idle": "app", "nagle": "app", "zero_window": "rwnd", "slow_start": "cwnd"}
"""The limit of which another is a part."""

LOSS_TIMERS = (Location.RTO, Location.LOSS_PROBE, Location.REO_TIMEOUT)
"""What fires them is a loss that no ACK told."""
_UNPACED = (1 << 64) - 1
_BBR_STARTUP = 1
DELAYED = 2
"""Segments whose ACK a receiver may delay. With more in flight, a writer is about to go on."""
_THROTTLED = 3
"""Of sk_tsq_flags: the kernel holds data back until the device or the qdisc took what it has."""
_TIGHTER = 0.9
"""A rate that paces is below what the window gives in a round trip. The kernel computes one of at
least 1.2 times that for each socket, also where nobody paces."""
_PACING_ERROR = 0.2
_BURSTS = 2
"""A paced sender is at most so many bursts ahead or behind; one is what it sends in a
millisecond, or two segments."""


def unsent(columns: Columns) -> Array:
    """(n,) int64 bytes that were written and not sent."""
    flight = (columns["snd_max"] - columns["snd_una"]).astype(np.uint32).astype(np.int64)
    found: Array = np.maximum(columns["snd_sb_cc"].astype(np.int64) - flight, 0)
    return found


def in_flight(columns: Columns) -> Array:
    """(n,) int64 segments in the network, as the kernel counts them."""
    out, sacked, lost, again = (
        columns[name].astype(np.int64)
        for name in ("packets_out", "sacked_out", "lost_out", "retrans_out")
    )
    return out - sacked - lost + again


def classify(
    columns: Columns, was_full: Array | None = None, paces: Array | None = None
) -> NDArray[np.int8]:
    """(n,) the number of the limit in the time before each snapshot.

    columns: of the snapshots, see snapshots.NEEDED. was_full: (n,) as holding.was_full() tells;
    None: only these rows do. paces: (n,) whether pacing lets nothing out just then. Where that is
    not known, pacing is a guess until is_paced() confirms it: a single step is too short.
    """
    state = columns["state"]
    mss = np.maximum(columns["mss"].astype(np.int64), 1)
    waiting = unsent(columns)
    flight = in_flight(columns)
    cwnd = columns["snd_cwnd_segs"].astype(np.int64)
    sent_up_to = (columns["snd_max"] - columns["snd_una"]).astype(np.uint32).astype(np.int64)
    room = columns["snd_wnd"].astype(np.int64) - sent_up_to
    # The kernel defers a segment (TSO) while the room in the smaller window is under a third of it.
    free = (cwnd - flight) * mss
    chunk = np.minimum(columns["snd_wnd"].astype(np.int64), cwnd * mss) // 3
    deferred = (waiting >= mss) & (np.minimum(free, room) < chunk)
    full = flight >= cwnd
    may_send = ~full & (room >= mss) & (waiting >= mss)
    is_throttled, may_be_throttled = _throttled(columns, flight * mss, mss)
    may_be_paced = _may_be_paced(columns, cwnd * mss)
    if paces is None:
        paces = np.zeros(len(state), np.bool_)
    waits = may_send & may_be_paced & paces
    here = may_send & is_throttled & ~waits
    deferred &= ~here & ~waits
    by_cwnd = (full & (waiting > 0)) | (deferred & (free <= room))
    if was_full is None:
        was_full = is_full(columns)
    if "sk_nospace" in columns:
        was_full = was_full & (columns["sk_nospace"] > 0)
    rules = (
        ("opening", (state == State.SYN_SENT) | (state == State.SYN_RECV)),
        ("rto_wait", is_one_of(columns["location"], LOSS_TIMERS)),
        ("recovery", is_one_of(columns["ca_state"], (CaState.RECOVERY, CaState.LOSS))),
        ("closing", (state != State.ESTABLISHED) & (state != State.CLOSE_WAIT)
                    & ((waiting == 0) | (state == State.CLOSE))),
        ("zero_window", (columns["snd_wnd"] == 0) & (waiting > 0)),
        ("rwnd", (waiting > 0) & (room < np.minimum(mss, waiting)) | (deferred & (room < free))),
        ("sndbuf", (waiting < mss) & was_full),
        ("idle", (waiting == 0) & (flight <= 0)),
        ("slow_start", by_cwnd & is_growing(columns, cwnd)),
        ("cwnd", by_cwnd),
        ("nagle", (waiting > 0) & (waiting < mss) & ~full & (flight <= DELAYED)),
        ("app", (waiting < mss) & ~full),
        ("app", waiting == 0),
        ("pacing", waits),
        ("tsq", here | (may_send & may_be_throttled & ~may_be_paced)),
        ("pacing", may_be_paced),
        *_told_by_the_kernel(columns, waiting),
    )
    found = np.select(
        [holds for _, holds in rules],
        [np.int8(NUMBER[name]) for name, _ in rules],
        np.int8(NUMBER["unknown"]),
    )
    numbers: NDArray[np.int8] = found.astype(np.int8)
    return numbers


def tighter_window(columns: Columns) -> NDArray[np.int8]:
    """(n,) the number of the limit that the window with less room is."""
    mss, cwnd = (columns[name].astype(np.int64) for name in ("mss", "snd_cwnd_segs"))
    sent_up_to = (columns["snd_max"] - columns["snd_una"]).astype(np.uint32).astype(np.int64)
    room = columns["snd_wnd"].astype(np.int64) - sent_up_to
    own = np.where(is_growing(columns, cwnd), NUMBER["slow_start"], NUMBER["cwnd"])
    found = np.where(room < (cwnd - in_flight(columns)) * mss, NUMBER["rwnd"], own)
    return np.asarray(found.astype(np.int8))


def _told_by_the_kernel(columns: Columns, waiting: Array) -> tuple[tuple[str, Array], ...]:
    """The last rules, for what none else names: what TCP itself noted when it last sent."""
    found = []
    if "is_cwnd_limited" in columns:
        found.append(("cwnd", (columns["is_cwnd_limited"] > 0) & (waiting > 0)))
    if "rate_app_limited" in columns:
        found.append(("app", columns["rate_app_limited"] > 0))
    return tuple(found)


def is_paced(sent: Array, paceable: Array, rate: Array, mss: Array) -> NDArray[np.bool_]:
    """(n,) whether the bytes sent are what the pacing gave. rate: the last one [bytes/s]."""
    expected = paceable.astype(np.float64)
    burst = np.maximum(rate.astype(np.float64) / 1000, 2.0 * mss)
    close: NDArray[np.bool_] = np.abs(sent - expected) <= (
        _PACING_ERROR * expected + _BURSTS * burst
    )
    return close


def runs_bbr(columns: Columns, at: Array | slice) -> Array:
    """(m,) whether BBR runs, of these rows; False where the capture does not say."""
    if "ca_name" not in columns:
        return np.zeros(len(columns["state"][at]), np.bool_)
    names = np.ascontiguousarray(columns["ca_name"][at])
    found: Array = names.view(f"S{names.dtype.itemsize}") == b"bbr"
    return found


def is_growing(columns: Columns, cwnd: Array) -> Array:
    """Whether the window doubles each round trip. BBR has no threshold, but a mode for it."""
    below: Array = cwnd < columns["snd_ssthresh"]
    if "bbr_mode" not in columns:
        return below & ~runs_bbr(columns, slice(None))
    mode = columns["bbr_mode"]
    return np.asarray(np.where(mode > 0, mode == _BBR_STARTUP, below))


def _throttled(columns: Columns, flight: Array, mss: Array) -> tuple[Array, Array]:
    """Whether what is in this host's queue holds back more (TCP small queues), and whether it may.

    The kernel allows two of its packets there, or what the pacing gives in a millisecond; when a
    snapshot is taken, some of that may have left. flight: bytes.
    """
    below = columns["sk_wmem_alloc"].astype(np.int64)
    rate = columns["pacing_rate"].astype(np.uint64, copy=False)
    per_ms = np.where(rate != _UNPACED, rate >> np.uint64(10), 0).astype(np.int64)
    # What a segment takes in memory, with its overhead, of all that the socket has.
    held = np.maximum(columns["snd_sb_cc"].astype(np.int64), mss)
    segment = np.maximum(columns["sk_wmem_bytes"].astype(np.int64) * mss // held, mss)
    whole = (flight > 0) & (below >= flight)
    told: Array = (below >= 2 * segment) & (whole | (below >= per_ms))
    if "sk_tsq_flags" in columns:
        told |= columns["sk_tsq_flags"].astype(np.int64) & _THROTTLED > 0
    return told, (below >= segment) & (below + 2 * segment >= per_ms)


def _may_be_paced(columns: Columns, window: Array) -> Array:
    """Whether somebody paces the socket, as far as the capture tells. window: bytes."""
    rate = columns["pacing_rate"].astype(np.uint64, copy=False)
    valid = (rate != _UNPACED) & (rate > 0)
    if "sk_pacing_status" in columns:
        return np.asarray(valid & (columns["sk_pacing_status"] > 0))
    per_rtt = rate.astype(np.float64) * columns["srtt_us"] / 1e6
    lower = (per_rtt > 0) & (per_rtt < _TIGHTER * window)
    return np.asarray(valid & (lower | runs_bbr(columns, slice(None))))


def is_full(columns: Columns) -> NDArray[np.bool_]:
    """(n,) whether a writer found the send buffer full."""
    used, limit = (columns[name].astype(np.int64) for name in ("sk_wmem_bytes", "sb_hiwat"))
    return (limit > 0) & (used >= limit)


def has_room(columns: Columns) -> NDArray[np.bool_]:
    """(n,) whether a third of the send buffer is free: then the kernel wakes a writer."""
    used, limit = (columns[name].astype(np.int64) for name in ("sk_wmem_bytes", "sb_hiwat"))
    return 3 * used <= 2 * limit
