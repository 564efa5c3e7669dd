# SPDX-License-Identifier: Apache-2.0
"""What a colleague would say of a connection: its main limits, the evidence, what would help."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tcpkmon.formats.analysis.why import remedies
from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.ending import (
    closed_before,
    closed_unsent,
    died_idle,
    ending,
    is_reset,
    kind_of_end,
    outside,
)
from tcpkmon.formats.analysis.why.limits import FAMILY
from tcpkmon.formats.analysis.why.naming import has_no_queue, named
from tcpkmon.formats.analysis.why.peers import quiet_words, sender_words
from tcpkmon.formats.analysis.why.queueing import bloat, late, queue_stands, reads_slowly
from tcpkmon.formats.analysis.why.receiving import MOST_UNSCALED
from tcpkmon.formats.analysis.why.words import human_bytes, human_rate, human_time
from tcpkmon.formats.base.text import endpoint

LEAST_SHARE = 0.05
_MINOR = 0.2
_SHORT_S = 1.0
_MOST = 0.5
_FEW = 1 << 14
"""Bytes of a window that holds some segments at most."""
_NEAR = 0.9
_DOUBT = 0.005
_SHOWN = 0.0005
"""A smaller part of the time would be 0.0 %."""
_BOUNDS = re.compile(r"\(\d+ to \d+ %\)")
_SPARE = 8
"""A send buffer has at most some three times what is in flight: its overhead counts."""
PART_OF = {name: family for name, family in FAMILY.items() if name != "nagle"}
"""Parts that have no sentence of their own."""


def head(one: Connection) -> str:
    """Ends, length, rate, process: the first words of the verdict."""
    arrow = "->" if one.sends else "<-"
    most = max(one.bytes_acked, one.bytes_received)
    owner = f", {one.comm} ({one.pid})" if one.comm else ""
    return (
        f"{endpoint(one.laddr, one.lport)} {arrow} {endpoint(one.raddr, one.rport)}, "
        f"{human_time(1e6 * one.duration_s)}, {'at least ' * one.bytes_at_least}"
        f"{human_bytes(most)}, {human_rate(one.goodput)}{owner}"
    )


def verdict(
    one: Connection, peer: Connection | None = None, excused: Collection[str] = ()
) -> list[str]:
    """Sentences, the most important first; each limit with its evidence and what would help.

    peer: its other end, where the same capture has that. excused: limits, "named" and "ended",
    which a cause has said already, or shows to be no fault.
    """
    found: list[tuple[float, str]] = []
    total = sum(one.limit_ns.values())
    has_end = bool(kind_of_end(one.end_reason, one.errno))
    for name in dict.fromkeys(PART_OF.get(name, name) for name in one.limit_ns):
        share = _sum(one.limit_ns, name) / total
        if name in excused:
            continue
        if name in ("app", "closing") and not (one.sends and one.established):
            continue  # it has nothing to send, and need not; its end may be closed for long
        if name == "opening" and has_end:
            continue  # how it ended says it
        if name == "app" and share < _MINOR and not _is_main(one, name):
            continue  # as before the first write: that is no advice
        if name == "app" and one.requests and share <= one.requests_share + LEAST_SHARE:
            continue  # they say which end's program it was
        if share >= LEAST_SHARE and name in _SENTENCES:
            said = _rwnd(one, peer) if name == "rwnd" else _SENTENCES[name](one)
            found.append((share, f"{_percent(one, name)} of the time {said}"))
    asked = list(zip(one.requests_shares, one.requests, strict=True))
    limits = sorted(found if not one.sends else [*found, *asked], key=lambda item: -item[0])
    texts = [text for _, text in limits]
    if not one.sends:
        texts = [*one.requests, *_receiver(one, peer), *texts]
    if "named" not in excused and (name := named(one)):
        texts.insert(0, name)
    if queue := bloat(one):
        texts.append(queue)
    if unsent := closed_unsent(one):
        texts.insert(0, unsent)
    # What kept it from opening is how it ended, where it never was open.
    has_cause = "ended" in excused or ("opening" in excused and not one.established)
    if not has_cause and (end := ending(one)):
        texts.insert(len(texts) if is_reset(one) else 0, end)
    if total and _is_uncertain(one):
        doubt = 100 * (1 - one.certain_ns / total)
        why = (
            f"{within} records of the capture are missing there"
            if (within := one.lost_records - one.lost_before - one.lost_after)
            else "its segments were not recorded after one end closed, and what held then is "
            "taken to have held on"
        )
        bounds = ", so shares are between the bounds in brackets"
        has_bounds = any(_BOUNDS.search(text) for text in texts)
        texts.append(f"{doubt:.1f} % of the time is not certain: {why}{bounds * has_bounds}")
    return [*(texts or ["too short to tell"] * (not excused)), *outside(one)]


def _is_of_requests(one: Connection) -> bool:
    """Whether requests and answers tell most of its time."""
    return one.requests_share >= _MOST and bool(one.requests)


def _sum(times: Mapping[str, int], name: str) -> int:
    """Of a limit with its parts."""
    return sum(ns for limit, ns in times.items() if PART_OF.get(limit, limit) == name)


def _is_main(one: Connection, name: str) -> bool:
    """Whether no limit held for longer."""
    return _sum(one.limit_ns, name) >= max(_sum(one.limit_ns, other) for other in one.limit_ns)


def _percent(one: Connection, name: str) -> str:
    """A share, with its bounds where records are missing: what is not certain may be any limit."""
    return _bounded(one, _sum(one.limit_ns, name), _sum(one.least_ns, name))


def _bounded(one: Connection, held: int, least: int) -> str:
    """A time as a share. least: the part of it that is certain."""
    total = sum(one.limit_ns.values())
    doubt = total - one.certain_ns
    low, high = f"{100 * least / total:.0f}", f"{100 * (least + doubt) / total:.0f}"
    between = f" ({low} to {high} %)" if low != high and _is_uncertain(one) else ""
    return f"{100 * held / total:.0f} %{between}"


def _is_uncertain(one: Connection) -> bool:
    """Whether that is worth a word: records are missing, or what held is not known for a while."""
    total = sum(one.limit_ns.values())
    doubt = total - one.certain_ns
    within = one.lost_records - one.lost_before - one.lost_after
    return doubt >= (_SHOWN if within else _DOUBT) * total > 0


def cross_check(row: Mapping[str, Any]) -> str:
    """The kernel's counts beside ours, of a row of the table; empty where it lacks them."""
    total, difference = row["duration_us"], row["disagreement_us"]
    if not total or difference is None:
        return ""
    ours = {"receiver's window": row["us_rwnd"] + row["us_zero_window"],
            "send buffer": row["us_sndbuf"]}  # fmt: skip
    kernel = {"receiver's window": row["rwnd_limited_us"], "send buffer": row["sndbuf_limited_us"]}
    parts = [
        f"{name} {100 * kernel[name] / total:.1f} % ({100 * ours[name] / total:.1f} % here)"
        for name in ours
    ]
    return (
        f"the kernel's own counts: {', '.join(parts)}; they differ by up to "
        f"{100 * difference / total:.1f} % of the time"
    )


