# SPDX-License-Identifier: Apache-2.0
"""What a colleague would say of a connection: its main limits, the evidence, what would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from formats.analysis.why.connections import Connection
from formats.analysis.why.limits import FAMILY

_LEAST_SHARE = 0.05
_BLOAT_RTT_US = 1000


def human_bytes(number: float) -> str:
    """65.5 kB, 2.4 MB; decimal."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def human_rate(bytes_per_s: float) -> str:
    """94 Mbit/s."""
    bits = bytes_per_s * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 1000 or unit == "Gbit/s":
            break
        bits /= 1000
    return f"{bits:.0f} {unit}" if bits >= 100 else f"{bits:.1f} {unit}"


def endpoint(address: str, port: int) -> str:
    """10.0.0.1:80, [::1]:80."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def head(one: Connection) -> str:
    """Ends, length, rate: the first words of the verdict."""
    arrow = "->" if one.sends else "<-"
    most = max(one.bytes_acked, one.bytes_received)
    return (
        f"{endpoint(one.laddr, one.lport)} {arrow} {endpoint(one.raddr, one.rport)}, "
        f"{one.duration_s:.3g} s, {human_bytes(most)}, {human_rate(one.goodput)}"
    )


def verdict(one: Connection) -> list[str]:
    """Sentences, the most important first; each limit with its evidence and what would help."""
    found: list[tuple[float, str]] = []
    shares: dict[str, float] = {}
    for name in one.limit_ns:
        family = FAMILY.get(name, name)
        shares[family] = one.share(family)
    for name, share in shares.items():
        if name == "app" and not one.sends:
            continue  # it has nothing to send, and need not
        if share >= _LEAST_SHARE and name in _SENTENCES:
            held = f"{_percent(one, name, share)} of the time"
            found.append((share, f"{held} {_SENTENCES[name](one)}"))
    texts = [text for _, text in sorted(found, key=lambda item: -item[0])]
    if not one.sends:
        texts = [*_receiver(one), *texts]
    if bloat := _bloat(one):
        texts.append(bloat)
    total = sum(one.limit_ns.values())
    if total and one.certain_ns < total:
        doubt = 100 * (1 - one.certain_ns / total)
        texts.append(
            f"{doubt:.1f} % of the time is not certain: {one.lost_records} records of the capture "
            "are missing there, so shares are between the bounds in brackets"
        )
    return texts or ["too short to tell"]


def _percent(one: Connection, limit: str, share: float) -> str:
    """A share, with its bounds where records are missing."""
    low, high = (100 * bound for bound in one.bounds(limit))
    between = f" ({low:.0f} to {high:.0f} %)" if high - low >= 0.1 else ""
    return f"{100 * share:.0f} %{between}"


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
    if idle >= _LEAST_SHARE:
        text += f" ({100 * idle:.0f} % with nothing in flight)"
    return text + ": look at the sender's program, not at the network"


def _rwnd(one: Connection) -> str:
    window = human_bytes(one.snd_wnd_max)
    path = one.cwnd_max * one.mss
    more = (
        f"; the congestion window would allow {human_bytes(path)}"
        if path > one.snd_wnd_max
        else ""
    )
    zero = one.share("zero_window")
    shut = f", {100 * zero:.0f} % with a window of 0" if zero >= 0.01 else ""
    return (
        f"limited by the receiver's window (at most {window}{shut}{more}): the receiver reads too "
        "slowly, or raise net.ipv4.tcp_rmem[2] or the application's SO_RCVBUF there"
    )


def _cwnd(one: Connection) -> str:
    slow = one.share("slow_start")
    start = f", {100 * slow:.0f} % in slow start" if slow >= _LEAST_SHARE else ""
    again = (
        f", {one.segments_retransmitted} segments sent again" if one.segments_retransmitted else ""
    )
    return (
        f"limited by the congestion window (at most {one.cwnd_max} segments, "
        f"{human_bytes(one.cwnd_max * one.mss)}{start}{again}): the path is the limit, as "
        f"{one.ca_name or 'its congestion control'} sees it"
    )


def _sndbuf(one: Connection) -> str:
    return (
        f"limited by the send buffer ({human_bytes(one.sndbuf)}): raise net.ipv4.tcp_wmem[2] or "
        "the application's SO_SNDBUF on the sender"
    )


def _bloat(one: Connection) -> str:
    if one.min_rtt_us is None or one.srtt_p95_us is None or not one.sends:
        return ""
    if one.srtt_p95_us <= 2 * one.min_rtt_us or one.srtt_p95_us <= _BLOAT_RTT_US:
        return ""
    queue = (one.srtt_p95_us - one.min_rtt_us) / 1000
    return (
        f"round trips take {one.srtt_p95_us / 1000:.1f} ms (95 %), the path alone "
        f"{one.min_rtt_us / 1000:.1f} ms: {queue:.1f} ms in queues"
    )


def _receiver(one: Connection) -> list[str]:
    """What a receiver knows: whether its reader and its window kept up, and what was missing."""
    total = sum(one.limit_ns.values())
    told = {name: ns / total for name, ns in one.receiving_ns.items() if total}
    found = [
        f"{100 * share:.0f} % of the time {_RECEIVING[name](one)}"
        for name, share in sorted(told.items(), key=lambda item: -item[1])
        if share >= _LEAST_SHARE
    ]
    behind = one.rcvbuf and one.reader_behind_max > one.rcvbuf // 4
    if found:
        return [f"this host receives: {found[0]}", *found[1:]]
    if behind and not told:
        return [
            f"this host receives, and its reader was up to {human_bytes(one.reader_behind_max)} "
            f"behind (receive buffer {human_bytes(one.rcvbuf)}): the reading program is slow"
        ]
    return ["this host receives, and its reader kept up: look at the sender, or capture there too"]


_RECEIVING: dict[str, Callable[[Connection], str]] = {
    "rx_app": lambda one: (
        f"its reader was behind, by up to {human_bytes(one.reader_behind_max)} (receive buffer "
        f"{human_bytes(one.rcvbuf)}): the reading program is slow"
    ),
    "rx_autotune": lambda one: (
        f"its window (at most {human_bytes(one.rcv_wnd_max)}) was full in each round trip: raise "
        "net.ipv4.tcp_rmem[2] here, or leave SO_RCVBUF to the kernel"
    ),
    "rx_reorder": lambda one: (
        "data waited behind a segment that was missing: the path drops or reorders packets"
    ),
}
_SENTENCES: dict[str, Callable[[Connection], str]] = {
    "opening": lambda one: "the connection was opening",
    "rto_wait": lambda one: (
        f"it waited for a retransmission timeout ({one.rto_count} fired): whole flights or the "
        "last segments were lost"
    ),
    "recovery": lambda one: (
        f"it recovered from loss ({one.segments_retransmitted} segments sent again): the path "
        "drops or reorders packets"
    ),
    "sndbuf": _sndbuf,
    "app": _app,
    "rwnd": _rwnd,
    "cwnd": _cwnd,
    "tsq": lambda one: (
        "its data waited in this host's queue or driver: look at tc -s qdisc and the device"
    ),
    "pacing": lambda one: (
        f"it was paced ({one.ca_name or 'congestion control, or SO_MAX_PACING_RATE'}): sending "
        "followed the pacing rate"
    ),
    "unknown": lambda one: (
        "it had data and room to send and did not: a busy CPU, or what a snapshot does not show"
    ),
}
