# SPDX-License-Identifier: Apache-2.0
"""What would help, checked against what the capture knows: this host's settings, and both ends.

The header has the settings of the collector's network namespace. They say something of connections
in that namespace alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.peers import is_local
from tcpkmon.formats.analysis.why.snapshots import Source
from tcpkmon.formats.analysis.why.words import human_bytes, human_rate

_OWN = "own"
"""The name of the collector's network namespace."""
_ROUND_TRIPS, _LEAST_NS = 20, 100_000_000
"""So long BBR keeps no pacing rate: it probes for more in each eight round trips."""
_WINDOWS = 4
"""Windows that a receive buffer has at most: its overhead counts."""


class HostSettings:
    """Settings of the host of a capture, as its header has them."""

    def __init__(self, source: Source) -> None:
        settings = source.settings()
        system, filters = (_group(settings, name) for name in ("system", "filters"))
        self._known = {
            str(name): value for name, value in _group(system, "sysctl").items()
            if isinstance(value, str)
        }  # fmt: skip
        spaces = _group(settings, "namespaces")
        self._is_one = len(spaces) <= 1 and not filters.get("namespaces")

    def of(self, one: Connection) -> Mapping[str, str]:
        """By name, of this connection's namespace; empty where they are not known."""
        is_own = one.netns_name == _OWN if one.netns_name else self._is_one
        return self._known if is_own else {}


def _group(settings: Any, name: str) -> Mapping[str, Any]:
    found = settings.get(name) if isinstance(settings, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _most(sysctl: Mapping[str, str], name: str) -> int:
    """The largest buffer that a setting of three numbers allows; 0: it is not known."""
    words = sysctl.get(f"net.ipv4.{name}", "").split()
    return int(words[2]) if len(words) == 3 and words[2].isdecimal() else 0


def larger_window(one: Connection, peer: Connection | None) -> str:
    """For a sender whose peer offers a window that is too small."""
    if peer is not None:
        buffer, sysctl = peer.rcvbuf, peer.sysctl
    else:
        buffer, sysctl = 0, one.sysctl if is_local(one) else {}
    return _window(one.snd_wnd_max, buffer, sysctl) or (
        "raise net.ipv4.tcp_rmem[2] or the application's SO_RCVBUF there"
    )


def larger_own_window(one: Connection) -> str:
    """For a receiver whose own window is too small."""
    return _window(one.rcv_wnd_max, one.rcvbuf, one.sysctl) or (
        "raise net.ipv4.tcp_rmem[2] here, or leave SO_RCVBUF to the kernel"
    )


def _window(window: int, buffer: int, sysctl: Mapping[str, str]) -> str:
    """Where tcp_rmem[2] allows much more; else ""."""
    most = _most(sysctl, "tcp_rmem")
    used = buffer or _WINDOWS * window
    if not 0 < 2 * used < most:
        return ""
    has = f"this buffer has {human_bytes(buffer)}" if buffer else "this window is far smaller"
    return (
        f"net.ipv4.tcp_rmem[2] is {human_bytes(most)} where collect ran, and {has}: unless the "
        "socket's own network namespace has less, that setting is not what limits: the application "
        "set SO_RCVBUF (leave it to the kernel), or the buffer had not grown yet"
    )


def larger_send_buffer(one: Connection) -> str:
    most = _most(one.sysctl, "tcp_wmem")
    if 0 < 2 * one.sndbuf < most:
        return (
            f"net.ipv4.tcp_wmem[2] is {human_bytes(most)} where collect ran: unless the socket's "
            "own network namespace has less, that setting is not what limits: the application set "
            "SO_SNDBUF (leave it to the kernel), or the buffer had not grown yet"
        )
    return "raise net.ipv4.tcp_wmem[2] or the application's SO_SNDBUF on the sender"


def scaling(one: Connection) -> str:
    """Why no larger window can be offered."""
    where = "at the other end" if one.sysctl.get("net.ipv4.tcp_window_scaling") == "1" else (
        "at both ends"
    )  # fmt: skip
    return (
        "no larger one can be told with the window scale of this connection, so a larger buffer "
        f"alone does not help: look at net.ipv4.tcp_window_scaling {where}, at boxes on the path "
        "that take the option away, and at buffers that were small when it began"
    )


def mtu_probing(one: Connection) -> str:
    """What a sender may do about an MTU black hole, beside what others can do."""
    is_on = one.sysctl.get("net.ipv4.tcp_mtu_probing", "0") != "0"
    return "" if is_on else ", or set net.ipv4.tcp_mtu_probing=1"


def pacing(one: Connection) -> str:
    """Who paced it, and whether on purpose: as far as is known."""
    least, most = one.pacing_rate_min, one.pacing_rate_max
    round_trip_ns = 1000 * (one.srtt_p50_us or 0)
    enough = one.limit_ns.get("pacing", 0) >= max(_LEAST_NS, _ROUND_TRIPS * round_trip_ns)
    if least and most == least and enough:
        return (
            f"it was paced, always at {human_rate(least)}, as SO_MAX_PACING_RATE of its "
            "application gives: it is slow on purpose"
        )
    if one.ca_name == "bbr":
        return "it was paced by bbr: the path is the limit, as bbr sees it, or SO_MAX_PACING_RATE"
    default = one.sysctl.get("net.ipv4.tcp_congestion_control")
    if one.ca_name and default == "bbr":
        return (
            "it was paced: by SO_MAX_PACING_RATE of the application, by the qdisc fq, or since it "
            "began with bbr, this host's default: a socket that bbr paced stays paced"
        )
    if one.ca_name:
        return "it was paced: by SO_MAX_PACING_RATE of the application, or by the qdisc fq"
    if default == "bbr":
        return (
            "it was paced, by bbr where it uses this host's default "
            "(net.ipv4.tcp_congestion_control): then the path is the limit, as bbr sees it; the "
            "column ca_name says what it used"
        )
    return (
        "it was paced: by bbr, then the path is the limit, by SO_MAX_PACING_RATE of the "
        "application, or by the qdisc fq; the column ca_name says whether bbr was used"
    )
