# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon cut FILE -o OUT`: a smaller capture, which is proven as before."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.choosing import Chooser, choosing_options
from tcpkmon.formats.commands.shared import PATH, output_option, parse_span, refuse_input

if TYPE_CHECKING:
    from tcpkmon.formats.klogger.clock import Moment
    from tcpkmon.formats.psc.reader import Capture


@click.command("cut")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--since", metavar="TIME", help="Only records of this time or later.")
@click.option("--until", metavar="TIME", help="Only records of this time or earlier.")
@choosing_options
@output_option("The file to write.", required=True)
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
    """Cut records out of a PSC file, or of the segment that has the time in a folder of them: what
    is left is a capture of its own, which verify proves.

    It is as if a filter had left the others out: the ledger counts them as filtered, and the
    header (settings, `cut`) says what was asked for. TIME is 2026-01-31T12:00:00 (UTC), or
    CLOCK_MONOTONIC in ns. FILE must add up, see tcpkmon verify. Exit code 3: FILE has losses, or
    its end is unknown; so has OUT.
    """
    from tcpkmon.formats.psc.reader import Capture
    from tcpkmon.formats.registry import kind_of
    from tcpkmon.formats.verify import cut_file

    if not (since or until or ports or where):
        raise UsageError("nothing to cut by", "give --since, --until, -p or --where")
    refuse_input(output, [file])
    chosen = Chooser("cut", (file,), ports, where)
    first, last = parse_span(since, until)
    if kind_of(file) == "psc" and file.is_dir():
        file = _segment(file, first, last)
    if kind_of(file) != "psc":
        raise UsageError(
            f"{file} is no PSC file, and others cannot be cut",
            "tcpkmon decode --since, --until, --where chooses among the events of a Klogger log",
        )
    ids = _ids(file, chosen) if ports or where else None
    asked = {"since": since, "until": until, "connections": " ".join(ports) or None, "where": where}
    with Capture(file) as capture:
        report = cut_file(capture, output, _keep(capture, first, last, ids), asked, force)
    say(f"tcpkmon cut: {output}: {report.totals.in_file:,} records left; {report.verdict}")
    return report.exit_code


def _ids(file: Path, chosen: Chooser) -> Any:
    """The ids of the chosen connections."""
    from tcpkmon.formats.analysis.why import Source, connections

    with Source(file) as source:
        found = chosen(connections(source))["conn_id"]
    chosen.check()
    return found


def _segment(folder: Path, first: Moment | None, last: Moment | None) -> Path:
    """The only segment in a folder that has records of this time. UsageError."""
    import numpy as np

    from tcpkmon.formats.base.segments import find_segments
    from tcpkmon.formats.psc.reader import Capture

    if first is None and last is None:
        raise UsageError(f"{folder} is a folder of segments",
                         "cut each file by itself, or give --since and --until")  # fmt: skip
    found = []
    for path in (segment.path(folder) for segment in find_segments(folder)):
        with Capture(path) as capture:
            count = len(capture)
            outside = [last is not None and _times(capture, 0, 1, last.is_real) > last.ns]
            end = max(count - 1, 0)
            outside += [first is not None and _times(capture, end, count, first.is_real) < first.ns]
        if not any(np.all(one) for one in outside):
            found.append(path)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UsageError(f"{folder} is a folder of segments, of which {len(found)} have records of "
                         f"this time: {names}", "cut each file by itself")  # fmt: skip
    say(f"tcpkmon cut: of {found[0]}")
    return found[0]


def _times(capture: Capture, start: int, stop: int, is_real: bool) -> Any:
    """[ns] of rows. UsageError."""
    import numpy as np

    found = capture.column("time", start, stop) if is_real else capture.mono_ns(start, stop)
    if found is None:
        raise UsageError(f"{capture.path} has no column time_ns", "give a time of day")
    return found.astype(np.int64)


def _keep(capture: Capture, first: Moment | None, last: Moment | None, ids: Any) -> Any:
    import numpy as np

    times = partial(_times, capture)

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
