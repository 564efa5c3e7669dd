# SPDX-License-Identifier: Apache-2.0
"""A live trial: the settings it tries, the connections with them and without, and what they differ
by."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.diff.statistics import (
    RATE,
    RATIO,
    TOO_FEW,
    Compared,
    change_text,
    compare,
)
from tcpkmon.formats.analysis.why import Connection, Snapshots
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.tcp import Location, State
from tcpkmon.formats.base.text import suggest

CONGESTION, LOWAT, INITCWND = "tcp_congestion_control", "tcp_notsent_lowat", "initcwnd"
CLAMP, SO_SNDBUF, SO_RCVBUF = "snd_cwnd_clamp", "so_sndbuf", "so_rcvbuf"
RTO_MIN, DELACK_MAX = "rto_min_us", "delack_max_us"
_BOUNDS = {
    LOWAT: (1, (1 << 31) - 1), INITCWND: (1, 1000), CLAMP: (1, 1 << 20), SO_SNDBUF: (1, 1 << 30),
    SO_RCVBUF: (1, 1 << 30), RTO_MIN: (1, 200_000), DELACK_MAX: (1, 200_000),
}  # fmt: skip
"""The kernel has bounds of its own."""
NAMES = (CONGESTION, *_BOUNDS)
"""That a BPF program can set on a socket."""
METRICS = ("duration_us", "goodput_mean", "srtt_p50_us", "srtt_p95_us", "retrans_ratio")
_MAIN = "duration_us"
"""What a setting is meant to make smaller."""
_ROUTE = "on this host: ip route change <the route to the peer, as ip route get shows it>"
_SYSCTL, _CALL = "on this host: sysctl -w net.ipv4.", "the program: setsockopt"
_PLACES = {
    CONGESTION: _SYSCTL + CONGESTION + "={}", LOWAT: _SYSCTL + LOWAT + "={}",
    INITCWND: _ROUTE + " initcwnd {}", CLAMP: _ROUTE + " cwnd lock {}",
    RTO_MIN: _ROUTE + " rto_min {}us",
    SO_SNDBUF: _CALL + "(SOL_SOCKET, SO_SNDBUF, {})",
    SO_RCVBUF: _CALL + "(SOL_SOCKET, SO_RCVBUF, {})",
    DELACK_MAX: _CALL + "(IPPROTO_TCP, TCP_DELACK_MAX_US, {}), from Linux 6.15 on",
}  # fmt: skip
"""Where each is written for good."""
_SLACK_NS = 50_000_000
"""A connection that was accepted is decided on before its first record."""
_OPEN, _CLOSING, _LAST_DATA = "open", "closing", "last data"
_NOT_BUSY = ("idle", "opening", _CLOSING)
_FIN_SENT = (State.FIN_WAIT1, State.LAST_ACK, State.CLOSING)
"""TCP_FIN_WAIT1, TCP_LAST_ACK, TCP_CLOSING: what leaves them had its FIN acknowledged, so all data.
TCP_FIN_WAIT1 is left for TCP_CLOSING when the peer's FIN came, and no ACK."""


@dataclass(frozen=True)
class Setting:
    """name: of NAMES. value: a congestion control or a number."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


@dataclass(frozen=True)
class Variant:
    """Settings that are tried together."""

    settings: tuple[Setting, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.settings))

    @property
    def of_receiver(self) -> bool:
        """Whether all are settings of the end that receives."""
        return all(one.name in (SO_RCVBUF, DELACK_MAX) for one in self.settings)

    @property
    def where_to_write(self) -> list[str]:
        """What sets it for good, a line each."""
        return [_PLACES[one.name].format(one.value) for one in self.settings]


def parse_variant(text: str) -> Variant:
    """NAME=VALUE[,NAME=VALUE...], as in initcwnd=30. UsageError."""
    found = []
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        name = name.removeprefix("net.ipv4.")
        if name not in NAMES:
            raise UsageError(
                f"--set {part!r}: no such setting of a socket{suggest(name, NAMES)}",
                f"one of {', '.join(NAMES)}, as in initcwnd=30",
            )
        found.append(Setting(name, value))
        if name == CONGESTION:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,15}", value, re.ASCII):
                raise UsageError(f"--set {part!r}: not a congestion control", "bbr, for example")
            continue
        least, most = _BOUNDS[name]
        if not value.isascii() or not value.isdecimal() or not least <= int(value) <= most:
            raise UsageError(f"--set {part!r}: a number from {least} to {most} is needed")
    if len({one.name for one in found}) < len(found):
        raise UsageError(f"--set {text!r} sets something twice")
    return Variant(tuple(found))


@dataclass(frozen=True)
class Decision:
    """A new connection's end, and whether it got the setting. time_ns: of CLOCK_MONOTONIC."""

    laddr: str
    lport: int
    raddr: str
    rport: int
    time_ns: int
    has_it: bool


