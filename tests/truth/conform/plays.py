# SPDX-License-Identifier: Apache-2.0
"""Transfers over a test link, captured and judged by the rules of `tcpkmon conform`."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tcpkmon.collector.capturing import Capture, start
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.namespaces import Side, sysctl_path
from tcpkmon.collector.lab.pair import Pair, drain, join, listening
from tcpkmon.formats.analysis.conform import Verdicts, conform, why_unsure
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.registry import format_of

SERVER = "10.77.0.2"
OPTIONS = ("--quiet", "--columns", "all", "--format", "psc")
_BACK = Way(delay_ms=10)
Play = Callable[[Lab, Pair], None]


def bulk(lab: Lab, pair: Pair, seconds: float = 1.5) -> None:
    """As much as goes through in this time."""
    pair.client.settimeout(0.2)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(OSError):
            pair.client.send(bytes(1 << 16))


def outage(lab: Lab, pair: Pair) -> None:
    """For a second nothing arrives: the timer sends again and backs off."""
    bulk(lab, pair, 0.5)
    assert lab.wire is not None and lab.link is not None
    lab.wire.change(0, replace(lab.link.there, down=True))
    bulk(lab, pair, 1.2)
    lab.wire.change(0, lab.link.there)
    bulk(lab, pair, 1.5)


def pause(lab: Lab, pair: Pair) -> None:
    """Two bursts with a pause of many timeouts between them."""
    for _ in range(2):
        pair.client.sendall(bytes(400_000))
        time.sleep(1.5)


def messages(lab: Lab, pair: Pair) -> None:
    """Requests of 20 kB with a pause after each: their last segment is lost once."""
    for _ in range(6):
        pair.client.sendall(bytes(20_000))
        time.sleep(0.3)


def both_ways(lab: Lab, pair: Pair) -> None:
    """The client sends, then only acknowledges what the server sends, and sends again."""
    bulk(lab, pair, 0.4)
    time.sleep(0.3)
    pair.server.settimeout(0.2)
    with suppress(OSError):
        pair.server.sendall(bytes(500_000))
    drain(pair.client)
    time.sleep(0.6)
    bulk(lab, pair, 0.4)


def held(lab: Lab, pair: Pair) -> None:
    """Twice the path holds all packets for 0.6 s and then delivers them: the timer was wrong."""
    for _ in range(2):
        bulk(lab, pair, 0.5)
        assert lab.wire is not None and lab.link is not None
        lab.wire.change(0, replace(lab.link.there, held=True))
        bulk(lab, pair, 0.6)
        lab.wire.change(0, lab.link.there)
        bulk(lab, pair, 0.5)


class Course(NamedTuple):
    """A way there, what is done on it, and settings in the sender's namespace."""

    way: Way
    act: Play
    settings: Mapping[str, str] = {}


PATHS = {
    "queue": Course(Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000), bulk),
    "loss": Course(Way(rate_mbit=20, delay_ms=10, loss_percent=2), bulk),
    "reordering": Course(Way(rate_mbit=20, delay_ms=10, reorder_percent=3, reorder_ms=5), bulk),
    "bursts of loss": Course(
        Way(rate_mbit=20, delay_ms=10, burst_percent=1, burst_packets=8), bulk
    ),
    "outage": Course(Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000), outage),
    "pause": Course(Way(rate_mbit=100, delay_ms=10), pause),
    "lost ends": Course(
        Way(rate_mbit=20, delay_ms=10, lose=(19_990, 20_000), lose_every=20_000), messages
    ),
    "marks": Course(
        Way(rate_mbit=20, delay_ms=10, ecn=True, ecn_above_bytes=30_000, queue_bytes=200_000),
        bulk, {"net.ipv4.tcp_ecn": "1"},
    ),
    "both ways": Course(Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000), both_ways),
    "held": Course(Way(rate_mbit=20, delay_ms=10, queue_bytes=200_000), held),
}  # fmt: skip


def play(path: Path, name: str, algorithm: str) -> None:
    """One transfer over the path of this name, captured into a file."""
    play_course(path, PATHS[name], algorithm)


def play_all(path: Path, algorithm: str) -> None:
    """A transfer over each path in turn, captured into one file: in an emulated guest a capture
    takes half a minute to begin. No transfer learns from the one before it."""
    with Lab(link=Link(Way(), _BACK)) as lab:
        lab.a.set_sysctls({"net.ipv4.tcp_no_metrics_save": "1"})
        assert lab.wire is not None
        with capturing(lab.a, path):
            for course in PATHS.values():
                lab.link = Link(course.way, _BACK)
                lab.wire.change(0, course.way)
                before = {name: lab.a.run(sysctl_path(name).read_text) for name in course.settings}
                lab.a.set_sysctls(course.settings)
                _transfer(lab, course, algorithm)
                lab.a.set_sysctls(before)


def play_course(path: Path, course: Course, algorithm: str) -> None:
    """One transfer, captured into a file."""
    with Lab(link=Link(course.way, _BACK)) as lab:
        lab.a.set_sysctls(course.settings)
        with capturing(lab.a, path):
            _transfer(lab, course, algorithm)


def _transfer(lab: Lab, course: Course, algorithm: str) -> None:
    with listening(lab.b, SERVER) as listener:
        chosen = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
        pair = join(lab.a, listener, SERVER, [chosen])
    reading = drain(pair.server)
    with suppress(OSError):
        course.act(lab, pair)
    pair.close()
    reading.join(5)


def capturing(side: Side, path: Path) -> Capture:
    """A capture of the schema tcp in this namespace, with all columns."""
    options = ["--netns", side.name, *OPTIONS]
    return start(["tcp"], path, force=True, options=options, buffer_mb=32)


class Judged(NamedTuple):
    """proven: verify finds that nothing is missing or left out."""

    verdicts: Verdicts
    proven: bool


def judge(path: Path, judged_as: str = "") -> Judged:
    """A capture, by all rules; other congestion controls by those of this one."""
    unsure = why_unsure(format_of(path).verify(path))
    with Source(path) as source:
        return Judged(conform(source, unsure, judged_as), not unsure)
