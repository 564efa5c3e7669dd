# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon pair A B`: both ends of connections, captured on two hosts, as one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.commands.connections import report
from tcpkmon.formats.commands.shared import PATH, form_option, output_option

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.pairing import Pairing

_TABLES = ("pairs", "delays", "missing", "limits")
_SHOWN = 20
_MOST = 4


@click.command("pair")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--table", type=click.Choice(_TABLES),
              help="Write this table instead of sentences.")
@form_option
@output_option("Write the table (default: pairs) to this file.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    a: Path, b: Path, table: str | None, form: str | None, output: Path | None, force: bool
) -> int:
    """Join the captures of two hosts that have both ends of the same connections.

    Says what B's clock has more than A's, with bounds that follow from the segments themselves,
    one-way delays, what was sent and never arrived, and what limited both ends. Each number is
    an interval that contains the truth, as long as the clocks run straight. Exit code 3: records
    were lost, or the end is unknown; 5: a capture is damaged.
    """
    from tcpkmon.formats.analysis.pairing import pair
    from tcpkmon.formats.analysis.why import write
    from tcpkmon.formats.base.table_text import form_of

    form = form_of(form, output)
    found, sources = pair((a,), (b,))
    codes = [report(source, "pair", (path,)) for source, path in zip(sources, (a, b), strict=True)]
    if table is None and output is None and form == "table":
        _say(found)
        return max(codes)
    name = table or "pairs"
    if name == "pairs":
        rows = found.summary(found.missing())
    else:
        rows = {"delays": found.delays, "missing": found.missing, "limits": found.together}[name]()
    write(name, rows, form, output, force)
    return max(codes)


def _say(found: Pairing) -> None:
    _say_clocks(found)
    missed, limits = found.missing(), found.together()
    rows = found.summary(missed)
    for at in range(min(len(found.pairs), _SHOWN)):
        of = {name: values[at] for name, values in rows.items()}
        through = ", by sequence numbers: addresses differ" if of["by"] == "sequence" else ""
        click.echo(f"{of['a']} - {of['b']}{through}")
        for way, name in (("a2b", "A to B"), ("b2a", "B to A")):
            _say_way(of, way, name, missed, at)
        _say_limits(limits, at)
    if (more := len(found.pairs) - _SHOWN) > 0:
        click.echo(f"and {more:,} pairs more: --table pairs lists all")
    if any(found.only):
        click.echo(f"without their other end: {found.only[0]:,} connections of A, "
                   f"{found.only[1]:,} of B")  # fmt: skip


def _say_clocks(found: Pairing) -> None:
    slow, fast = (1e6 * one for one in found.clocks.drift)
    if found.wall is None:
        click.echo("the clocks' difference has no bounds: nothing went one of the ways")
    else:
        low, high = found.wall
        click.echo(f"B's time of day is {(low + high) / 2e6:+,.3f} ms from A's, "
                   f"at most {(high - low) / 2e3:,.1f} us more or less, at half time")  # fmt: skip
    click.echo(f"B's clock gains {slow:.3f} to {fast:.3f} ppm on A's")
    if len(found.clocks.lines) > 1:
        click.echo(f"no line fits: a clock was stepped or steered; {len(found.clocks.lines)} "
                   "parts are fitted each alone")  # fmt: skip


def _say_way(of: dict[str, Any], way: str, name: str, missed: Any, pair: int) -> None:
    if not (count := of[f"segments_{way}"]):
        return
    told = ", ".join(
        f"{what} {of[f'delay_{key}_{way}_min_us']:,.0f} to {of[f'delay_{key}_{way}_max_us']:,.0f}"
        for key, what in (("min", "least"), ("p50", "median"), ("p99", "p99"))
    )
    click.echo(f"    {name}: {count:,} segments; delay [us] {told}")
    mine = (missed["pair"] == pair) & (missed["way"] == way)
    if mine.any():
        sure = int((mine & missed["certain"]).sum())
        click.echo(f"    {name}: {of[f'missing_{way}_bytes']:,} bytes in {int(mine.sum()):,} "
                   f"ranges were sent and never arrived ({sure:,} ranges certain); "
                   "--table missing lists them")  # fmt: skip


def _say_limits(limits: Any, pair: int) -> None:
    mine = limits["pair"] == pair
    spans: Counter[tuple[str, str]] = Counter()
    for start, end, a, b in zip(*(limits[name][mine].tolist() for name in
                                  ("start_ns", "end_ns", "limit_a", "limit_b")),
                                strict=True):  # fmt: skip
        spans[a or "not there", b or "not there"] += end - start
    if whole := sum(spans.values()):
        told = "; ".join(f"{100 * span / whole:.0f} % A {a}, B {b}"
                         for (a, b), span in spans.most_common(_MOST))  # fmt: skip
        click.echo(f"    limits of both ends: {told}")
