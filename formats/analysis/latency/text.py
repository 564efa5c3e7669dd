# SPDX-License-Identifier: Apache-2.0
"""A report for people: a table of parts for each flow, with histograms, and the slowest ranges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tcpkmon.formats.analysis.latency.report import SIDES, Flow, Report, Slow, share
from tcpkmon.formats.analysis.latency.stages import Chain, State
from tcpkmon.formats.analysis.latency.summary import QUANTILES, Spread, middle_of
from tcpkmon.formats.analysis.latency.thinking import SHARES
from tcpkmon.formats.base.escape import for_terminal

_WHY = {
    State.BEGAN: "began before the capture",
    State.ENDED: "still on their way at its end",
    State.LOST: "unknown: records were lost",
    State.MISSING: "unknown: a record is missing",
    State.CONTRADICTORY: "unknown: records contradict each other",
}
_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
_CELLS = 20
_LEAST_NS, _MOST_NS = 1e2, 1e10
"""What the histograms show, on a logarithmic scale; what is beyond is in the first or last cell."""


def format_time(ns: float) -> str:
    """Three digits and a unit: 12.3 us."""
    if not ns:
        return "0"
    name, unit = next((one for one in _UNITS if abs(ns) >= one[1]), _UNITS[-1])
    return f"{ns / unit:#.3g}".rstrip(".") + f" {name}"


def print_latency(report: Report, console: Console, most: int = 10) -> None:
    """Print the report; `most` flows, the largest first."""
    lasted = format_time(report.end_ns - report.begin_ns)
    total = sum(flow.size for flow in report.flows)
    measured = sum(flow.sizes[State.MEASURED] for flow in report.flows)
    unknown = sum(flow.unknown for flow in report.flows)
    _say(
        console,
        f"{report.records:,} records in {lasted}; flows of data: {len(report.flows):,}, "
        f"{total:,} bytes: {measured:,} measured, {unknown:,} unknown",
    )
    for note in report.notes:
        _say(console, note)
    for what, count in report.left_out.items():
        if count:
            _say(console, f"not joined: {count:,} records {what}")
    for flow in report.flows[:most]:
        console.print()
        _print_flow(flow, console)
    if len(report.flows) > most:
        _say(console, f"\nand {len(report.flows) - most:,} more flows; --most shows more of them")


def _print_flow(flow: Flow, console: Console) -> None:
    owner = f"{flow.owner}; " if flow.owner else ""
    _say(console, f"{flow.name}  ({owner}{SIDES[flow.side]})", "bold")
    sizes = [f"{flow.sizes[State.MEASURED]:,} measured"]
    if flow.size_again:
        sizes.append(f"{flow.size_again:,} of them sent again")
    sizes += [f"{flow.sizes[state]:,} {why}" for state, why in _WHY.items() if flow.sizes[state]]
    _say(console, f"{flow.size:,} bytes: {', '.join(sizes)}")
    for spreads, title in ((flow.once, "part"), (flow.again, "sent again")):
        if spreads:
            console.print(_table(spreads, title, flow.side, console))
    if flow.thought is not None:
        shares = zip(SHARES, flow.thought.percentiles_ns, strict=True)
        told = ", ".join(f"p{share} {format_time(ns)}" for share, ns in shares)
        _say(console, f"the server's thinking before {flow.thought.count:,} answers: {told}, "
             f"max {format_time(flow.thought.most_ns)}")  # fmt: skip
    if flow.slowest:
        _say(console, "slowest:")
    for slow in flow.slowest:
        for line in _story(slow, flow.side):
            _say(console, line)


def _table(spreads: dict[str, Spread], title: str, side: Chain, console: Console) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(title, no_wrap=True)
    names = [f"p{100 * quantile:g}" for quantile in QUANTILES]
    for name in ("share", *names, "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("100 ns" + " " * (_CELLS - 10) + "10 s", no_wrap=True)
    whole = spreads["whole"].total_ns
    bars = _BARS if (console.encoding or "").lower().startswith("utf") else _PLAIN_BARS
    for name, spread in spreads.items():
        label = f"{name} (estimate)" if name == "network" and side == Chain.SENDER else name
        times = [*spread.quantiles_ns, spread.most_ns]
        table.add_row(
            label,
            f"{100 * share(spread, whole):.1f} %",
            *(format_time(time) for time in times),
            _histogram(spread, bars),
            style="bold" if name == "whole" else "",
        )
    return table


def _histogram(spread: Spread, bars: str) -> str:
    """Bytes by the logarithm of their time."""
    span = np.log(_MOST_NS / _LEAST_NS)
    places = np.log(np.maximum(middle_of(spread.classes), _LEAST_NS) / _LEAST_NS) / span * _CELLS
    cells = np.bincount(np.minimum(places.astype(int), _CELLS - 1), spread.weights, _CELLS)
    steps = np.ceil(cells / cells.max() * len(bars)).astype(int)
    return "".join(bars[step - 1] if step else " " for step in steps.tolist())


def _story(slow: Slow, side: Chain) -> Iterator[str]:
    """What happened to a range, in a line or two."""
    times = slow.times_ns
    yield (
        f"  {slow.size:,} bytes from {slow.seq_lo}: {format_time(slow.whole_ns)} "
        f"from {max(min(times.values()), 0) / 1e9:.6f} s on"
    )

    def since(end: str, begin: str) -> int | None:
        if end not in times or begin not in times:
            return None
        return times[end] - times[begin]

    sent = "resent" if side == Chain.BOTH else "transmit"
    parts = [
        ("waited in the send buffer", since("transmit", "write")),
        (f"sent again {slow.sent_again} x, the last after", since("resent", "transmit")),
        ("in the queue", since("driver", sent)),
        ("on the network", since("driver_in", "driver")),
        ("acknowledged after", since("ack", "driver") if side == Chain.SENDER else None),
        ("waited behind a hole", since("complete", "tcp")),
        ("waited for the reader", since("read", "inorder")),
    ]
    if not slow.sent_again:
        parts.pop(1)
    elif side == Chain.SENDER:
        parts[1] = (f"sent again {slow.sent_again} x, acknowledged after", since("ack", "transmit"))
        parts = parts[:2]
    told = [f"{what} {format_time(ns)}" for what, ns in parts if ns]
    yield f"    {', '.join(told)}"


def _say(console: Console, text: str, style: str = "") -> None:
    lines = [for_terminal(line) for line in text.split("\n")]
    console.print(Text("\n".join(lines), style=style), soft_wrap=True)
