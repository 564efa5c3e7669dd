# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon packetdrill FILE -p CONNECTION`: a recorded connection as a script of packetdrill."""

from __future__ import annotations

from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import file_or_stdout
from tcpkmon.formats.commands.connections import report
from tcpkmon.formats.commands.shared import files_argument, output_option, parse_span

_BEFORE_NS, _BEHIND_NS = 500_000_000, 1_000_000_000
_MOST_TOLERANCE_MS = 60_000.0


@click.command("packetdrill")
@files_argument
@click.option("-p", "--connection", metavar="LPORT.RPORT", required=True,
              help="The connection: its local and remote port. Of a capture of both ends, the one "
                   "with this local port is played.")
@click.option("--since", metavar="TIME", help="Begin at the last state before it that can be set "
                                              "up.")
@click.option("--until", metavar="TIME", help="Leave out what came later.")
@click.option("--around", metavar="EVENT",
              help="The time around the first record of this location: --around rto, retransmit, "
                   "cwnd-undo.")
@click.option("--tolerance", "tolerance_ms", metavar="MS", default=20.0, show_default=True,
              type=click.FloatRange(0, _MOST_TOLERANCE_MS),
              help="By how much a time may differ when the script is played.")
@output_option("The script to write. Default: stdout.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    files: tuple[Path, ...], connection: str, since: str | None, until: str | None,
    around: str | None, tolerance_ms: float, output: Path | None, force: bool,
) -> int:  # fmt: skip
    """Make a script of packetdrill of a recorded connection: what the peer sent, at its times, what
    the kernel sent then, and its state.

    Played on the kernel that was captured, the script passes; it fails where a kernel behaves
    otherwise. It says itself what is left out, what is assumed, and where records are lost. The
    capture needs --columns all. TIME is 2026-01-31T12:00:00 (UTC), or CLOCK_MONOTONIC in ns.
    Exit code 3: records were lost.
    """
    from tcpkmon.formats.analysis.why import Source
    from tcpkmon.formats.export.packetdrill import Options, find_event, make_script, read_connection

    if around and (since or until):
        raise UsageError("--around and --since or --until both choose a part", "give one of them")
    span = parse_span(since, until)
    with Source(*files) as source:
        code = source.location_codes()
        found = read_connection(source, connection)
        ahead = source.about().get("ahead_ns", 0)
        times = [None if one is None else one.ns - ahead * one.is_real for one in span]
        if around:
            at = find_event(found, around, code)
            times = [at - _BEFORE_NS, at + _BEHIND_NS]
        text, notes = make_script(found, Options(times[0], times[1], round(tolerance_ms * 1000)))
        result = report(source, "packetdrill", files)
    for note in notes:
        say(f"tcpkmon packetdrill: {for_terminal(note)}")
    with file_or_stdout(output, force) as out:
        out.write(text.encode())
    return result
