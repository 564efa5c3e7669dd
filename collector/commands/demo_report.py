# SPDX-License-Identifier: Apache-2.0
"""The output of the demo: a table of the connections, a plot, and commands to try next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tcpkmon.collector.plan.columns import locations_of
from tcpkmon.formats.base.cli import use_colours
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.pmgraph.options import select
from tcpkmon.formats.pmgraph.pages import build_pages
from tcpkmon.formats.pmgraph.terminal import BINS, draw_text
from tcpkmon.formats.psc.reader import open_capture


@dataclass(frozen=True)
class Flow:
    """One connection of the capture."""

    name: str
    """Its congestion control."""
    ports: str
    """lport.rport, as for pmgraph's -p."""
    time_s: NDArray[np.float64]
    """(records,), since the first record of the capture."""
    cwnd_bytes: NDArray[np.int64]
    """(records,)"""
    srtt_ms: float
    """Median; nan where the file has no value."""
    acked_bytes: int
    retransmits: int
    timeouts: int

    @property
    def rate_mbit(self) -> float:
        """Acknowledged bytes, divided by the time of the connection."""
        length_s = float(self.time_s[-1] - self.time_s[0])
        return self.acked_bytes * 8 / length_s / 1e6 if length_s > 0 else 0.0


@dataclass(frozen=True)
class Recording:
    """The files of the demo, and what they hold."""

    capture: Path
    picture: Path
    flows: Sequence[Flow]
    dropped: int
    """Packets that the lab's nftables rule dropped."""

    @property
    def ports(self) -> list[str]:
        """Each flow's ports, as for pmgraph's -p."""
        return [flow.ports for flow in self.flows]


def read_flows(path: Path, names: Mapping[int, str]) -> list[Flow]:
    """The connections to the ports of `names` (port: congestion control), in that order.

    TcpkmonError when one of the ports has no connection in the file.
    """
    with open_capture(path) as capture:
        local, remote = capture.column("lport"), capture.column("rport")
        snapshot = ~capture.control()
        assert capture.schema is not None
        numbers = locations_of(capture.schema)
        time_ns = capture.time_ns()
        location, cwnd = capture.column("location"), capture.column("snd_cwnd")
        srtt_us = capture.column("srtt_us") if "srtt_us" in capture.names else None
        acked = capture.column("bytes_acked") if "bytes_acked" in capture.names else None
    flows = []
    for port, name in names.items():
        to_port = np.flatnonzero(snapshot & (remote == port))
        if not len(to_port):
            raise TcpkmonError(f"the capture holds no connection to port {port}")
        own_ports, counts = np.unique(local[to_port], return_counts=True)
        own_port = own_ports[np.argmax(counts)]
        rows = to_port[local[to_port] == own_port]
        measured = srtt_us[rows][srtt_us[rows] > 0] if srtt_us is not None else np.zeros(0)
        flows.append(
            Flow(
                name=name or "default",
                ports=f"{own_port}.{port}",
                time_s=(time_ns[rows] - time_ns[snapshot][0]) / 1e9,
                cwnd_bytes=cwnd[rows].astype(np.int64),
                srtt_ms=float(np.median(measured)) / 1e3 if len(measured) else float("nan"),
                acked_bytes=int(acked[rows].max()) if acked is not None else 0,
                retransmits=int(np.count_nonzero(location[rows] == numbers["RETRANSMIT"])),
                timeouts=int(np.count_nonzero(location[rows] == numbers["RTO"])),
            )
        )
    return flows


def print_summary(console: Console, recording: Recording) -> None:
    """Print the table of the connections, the losses, and the plot of the windows."""
    console.print(make_table(recording.flows))
    with open_capture(recording.capture) as capture:
        losses = f"{capture.lost} lost" if capture.complete else "tail unknown"
        console.print(f"{len(capture)} entries in the file, {losses}.", end=" ")
        console.print(f"nftables dropped {recording.dropped} packets.\n")
        # The plot of `pmgraph CAPTURE -P -p ... -c`, also when stdout is no terminal.
        wanted = select(["snd_cwnd"], tuple(recording.ports), (), True)
        ascii_only = not (console.encoding or "").lower().startswith("utf")
        pages, _ = build_pages(capture, wanted, BINS)
        for line in draw_text(pages, min(console.width, 100), use_colours(), ascii_only):
            print(line)


def print_next(console: Console, recording: Recording, commands: Path) -> None:
    """Print where the files are, and what to try next. commands: the folder of collect."""
    folder = _short(commands)
    words = shlex.quote(str(recording.capture))
    console.print(
        f"""
The capture:  {recording.capture}
The picture:  {recording.picture}

Look at it:   {folder}/pmgraph {words} -p {recording.ports[0]} -c -H
              {folder}/pmgraph {words} -T | less -S
Your own:     sudo {folder}/collect --ports 443 --duration 10s -o my.pm
              sudo {folder}/collect --ports 443 -o my.pm -- curl -sO https://HOST/FILE""",
        markup=False,
        soft_wrap=True,
    )


def make_table(flows: Sequence[Flow]) -> Table:
    """A table with a row for each connection."""
    table = Table(title="What the kernel did")
    table.add_column("")
    table.add_column("ports")
    headings = ("records", "Mbit/s", "cwnd KB\nmin-median-max", "srtt\nms", "sent\nagain", "RTO")
    for heading in headings:
        table.add_column(heading, justify="right")
    for flow in flows:
        low, middle, high = np.percentile(flow.cwnd_bytes, [0, 50, 100]) / 1000
        table.add_row(
            flow.name,
            flow.ports,
            str(len(flow.time_s)),
            f"{flow.rate_mbit:.1f}",
            f"{low:.0f}-{middle:.0f}-{high:.0f}",
            "-" if np.isnan(flow.srtt_ms) else f"{flow.srtt_ms:.1f}",
            str(flow.retransmits),
            str(flow.timeouts),
        )
    return table


def _short(path: Path) -> str:
    """The path as it is shortest to type here."""
    relative = os.path.relpath(path)
    return shlex.quote(min(relative, str(path), key=len))