def _app(one: Connection) -> str:
    idle = one.share("idle")
    text = "the application had nothing to send"
    if idle >= LEAST_SHARE:
        text += f" ({100 * idle:.0f} % with nothing in flight)"
    is_main = _is_main(one, "app") and not died_idle(one)
    return text + ": look at the sender's program, not at the network" * is_main


def _rwnd(one: Connection, peer: Connection | None) -> str:
    window = human_bytes(one.snd_wnd_max)
    path = one.cwnd_max * one.mss
    more = (
        f"; the congestion window would allow {human_bytes(path)}"
        if path > one.snd_wnd_max
        else ""
    )
    zero = one.share("zero_window")
    shut = f", {100 * zero:.0f} % with a window of 0" if zero >= 0.01 else ""
    text = f"limited by the receiver's window (at most {window}{shut}{more}): "
    limited_ns = _sum(one.limit_ns, "rwnd")
    if _holds_few(one, peer) and 2 * one.limit_ns.get("zero_window", 0) < limited_ns:
        return text + remedies.larger_window(one, peer)
    if peer is not None and _is_behind(peer):
        return text + (
            f"the program there reads too slowly, it was up to "
            f"{human_bytes(peer.reader_behind_max)} behind; a larger buffer only hides pauses"
        )
    if reads_slowly(one, limited_ns / 1000):
        return text + (
            f"the program there reads too slowly, its window fell by "
            f"{human_bytes(one.snd_wnd_fall)}; a larger buffer only hides pauses"
        )
    if 2 * path < one.snd_wnd_max and not _is_main(one, "rwnd"):
        return text + _GREW
    if queue_stands(one):
        return text + _NO_LARGER
    if _is_capped(one.snd_wnd_max, one.snd_wscale):
        return text + remedies.scaling(one)
    return text + remedies.larger_window(one, peer)


