# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon translate FILE...`: Klogger logs as decimal words for awk, or as the records of 1987."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.commands.proof import tell_problems
from tcpkmon.formats.commands.shared import files_argument


@click.command("translate")
@files_argument
@click.option("-l", "listed", is_flag=True, help="List the ids, and the words of each record.")
@click.option("--names", is_flag=True, help="Print names in place of ids.")
@click.option("--records-1987", "old", type=click.Path(path_type=Path), metavar="OUT",
              help="Write OUT in the shape of the UBC event monitor: header, event records, "
              "trailer, big-endian. What does not fit is cut, and counted.")
@click.option("--without-collector", is_flag=True,
              help="Leave out the events of the collector's own processes.")
@click.option("--force", is_flag=True, help="Let --records-1987 replace a file.")
def command(
    files: tuple[Path, ...], listed: bool, names: bool, old: Path | None, without_collector: bool,
    force: bool,
) -> int:  # fmt: skip
    """Print each record of Klogger logs as a line of decimal words: id, seconds, microseconds, ...

    As translate of HP-UX did: the time is that of day, a thread and its priority share a word
    (pid << 16 | priority << 8), text is packed, four characters a word, and EXEC makes three
    records. Of the queue of a disk the used positions are printed. Exit code 3: events were lost;
    5: a log is damaged.
    """
    from tcpkmon.formats.analysis import open_log
    from tcpkmon.formats.base.installing import own_version
    from tcpkmon.formats.history import Translator, write_records_1987

    with open_log(*files) as log:
        theirs = log.format.header.get("tcpkmon")
        if isinstance(theirs, str) and theirs != own_version():
            say(f"tcpkmon translate: warning: the log is of version {for_terminal(theirs)}, "
                f"this tool of {own_version()}")  # fmt: skip
        chosen = log.without_collector() if without_collector else log
        if listed:
            for line in Translator(log).legend():
                click.echo(line)
            return 0
        if old is not None:
            with create_file(old, force=force) as out:
                for note in write_records_1987(chosen, out):
                    say(f"tcpkmon translate: {note}")
        else:
            for line in Translator(chosen, names).lines():
                sys.stdout.write(f"{line}\n")
        if log.lost and not log.damaged:
            say(f"tcpkmon translate: {log.lost} events were lost; tcpkmon verify lists the causes")
        return tell_problems("tcpkmon translate", log, files)