@dataclass(frozen=True)
class Halves:
    """The ends that count, without the setting and with it. unknown: decisions that no connection
    of the capture has alone; other_way: connections whose other direction had more data."""

    old: list[Connection]
    new: list[Connection]
    unknown: int
    other_way: int

    @property
    def open(self) -> int:
        """Those that had not ended: their durations do not count."""
        return sum(one.end_reason == _OPEN for one in (*self.old, *self.new))


def halve(
    connections: Sequence[Connection], decisions: Sequence[Decision], of_receiver: bool
) -> Halves:
    """Who had what. of_receiver: the ends that receive count, else those that send."""
    by_ends: dict[tuple[Any, ...], list[Connection]] = {}
    for one in connections:
        by_ends.setdefault(_ends(one.laddr, one.lport, one.raddr, one.rport), []).append(one)
    owners: dict[int, list[Decision]] = {}
    of_id = {one.conn_id: one for one in connections}
    unknown = other_way = 0
    for made in decisions:
        key = _ends(made.laddr, made.lport, made.raddr, made.rport)
        mine = [one for one in by_ends.get(key, ())
                if one.start_ns - _SLACK_NS <= made.time_ns <= one.end_ns]  # fmt: skip
        if len(mine) == 1:
            owners.setdefault(mine[0].conn_id, []).append(made)
        else:
            unknown += 1
    sides: tuple[list[Connection], list[Connection]] = [], []
    for conn_id, mades in owners.items():
        one = of_id[conn_id]
        if len(mades) > 1:
            unknown += len(mades)
        elif not max(one.bytes_acked, one.bytes_received) or one.sends == of_receiver:
            other_way += 1
        else:
            sides[mades[0].has_it].append(one)
    return Halves(*sides, unknown, other_way)


def _ends(laddr: str, lport: int, raddr: str, rport: int) -> tuple[Any, ...]:
    return _plain(laddr), lport, _plain(raddr), rport