def _holds_few(one: Connection, peer: Connection | None) -> bool:
    """Whether some segments fill the receiver's buffer: then that it is full tells nothing of its
    reader."""
    if peer is not None and peer.rcvbuf:
        return peer.rcvbuf < 2 * _FEW
    return one.snd_wnd_max < min(4 * one.mss, _FEW)


def _is_behind(one: Connection) -> bool:
    """Whether its reader held a receiver back for longer than all else."""
    held = one.receiving_ns
    behind = held.get("rx_app", 0)
    return behind >= max(LEAST_SHARE * sum(one.limit_ns.values()), *held.values(), 1)


def _is_capped(window: int, scale: int | None) -> bool:
    """Whether no larger window can be told, by the scale that both ends agreed on."""
    return scale is not None and window > _NEAR * (MOST_UNSCALED << scale)


_GREW = (
    "it had not grown yet; later it was larger than all that the congestion window allowed, so a "
    "larger buffer would not help"
)
_NO_LARGER = (
    "but round trips are much longer than the path already: by a queue, which a larger buffer only "
    "lengthens, or by ACKs that the receiver delays: capture there too"
)


def _again(one: Connection) -> str:
    """How much was sent again."""
    if one.retrans_ratio:
        percent = 100 * one.retrans_ratio
        digits = f"{percent:.2g}" if percent < 99.5 else f"{percent:.0f}"
        return f"{digits} % of the data sent again"
    return f"{one.segments_retransmitted} segments sent again"


def _cwnd(one: Connection) -> str:
    slow = one.share("slow_start")
    start = f", {100 * slow:.0f} % in slow start" if slow >= LEAST_SHARE else ""
    again = f", {_again(one)}" if one.segments_retransmitted else ""
    text = (
        f"limited by the congestion window (at most {one.cwnd_max} segments, "
        f"{human_bytes(one.cwnd_max * one.mss)}{start}{again}): "
    )
    if late(one) > 0.3:
        text += f"ACKs came late for {100 * late(one):.0f} %. "
        if reads_slowly(one, one.late_ack_us):
            return text + ("The receiver delays them: its program reads slowly, its window fell by "
                           f"{human_bytes(one.snd_wnd_fall)}")  # fmt: skip
        return text + ("The path serves in turns, as Wi-Fi and mobile networks do, or the receiver "
                       "delays them: capture there too")  # fmt: skip
    if not one.segments_retransmitted and one.ca_name != "bbr" and has_no_queue(one):
        if 2 * slow > one.share("cwnd"):
            text += "it was still growing, so it had met no limit of the path"
        else:
            text += (
                "no loss and no queue shows a limit of the path: it grew slowly, or marks (ECN) or "
                "a clamp held it"
            )
    else:
        text += f"the path is the limit, as {one.ca_name or 'its congestion control'} sees it"
    if slow > 0.5 and not again and one.duration_s < _SHORT_S:
        text += "; a short transfer is faster on a connection that was used before"
    return text


