# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon join FILE... PACKETS -o OUT`: packets of another program, with TCP's state at each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.commands.connections import report
from tcpkmon.formats.commands.shared import PATH, files_argument, output_option

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.beside import Join, Joined

_TABLES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv"}


@click.command("join")
@files_argument
@click.argument("packets", metavar="PACKETS", type=PATH)
@output_option("The pcapng file to write: the packets, with the states as comments.")
@click.option("--table", metavar="OUT", type=PATH,
              help="Also, or only, write a table with the states: .parquet, .arrow or .csv.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def command(
    files: tuple[Path, ...],
    packets: Path,
    output: Path | None,
    table: Path | None,
    force: bool,
) -> int:
    """Join packets that tcpdump or Wireshark captured with the records of the same traffic.

    FILE is a capture of the schema tcp, PACKETS a pcapng or pcap file. Each packet gets the state
    of its connection before and after it. It needs no root. All else in the file stays as it is.
    Exit code 3: records were lost; 5: a file is damaged, or PACKETS is cut off at its end.
    """
    from tcpkmon.formats.analysis.beside import Join
    from tcpkmon.formats.analysis.why import Source
    from tcpkmon.formats.packets.reading import PacketFile

    _check(files, packets, output, table)
    with PacketFile(packets) as capture, Source(*files) as source:
        join = Join(source, capture)
        _write(join, output, table, force)
        for line in _told(join, capture):
            say(f"tcpkmon join: {line}")
        code = report(source, "join", files)
        if capture.cut is not None:
            say(f"tcpkmon join: {for_terminal(str(packets))} ends within a block at offset "
                f"{capture.cut:,}: what was before is joined")  # fmt: skip
            code = max(code, DamagedError.exit_code)
        return code


def _check(
    files: tuple[Path, ...], packets: Path, output: Path | None, table: Path | None
) -> None:
    if output is None and table is None:
        raise UsageError("join needs -o or --table", "name a file: -o joined.pcapng")
    if table is not None and table.suffix.lower() not in _TABLES:
        raise UsageError(f"{table}: its ending is of no table", "name it .parquet, .arrow or .csv")
    made = [path for path in (output, table) if path is not None]
    if len(made) == 2 and made[0] == made[1]:
        raise UsageError("-o and --table are the same file", "choose another name")
    for path in made:
        if path.exists() and any(one.exists() and path.samefile(one) for one in (*files, packets)):
            raise UsageError(f"{path} is one of the captures", "choose another name")


def _write(join: Join, output: Path | None, table: Path | None, force: bool) -> None:
    from tcpkmon.formats.base.arrow import import_pyarrow
    from tcpkmon.formats.base.table_file import encodings, without_dictionaries, write_tables

    if table is not None:
        import_pyarrow("--table")
    with ExitStack() as stack:
        out = None if output is None else stack.enter_context(create_file(output, force))
        pieces = _copied(join, out)
        if table is None:
            for _ in pieces:
                pass
            return
        form = _TABLES[table.suffix.lower()]
        made = (piece.table() for piece in pieces)
        sheet = stack.enter_context(create_file(table, force))
        kept = made if form == "parquet" else map(without_dictionaries, made)
        write_tables(form, kept, sheet, encodings)


def _copied(join: Join, out: BinaryIO | None) -> Iterator[Joined]:
    for piece in join.pieces(with_comments=out is not None):
        if out is not None:
            out.write(b"".join(piece.blocks))
        yield piece


def _told(join: Join, capture: Any) -> Iterator[str]:
    """What was found, for people."""
    counts = join.counts
    segments = sum(counts.values()) - counts["other"]
    yield (
        f"{capture.count:,} packets, {segments:,} of them TCP: {counts['record']:,} have a record, "
        f"{counts['part']:,} are part of one, {counts['time']:,} have the state of their time, "
        f"{counts['none']:,} are of no connection in the capture"
    )
    if counts["other"]:
        yield f"{counts['other']:,} packets are not TCP, fragments, or cut off within the headers"
    if capture.undated:
        yield f"{capture.undated:,} packets have no time, and stay as they are"
    if join.late:
        yield f"{join.late:,} packets stand after much later ones: reordercap sorts them"
