# SPDX-License-Identifier: Apache-2.0
"""The wire of the experiments: two namespaces, what the device between them can do, transfers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.experiments import tools
from scripts.experiments.context import Context, cpus
from scripts.experiments.load import Done, Load
from scripts.experiments.tools import Tool
from scripts.magnet.recording import Recording
from tcpkmon.collector.lab.lab import DEVICE, Lab


@dataclass(frozen=True)
class Link:
    """What the sender's device can do. offload False: it gets packets of 1500 bytes, as in 2001."""

    rate_mbit: int = 0
    """0: any rate."""
    offload: bool = True

    @property
    def burst_bytes(self) -> int:
        """Of tbf: what may come late by a timer (4 ms), and at least one packet."""
        return max(4096, self.rate_mbit * 1_000_000 // 8 // 250)


@dataclass(frozen=True)
class Transfer:
    """So many bytes from a to b."""

    link: Link
    bytes: int
    quick_bytes: int


SLOW, FAST, ANY, PACKETS = "100 Mbit/s", "1 Gbit/s", "unlimited", "unlimited, 1500-byte packets"
TRANSFERS = {
    SLOW: Transfer(Link(100, offload=False), 7_500_000, 2_000_000),
    FAST: Transfer(Link(1000), 60_000_000, 10_000_000),
    ANY: Transfer(Link(), 400_000_000, 50_000_000),
    PACKETS: Transfer(Link(offload=False), 20_000_000, 4_000_000),
}
"""By subject of the results. A second or less each."""


class Wire:
    """A lab whose link can be changed, and the load in it."""

    def __init__(self, lab: Lab, load: Load, quick: bool) -> None:
        self.lab = lab
        self.load = load
        self._quick = quick

    def set(self, link: Link) -> None:
        """For the connections that begin from now on."""
        segments = "65535" if link.offload else "1"
        for side in (self.lab.a, self.lab.b):
            side.command(["ip", "link", "set", DEVICE, "gso_max_segs", segments])
        queue = ["noqueue"]
        if link.rate_mbit:
            rate, burst = f"{link.rate_mbit}mbit", str(link.burst_bytes)
            queue = ["tbf", "rate", rate, "burst", burst, "limit", "4m"]
        self.lab.a.command(["tc", "qdisc", "replace", "dev", DEVICE, "root", *queue])

    def warm(self) -> None:
        """A moment of traffic."""
        self.load.run("pingpong 1 0.02")

    def run(self) -> dict[str, Done]:
        """All transfers, once; what was done, by subject."""
        return {subject: self.transfer(subject) for subject in TRANSFERS}

    def transfer(self, subject: str) -> Done:
        """One of TRANSFERS, over its link."""
        one = TRANSFERS[subject]
        self.set(one.link)
        return self.load.run(f"transfer {one.quick_bytes if self._quick else one.bytes}")


@contextlib.contextmanager
def wired(context: Context) -> Iterator[Wire]:
    """Two namespaces and the load, each end of it on a CPU."""
    with context.lab() as (lab, load):
        load.pin(*cpus())
        yield Wire(lab, load, context.quick)


def magnet(lab: Lab, name: str, ends: str, *options: str, form: str = "magnet") -> Tool:
    """A capture of the schema magnet at these ends of the lab (a, b or ab); form: its format."""
    within = [word for end in ends for word in ("--netns", getattr(lab, end).name)]
    return tools.collect(name, "--schema", "magnet", "--format", form, *within, *options)


@contextlib.contextmanager
def recording(
    context: Context, lab: Lab, *options: str, ends: str = "ab", parts: bool = False
) -> Iterator[Recording]:
    """Records these ends into Klogger logs while the body runs; what they hold afterwards.

    parts: with those of `tcpkmon latency`.
    """
    found = Recording()
    tool = magnet(lab, "collect", ends, *options, form="klogger")
    with tool.running(context.folder) as it:
        yield found
        it.end()
        found.read(it.file)
        if parts:
            found.measure(it.file)