def _plain(text: str) -> str:
    """An address; v4-mapped ones as IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def acknowledged(piece: Snapshots) -> dict[int, int]:
    """When all that a connection sent was acknowledged [ns], of those that closed, by conn_id."""
    found: dict[int, int] = {}
    state = piece["state"]
    leaves = np.isin(state, _FIN_SENT) & (piece["location"] == Location.STATE_CHANGE)
    leaves &= (state != _FIN_SENT[0]) | (piece["callvalue"] != State.CLOSING)
    for at in np.flatnonzero(leaves).tolist():
        found.setdefault(int(piece["conn_id"][at]), int(piece.times_ns[at]))
    return found


def with_last_data(one: Connection, acked_ns: int | None) -> Connection:
    """The same, and of the time in which it closed apart what was waited for the last data's ACK.

    `why` calls all that time `closing`, as it is the other end's too.
    """
    closing = one.limit_ns.get(_CLOSING, 0)
    if acked_ns is None or not closing:
        return one
    last = max(closing - max(one.end_ns - acked_ns, 0), 0)
    limits = {**one.limit_ns, _CLOSING: closing - last, _LAST_DATA: last}
    return replace(one, limit_ns=limits)


def values_of(one: Connection, of_receiver: bool) -> Mapping[str, float]:
    """What is compared, by METRICS.

    A sender's duration is the time in which there was something to send, or to be acknowledged; a
    receiver does not know when it was waited for.
    """
    if of_receiver:
        values = {"duration_us": 1e6 * one.duration_s, "goodput_mean": one.goodput}
    else:
        busy_ns = [ns for name, ns in one.limit_ns.items() if name not in _NOT_BUSY]
        total_ns = max(sum(busy_ns), 1)
        values = {
            "duration_us": total_ns / 1000,
            "goodput_mean": one.bytes_acked * 1e9 / total_ns,
            "retrans_ratio": one.segments_retransmitted * one.mss / max(one.bytes_sent, 1),
        }
        for name in ("srtt_p50_us", "srtt_p95_us"):
            value = getattr(one, name)
            if value is not None:
                values[name] = float(value)
    return {name: value for name, value in values.items()
            if one.end_reason != _OPEN or name != "duration_us"}  # fmt: skip


def judge(halves: Halves, variant: Variant) -> Outcome:
    """The two sides, compared as `tcpkmon diff` does."""
    old, new = (_columns(side, variant.of_receiver) for side in (halves.old, halves.new))
    found, _ = compare(old, new, {_MAIN}, metrics=METRICS)
    compared = {one.metric.name: one for one in found}
    return Outcome(variant, compared, (len(halves.old), len(halves.new)))


def _columns(side: Sequence[Connection], of_receiver: bool) -> dict[str, NDArray[Any]]:
    found: dict[str, list[float]] = {}
    for one in side:
        for name, value in values_of(one, of_receiver).items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


@dataclass(frozen=True)
class Outcome:
    """Connections with a setting beside those without. compared: by metric. counts: connections,
    without it and with it."""

    variant: Variant
    compared: dict[str, Compared]
    counts: tuple[int, int]

    @property
    def main(self) -> Compared:
        """The metric that a setting is meant to improve."""
        return self.compared[_MAIN]

    @property
    def is_proven(self) -> bool:
        """Whether that is better."""
        return self.main.is_worse is False

    @property
    def judgement(self) -> str:
        """What the main metric says."""
        main, (old, new) = self.main, self.counts
        name = main.metric.name.removesuffix("_us")
        counted = f"{old} connections without it and {new} with it"
        if main.result == TOO_FEW or main.a is None or main.b is None:
            return f"{counted} are too few to tell: --for"
        if main.interval is None:
            low = high = change_text(main.metric, main.change)
        else:
            low, high = (change_text(main.metric, end) for end in main.interval)
        if main.is_worse is None:
            return f"it changes nothing that {counted} would show: {name} {low} to {high}"
        word = "it is worse" if main.is_worse else "proven here"
        return f"{word}: {name} {change_text(main.metric, main.change)}, 95 %: {low} to {high}"

    def lines(self) -> list[str]:
        """For people."""
        found = [str(self.variant)]
        for name, row in self.compared.items():
            if row.a is None or row.b is None:
                continue
            scale, unit = {RATE: (8e-6, "Mbit/s"), RATIO: (100, "%")}.get(
                row.metric.kind, (1e-3, "ms"))  # fmt: skip
            low, high = row.interval or (None, None)
            interval = f"{change_text(row.metric, low)} to {change_text(row.metric, high)}"
            found.append(
                f"    {name.removesuffix('_us'):18} {scale * row.a.median:>9.4g} -> "
                f"{scale * row.b.median:<9.4g} {unit:7} {change_text(row.metric, row.change):>9}"
                + (f"  (95 %: {interval})" if row.interval else "") + f"  {row.result}"
            )  # fmt: skip
        found.append(f"    {self.judgement}")
        if self.is_proven:
            found.append("    to write:")
            found += [f"        {line}" for line in self.variant.where_to_write]
        return found

    def as_json(self) -> dict[str, Any]:
        """All of it. counts: connections without it and with it."""
        return {
            "settings": str(self.variant), "counts": list(self.counts), "main": _MAIN,
            "proven": self.is_proven, "judgement": self.judgement,
            "write": self.variant.where_to_write,
            "metrics": [
                {"metric": name, "result": row.result, "change": row.change,
                 "interval": row.interval, "p": row.p, "a": asdict(row.a) if row.a else None,
                 "b": asdict(row.b) if row.b else None}
                for name, row in self.compared.items()
            ],
        }  # fmt: skip
