# SPDX-License-Identifier: Apache-2.0
"""Settings that `tcpkmon try` tries: which ones limits suggest, and how to write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tcpkmon.formats.analysis.trying.fitting import RWND, SNDBUF, Fitted
from tcpkmon.formats.analysis.trying.seen import Seen
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.schema import suggest

RMEM, WMEM, CONGESTION = "tcp_rmem", "tcp_wmem", "tcp_congestion_control"
LOWAT, RESTART, INITCWND = "tcp_notsent_lowat", "tcp_slow_start_after_idle", "initcwnd"
QDISC = "qdisc"
CLAMP, SO_SNDBUF, SO_RCVBUF = "snd_cwnd_clamp", "so_sndbuf", "so_rcvbuf"
RTO_MIN, DELACK_MAX = "rto_min_us", "delack_max_us"
_BOUNDS = {
    RMEM: (4096, 1 << 30), WMEM: (4096, 1 << 30), LOWAT: (1, (1 << 31) - 1), RESTART: (0, 1),
    INITCWND: (1, 1000), CLAMP: (1, 1 << 20), SO_SNDBUF: (1, 1 << 30), SO_RCVBUF: (1, 1 << 30),
    RTO_MIN: (1, 200_000), DELACK_MAX: (1, 200_000),
}  # fmt: skip
"""The kernel has bounds of its own."""
NAMES = (RMEM, WMEM, CONGESTION, LOWAT, RESTART, INITCWND, QDISC)
"""Of a copy."""
LIVE_NAMES = (CONGESTION, LOWAT, INITCWND, CLAMP, SO_SNDBUF, SO_RCVBUF, RTO_MIN, DELACK_MAX)
"""That a BPF program can set on a socket."""
_ENOUGH = 0.2
_LARGEST = 64 << 20


@dataclass(frozen=True)
class Setting:
    """name: of NAMES or LIVE_NAMES. value: a congestion control, a queueing discipline as tc takes
    it, or a number; of tcp_rmem and tcp_wmem the largest size."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    @property
    def of_receiver(self) -> bool:
        """Whether it is a setting of the end that receives."""
        return self.name in (RMEM, SO_RCVBUF, DELACK_MAX)


@dataclass(frozen=True)
class Variant:
    """Settings that are tried together. why: what suggests them, or empty. live: on connections of
    programs, not on a copy."""

    settings: tuple[Setting, ...]
    why: str = ""
    live: bool = False

    def __str__(self) -> str:
        return ",".join(map(str, self.settings))

    @property
    def main_metric(self) -> str:
        """What it is meant to make smaller: of tcp_notsent_lowat alone, on a copy, the time from
        write to read, else the time that the transfer takes."""
        only_lowat = {one.name for one in self.settings} == {LOWAT}
        return "latency_whole_us" if only_lowat and not self.live else "duration_us"

    @property
    def of_receiver(self) -> bool:
        """Whether all are settings of the end that receives."""
        return all(one.of_receiver for one in self.settings)


def parse_variant(text: str, live: bool = False) -> Variant:
    """NAME=VALUE[,NAME=VALUE...], as in tcp_rmem=6291456. UsageError."""
    found = []
    names = LIVE_NAMES if live else NAMES
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip().removeprefix("net.ipv4.")
        if name not in names:
            raise UsageError(f"--set {part!r}: {_no_such(name, live)}",
                             f"one of {', '.join(names)}, as in {names[2]}=")  # fmt: skip
        found.append(Setting(name, _value(part, name, value.split())))
    if len({one.name for one in found}) < len(found):
        raise UsageError(f"--set {text!r} sets something twice")
    return Variant(tuple(found), live=live)


def _no_such(name: str, live: bool) -> str:
    if name in NAMES:
        return "no program can set that on a socket, so not with --live"
    if name in LIVE_NAMES:
        return "only with --live"
    return f"no such setting{suggest(name, LIVE_NAMES if live else NAMES)}"