def _sndbuf(one: Connection) -> str:
    text = f"limited by the send buffer ({human_bytes(one.sndbuf)}): "
    if queue_stands(one):
        return text + _NO_LARGER
    if one.srtt_p50_us and one.sndbuf > _SPARE * one.goodput * one.srtt_p50_us / 1e6:
        return text + "it is far larger than the path needs, so a CPU or the receiver is slow"
    return text + remedies.larger_send_buffer(one)


def _receiver(one: Connection, peer: Connection | None) -> list[str]:
    """What a receiver knows: whether its reader and its window kept up, and what was missing."""
    total = sum(one.limit_ns.values())
    told = one.receiving_ns if total else {}
    found = [
        f"{_bounded(one, ns, one.receiving_least_ns.get(name, 0))} of the time "
        f"{_RECEIVING[name](one)}"
        for name, ns in sorted(told.items(), key=lambda item: -item[1])
        if ns >= LEAST_SHARE * total
    ]
    if found:
        return [f"this host receives: {found[0]}", *found[1:]]
    if _is_of_requests(one):
        return []
    if quiet := quiet_words(one, peer):
        return [quiet]
    if "rx_autotune" in told:
        certain = 100 * one.certain_ns / total
        when = f" in the {certain:.0f} % of the time that are certain" if certain < 100 else ""
        return [f"this host receives; its reader kept up and its window had room{when}: it waited "
                f"for the sender or the path{sender_words(peer, ', so capture there too')}"]
    kept_up = ", and its reader kept up" if told else ""
    more = sender_words(peer, ": look at the sender, or capture there too")
    return [f"this host receives{kept_up}{more}"]


def _window(one: Connection) -> str:
    most = one.rcv_wnd_max
    if one.rcv_wscale is not None:
        most = min(most, MOST_UNSCALED << one.rcv_wscale)
    text = f"its window (at most {human_bytes(most)}) was full in each round trip: "
    if _is_capped(most, one.rcv_wscale):
        return text + remedies.scaling(one)
    return text + remedies.larger_own_window(one)


def _reader(one: Connection) -> str:
    behind, buffer = human_bytes(one.reader_behind_max), human_bytes(one.rcvbuf)
    why = "the reading program is slow"
    if 0 < one.rcvbuf < 2 * _FEW:
        why = f"the buffer holds few segments (leave SO_RCVBUF to the kernel), or {why}"
    return f"its reader was behind, by up to {behind} (receive buffer {buffer}): {why}"


_RECEIVING: dict[str, Callable[[Connection], str]] = {
    "rx_app": _reader,
    "rx_autotune": _window,
    "rx_reorder": lambda one: (
        "data waited behind a segment that was missing: the path, or its sender's own host, "
        "drops or reorders packets"
    ),
}
_SENTENCES: dict[str, Callable[[Connection], str]] = {
    "opening": lambda one: (
        "the connection was opening"
        + (f" ({one.syn_retrans} SYN sent again): is the other side there, and its backlog long "
           "enough?" if one.syn_retrans else "")
    ),
    "closing": closed_before,
    "rto_wait": lambda one: (
        f"it waited for a timer that finds a loss ({one.rto_count} retransmission timeouts, "
        f"{one.loss_probes} loss probes): whole flights, the last segments, or what was sent "
        "again, were lost"
    ),
    "recovery": lambda one: (
        f"it recovered from loss ({_again(one)}): the path drops or reorders packets"
        + ", or a queue or device of this host does (tc -s qdisc; the table drops)" * one.sends
    ),
    "sndbuf": _sndbuf,
    "app": _app,
    "nagle": lambda one: (
        "a piece smaller than a segment waited for the ACK of what was sent before (Nagle's "
        "algorithm; the receiver may delay that ACK by 40 ms), or for the application (TCP_CORK, "
        "MSG_MORE): write each message at once, set TCP_NODELAY, or uncork"
    ),
    "rwnd": lambda one: _rwnd(one, None),
    "cwnd": _cwnd,
    "tsq": lambda one: (
        "its data waited in this host's queue or driver: look at tc -s qdisc and the device"
    ),
    "pacing": remedies.pacing,
    "unknown": lambda one: (
        "it had data and room to send and did not: a busy CPU, or what a snapshot does not show"
    ),
}
