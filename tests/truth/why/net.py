# SPDX-License-Identifier: Apache-2.0
"""What is set before a scenario's connection: routes, settings, queues, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable

from tcpkmon.collector.lab.lab import DEVICE, Lab
from tests.truth.why.acts import later


def local_queue(rate_mbit: float, queue_bytes: int) -> Callable[[Lab], None]:
    """The bottleneck is the sender's own device."""

    def prepare(lab: Lab) -> None:
        burst = max(5000, int(rate_mbit * 1e6 / 8 / 250))
        lab.a.command(["tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate",
                       f"{rate_mbit}mbit", "burst", str(burst),
                       "limit", str(queue_bytes)])  # fmt: skip

    return prepare


def local_htb(rate_mbit: float, burst: str = "") -> Callable[[Lab], None]:
    """The bottleneck is a class of HTB on the sender's own device, as of a container's limit."""

    def prepare(lab: Lab) -> None:
        made = f"class add dev {DEVICE} parent 1: classid 1:1 htb rate {rate_mbit}mbit {burst}"
        for words in (f"qdisc add dev {DEVICE} root handle 1: htb default 1", made):
            lab.a.command(["tc", *words.split()])

    return prepare


def route(*words: str) -> Callable[[Lab], None]:
    """The sender's route has these properties, as `ip route` names them."""

    def prepare(lab: Lab) -> None:
        lab.a.command(["ip", "route", "replace", f"{lab.b.address4}/32", "dev", DEVICE, *words])

    return prepare


def settings(ends: str = "ab", **values: str) -> Callable[[Lab], None]:
    """net.ipv4.tcp_* of these ends."""

    def prepare(lab: Lab) -> None:
        named = {f"net.ipv4.tcp_{name}": value for name, value in values.items()}
        for end in ends:
            (lab.a if end == "a" else lab.b).set_sysctls(named)

    return prepare


def each_nth(number: int, of: int) -> Callable[[Lab], None]:
    """Of each so many large segments in a row, this one does not arrive (from 0)."""

    def prepare(lab: Lab) -> None:
        lab.drop_all(f"meta l4proto tcp meta length > 200 numgen inc mod {of} == {number}")

    return prepare


def no_handshake(for_s: float) -> Callable[[Lab], None]:
    """For so long, no SYN arrives."""

    def prepare(lab: Lab) -> None:
        lab.drop_all("tcp flags & (syn|ack) == syn")
        later(for_s, lambda: lab.drop(0))

    return prepare
