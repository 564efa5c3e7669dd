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
_MOST = {RMEM: 1 << 30, WMEM: 1 << 30, LOWAT: (1 << 32) - 1, RESTART: 1, INITCWND: 1000}
_LEAST = {RMEM: 4096, WMEM: 4096, LOWAT: 1, RESTART: 0, INITCWND: 1}
NAMES = (RMEM, WMEM, CONGESTION, LOWAT, RESTART, INITCWND)
_ENOUGH = 0.2
_LARGEST = 64 << 20


@dataclass(frozen=True)
class Setting:
    """name: of NAMES. value: a congestion control, or a number; of tcp_rmem and tcp_wmem the
    largest size."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    @property
    def of_receiver(self) -> bool:
        """Whether it is a setting of the receiver's host."""
        return self.name == RMEM


@dataclass(frozen=True)
class Variant:
    """Settings that are tried together. why: what suggests them, or empty."""

    settings: tuple[Setting, ...]
    why: str = ""

    def __str__(self) -> str:
        return ",".join(map(str, self.settings))

    @property
    def main_metric(self) -> str:
        """What it is meant to make smaller: of tcp_notsent_lowat alone, the time from write to
        read, else the time that the transfer takes."""
        only_lowat = {one.name for one in self.settings} == {LOWAT}
        return "latency_whole_us" if only_lowat else "duration_us"


def parse_variant(text: str) -> Variant:
    """NAME=VALUE[,NAME=VALUE...], as in tcp_rmem=6291456. UsageError."""
    found = []
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip().removeprefix("net.ipv4.")
        if name not in NAMES:
            raise UsageError(f"--set {part!r}: no such setting{suggest(name, NAMES)}",
                             f"one of {', '.join(NAMES)}, as in tcp_rmem=6291456")  # fmt: skip
        value = value.split()[-1] if value.split() else ""
        if name == CONGESTION:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,15}", value, re.ASCII):
                raise UsageError(f"--set {part!r}: not a congestion control", "bbr, for example")
        elif not value.isdecimal() or not _LEAST[name] <= int(value) <= _MOST[name]:
            raise UsageError(
                f"--set {part!r}: a number from {_LEAST[name]} to {_MOST[name]} is needed"
            )
        found.append(Setting(name, value))
    if len({one.name for one in found}) < len(found):
        raise UsageError(f"--set {text!r} sets something twice")
    return Variant(tuple(found))


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


def what_to_write(variant: Variant, settings: dict[str, str]) -> list[str]:
    """The commands that set it, with the host they are for. settings: what there is, by name."""
    lines = []
    for one in variant.settings:
        host = "the receiver's host" if one.of_receiver else "this host"
        if one.name == INITCWND:
            lines.append(f"on {host}: ip route change <the route to the peer, as ip route get "
                         f"shows it> initcwnd {one.value}")  # fmt: skip
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
