# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon cut FILE -o OUT`: a smaller capture, which is proven as before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from formats.base.cli import say
from formats.base.errors import UsageError
from formats.commands.choosing import Chooser, choosing_options

if TYPE_CHECKING:
    from formats.psc.reader import Capture


@click.command("cut")
@click.argument("file", metavar="FILE", type=click.Path(readable=False, path_type=Path))
@click.option("--since", metavar="TIME", help="Only records of this time or later.")
@click.option("--until", metavar="TIME", help="Only records of this time or earlier.")
@choosing_options
@click.option("-o", "--output", metavar="OUT", required=True,
              type=click.Path(readable=False, path_type=Path), help="The file to write.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    file: Path,
    since: str | None,
    until: str | None,
    ports: tuple[str, ...],
    where: str | None,
    output: Path,
    force: bool,
) -> int:
    """Cut records out of a PSC file: what is left is a capture of its own, which verify proves.

    It is as if a filter had left the others out: the ledger counts them as filtered, and the
    header (settings, `cut`) says what was asked for. TIME is 2026-01-31T12:00:00 (UTC), or
    CLOCK_MONOTONIC in ns. FILE must add up, see tcpkmon verify. Exit code 3: FILE has losses, or
    its end is unknown; so has OUT.
    """
    from formats.psc.reader import Capture
    from formats.registry import kind_of
    from formats.verify import cut_file

    if not (since or until or ports or where):
        raise UsageError("nothing to cut by", "give --since, --until, -p or --where")
    if output.exists() and file.exists() and output.samefile(file):
        raise UsageError(f"-o {output} is the capture itself", "choose another name")
    chosen = Chooser("cut", (file,), ports, where)
    if kind_of(file) == "psc" and file.is_dir():
        raise UsageError(f"{file} is a folder of segments", "cut each file by itself")
    if kind_of(file) != "psc":
        raise UsageError(
            f"{file} is no PSC file, and others cannot be cut",
            "tcpkmon decode --since, --until, --where chooses among the events of a Klogger log",
        )
    ids = _ids(file, chosen) if ports or where else None
    asked = {"since": since, "until": until, "connections": " ".join(ports) or None, "where": where}
    with Capture(file) as capture:
        report = cut_file(capture, output, _keep(capture, since, until, ids), asked, force)
    say(f"tcpkmon cut: {output}: {report.totals.in_file:,} records left; {report.verdict}")
    return report.exit_code


def _ids(file: Path, chosen: Chooser) -> Any:
    """The ids of the chosen connections."""
    from formats.analysis.why import Source, connections

    with Source(file) as source:
        found = chosen(connections(source))["conn_id"]
    chosen.check()
    return found


def _keep(capture: Capture, since: str | None, until: str | None, ids: Any) -> Any:
    import numpy as np

    from formats.klogger.clock import parse_time

    first, last = (parse_time(text, "mono") if text else None for text in (since, until))

    def times(start: int, stop: int, is_real: bool) -> Any:
        found = capture.column("time", start, stop) if is_real else capture.mono_ns(start, stop)
        if found is None:
            raise UsageError(f"{capture.path} has no column time_ns", "give a time of day")
        return found.astype(np.int64)

    def keep(start: int, stop: int) -> Any:
        mask = np.ones(stop - start, np.bool_)
        if first is not None:
            mask &= times(start, stop, first.is_real) >= first.ns
        if last is not None:
            mask &= times(start, stop, last.is_real) <= last.ns
        if ids is not None:
            mask &= np.isin(capture.column("conn_id", start, stop), ids)
        return mask

    return keep