def _value(part: str, name: str, words: list[str]) -> str:
    value = words[-1] if words else ""
    if name == CONGESTION:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,15}", value, re.ASCII):
            raise UsageError(f"--set {part!r}: not a congestion control", "bbr, for example")
    elif name == QDISC:
        value = " ".join(words)
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,15}( [A-Za-z0-9_.%]{1,32}){0,40}", value, re.ASCII):
            raise UsageError(f"--set {part!r}: not a queueing discipline",
                             "write it as tc does: qdisc=tbf rate 20mbit burst 16kb limit 60kb")
    else:
        least, most = _BOUNDS[name]
        if not value.isascii() or not value.isdecimal() or not least <= int(value) <= most:
            raise UsageError(f"--set {part!r}: a number from {least} to {most} is needed")
    return value


def propose(seen: Seen, fitted: Fitted, algorithms: Sequence[str]) -> list[Variant]:
    """What the limits that `why` finds suggest, most time first. algorithms: that there are."""
    one = seen.connection
    found: list[tuple[float, Variant]] = []

    def add(share: float, setting: Setting, why: str) -> None:
        if share >= _ENOUGH:
            found.append((share, Variant((setting,), f"{100 * share:.0f} % of the time {why}")))

    window = one.share(RWND) - one.share("zero_window")
    add(window, Setting(RMEM, str(_room(fitted, 2 * fitted.window_bytes))),
        "its receiver's window limited it")  # fmt: skip
    add(one.share(SNDBUF), Setting(WMEM, str(_room(fitted, fitted.sndbuf_bytes))),
        "its send buffer limited it")  # fmt: skip
    slow, window = one.share("slow_start"), one.share("cwnd") - one.share("slow_start")
    if any(burst.pause_s > 0.2 for burst in seen.bursts[1:]):
        if seen.settings.get(f"net.ipv4.{RESTART}") != "0":
            add(slow, Setting(RESTART, "0"), "it was in slow start, also after pauses")
    elif slow >= _ENOUGH:
        add(slow, Setting(INITCWND, "30"), "it was in slow start")
    if "bbr" in algorithms and one.ca_name != "bbr" and fitted.loss_percent > 0:
        lost = one.share("recovery") + one.share("rto_wait")
        add(window + lost, Setting(CONGESTION, "bbr"),
            "its window limited it or it recovered, by losses that no queue made")  # fmt: skip
    return [variant for _, variant in sorted(found, key=lambda item: -item[0])]


def _room(fitted: Fitted, now: float) -> int:
    """A buffer for twice what the path holds, with its overhead, and at least for twice of now; a
    power of two."""
    holds = fitted.rate_mbit * 1e6 / 8 * fitted.rtt_ms / 1000
    return int(min(_LARGEST, 1 << int(max(4 * holds, 2 * now, 65_536) - 1).bit_length()))


_ROUTE = "ip route change <the route to the peer, as ip route get shows it>"
_PLACES = {
    INITCWND: _ROUTE + " initcwnd {}", CLAMP: _ROUTE + " cwnd lock {}",
    RTO_MIN: _ROUTE + " rto_min {}us",
    QDISC: "tc qdisc replace dev <the device to the peer> root {}",
    SO_SNDBUF: "the program: setsockopt(SOL_SOCKET, SO_SNDBUF, {})",
    SO_RCVBUF: "the program: setsockopt(SOL_SOCKET, SO_RCVBUF, {})",
    DELACK_MAX: "the program: setsockopt(IPPROTO_TCP, TCP_DELACK_MAX_US, {}), from Linux 6.15 on",
}  # fmt: skip
"""Where what is no sysctl is written."""


def what_to_write(variant: Variant, settings: dict[str, str]) -> list[str]:
    """The commands that set it, with the host they are for. settings: what there is, by name."""
    lines = []
    for one in variant.settings:
        host = "the receiver's host" if one.of_receiver and not variant.live else "this host"
        if one.name in _PLACES:
            lines.append(f"on {host}: {_PLACES[one.name].format(one.value)}")
            continue
        value, more = one.value, ""
        if one.name in (RMEM, WMEM):
            middle = "131072" if one.name == RMEM else "16384"
            # What the capture's header tells is this host's.
            if not one.of_receiver:
                middle = (settings.get(f"net.ipv4.{WMEM}") or f"0 {middle} 0").split()[1]
            value = f"'4096 {min(int(middle), int(value))} {value}'"
            option = "SO_RCVBUF" if one.name == RMEM else "SO_SNDBUF"
            more = f"; where the program sets {option}, that limits it instead"
        lines.append(f"on {host}: sysctl -w net.ipv4.{one.name}={value}{more}")
    return lines
