# SPDX-License-Identifier: Apache-2.0
"""The command pmgraph: text, graphs and xgraph files from a capture, with the options of 2000."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base import cli
from tcpkmon.formats.base.changes import describe
from tcpkmon.formats.base.control import Start
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.limits import MOST_LISTED
from tcpkmon.formats.base.ports import METAVAR
from tcpkmon.formats.commands.proof import contradicted, exit_code
from tcpkmon.formats.commands.shared import PATH, files_argument, output_option, refuse_input
from tcpkmon.formats.pmgraph import options
from tcpkmon.formats.pmgraph.options import PARAMETERS, Selection, parse_names, select

if TYPE_CHECKING:
    from tcpkmon.formats.pmgraph.pages import Page
    from tcpkmon.formats.psc.reader import Capture

_CHOSEN = "tcpkmon.pmgraph.chosen"
_LETTERS = {"text": "-T", "xgraph": "-x", "gaps": "-D", "maximum_memory": "-M", "output": "-o"}
_OF_ONE = ("text", "gaps", "maximum_memory")


def _choose(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Collect the chosen columns in the order of the command line."""
    columns: list[str] = context.meta.setdefault(_CHOSEN, [])
    if parameter.name == "show":
        columns.extend(name for text in value for name in parse_names(text))
    elif value:
        columns.append(next(one.column for one in PARAMETERS if one.letter == parameter.name))


def _column_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for one in reversed(PARAMETERS):
        command = click.option(
            one.letter, f"-{one.letter}", f"--{one.option}", is_flag=True, expose_value=False,
            callback=_choose, help=one.help,
        )(command)  # fmt: skip
    return command


@click.command(
    "pmgraph",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit status: 0 done, 1 failed, 2 wrong usage, 3 of a capture in many files: records "
    "are missing, or its end; 5 the file is damaged (what could be read was shown).",
)
@files_argument
@_column_options
@click.option("--show", "show", metavar="NAME,...", multiple=True, expose_value=False,
              callback=_choose, help="show these columns of the file")
@click.option("-p", "--connection", "connections", metavar=METAVAR, multiple=True,
              help="only include this connection, by its local and remote port in any order, and "
              "both its ends, or all with this port; more with more -p")
@click.option("-P", "--by-parameter", is_flag=True,
              help="one graph per parameter with all connections, not one per connection with all "
              "parameters")
@click.option("-S", "--scale", "scales", metavar="#c", multiple=True,
              help="scale option c by a factor: -S 1000l")
@click.option("-T", "--text", is_flag=True, help="print text instead of drawing")
@click.option("--time", "clock", type=click.Choice(cli.CLOCKS), default="epoch", show_default=True,
              help="how -T and -D print times")
@click.option("-D", "--gaps", is_flag=True,
              help="print the gaps in the data: sequence number before and after, number missing, "
              "both times")
@click.option("-M", "--maximum-memory", is_flag=True,
              help="print the most system memory used, in bytes")
@click.option("-x", "--xgraph", is_flag=True, help="write xgraph files into the current directory")
@output_option("draw into FILE: .png, .svg or .pdf", "FILE")
@click.option("--axis", type=click.Choice(["start", "clock"]), default="start", show_default=True,
              help="of several captures: each begins at 0, or they lie as the time of day says")
@click.option("--zoom", metavar="FROM..TO",
              help="draw this part of the time axis: --zoom 3.2s..3.4s")
@click.option("--sequence", is_flag=True,
              help="draw the time-sequence graph: segments, ACKs, windows' edges, limits")
@click.option("--around", metavar="EVENT", default="",
              help="with --sequence: draw the time around the first one: --around rto")
@click.option("--xplot", type=PATH, metavar="FILE",
              help="write the time-sequence graph into FILE for xplot, as tcptrace does")
@click.option("--size", metavar="WIDTHxHEIGHT",
              help="of the picture of -o, in pixels: --size 1600x900")
@click.option("--force", is_flag=True, help="let -x and -o overwrite files")
@click.option("-d", "--verbose", is_flag=True, help="say on stderr what the file holds")
@click.pass_context
def command(context: click.Context, /, files: tuple[Path, ...], **asked: Any) -> int:
    """Show the kernel monitor file FILE as graphs or text.

    Several files may be segments of one capture. Several captures come into one picture, with a
    graph for each parameter. Without -T, -x or -o it draws in a window where there is a display,
    else in the terminal. Without options for columns it shows everything.
    """
    from tcpkmon.formats.psc.reader import open_capture
    from tcpkmon.formats.registry import FILE_FORMATS, group, kind_of

    selection = select(
        context.meta.get(_CHOSEN, []), asked["connections"], asked["scales"], asked["by_parameter"],
        asked["zoom"],
    )  # fmt: skip
    _check(files, asked)
    if asked["sequence"] or asked["xplot"]:
        return _show_sequence(files, selection, asked)
    for file in files:
        found = FILE_FORMATS[kind_of(file)]
        is_some = any(file.glob("*")) if file.is_dir() else file.is_file()
        if found.shown_by != "pmgraph" and is_some:
            raise FileError(f"{file} is {found.title}, not a PSC file", f"use {found.shown_by}")
    groups = group(files) if len(files) > 1 else [[*files]]
    if len(groups) > 1 and (name := next((one for one in _OF_ONE if asked[one]), "")):
        raise UsageError(f"{_LETTERS[name]} takes one capture", "give the files one by one")
    with ExitStack() as stack:
        captures = [stack.enter_context(open_capture(*paths)) for paths in groups]
        for capture in captures:
            if asked["verbose"]:
                _describe(capture)
            _warn(capture)
        if len(captures) > 1:
            _show_together(captures, selection, asked)
        else:
            _show(captures[0], selection, asked)
        return max(map(_code_of, captures, groups))


def _code_of(capture: Capture, paths: Sequence[Path]) -> int:
    if len(paths) > 1 or paths[0].is_dir():
        return exit_code("pmgraph", capture, paths)
    if capture.damaged:
        return DamagedError.exit_code
    return contradicted("pmgraph", paths, worst_only=True)


def main() -> None:
    """Run pmgraph and leave with its exit code."""
    sys.exit(cli.run(command, prog="pmgraph"))


def _check(files: Sequence[Path], asked: dict[str, Any]) -> None:
    given = [name for name in ("text", "xgraph", "output") if asked[name]]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(_LETTERS[name] for name in given)} exclude each other")
    if asked["zoom"] and (asked["text"] or asked["xgraph"]):
        raise UsageError("--zoom is for pictures", "tcpkmon cut --since --until chooses records")
    wants_sequence = asked["sequence"] or asked["xplot"]
    if wants_sequence and (
        other := next((one for one in ("xgraph", *_OF_ONE) if asked[one]), "")
    ):
        raise UsageError(f"--sequence and {_LETTERS[other]} exclude each other")
    if asked["around"] and (not wants_sequence or asked["zoom"]):
        raise UsageError("--around is for --sequence without --zoom")
    if asked["size"]:
        if not asked["output"]:
            raise UsageError("--size without -o", "-o FILE.png draws a picture of this size")
        asked["size"] = options.parse_size(asked["size"])
    if asked["output"]:
        from tcpkmon.formats.drawing import check_output

        check_output(asked["output"])
        refuse_input(asked["output"], files, what="the file to be shown")


def _show(capture: Capture, selection: Selection, asked: dict[str, Any]) -> None:
    out = sys.stdout.buffer
    # With -T the other answers are comments in the text.
    if asked["maximum_memory"]:
        from tcpkmon.formats.pmgraph.quantities import find_maximum_bytes

        maximum = str(find_maximum_bytes(capture))
        click.echo(f"# maximum memory {maximum}" if asked["text"] else maximum)
    if asked["gaps"]:
        from tcpkmon.formats.pmgraph.gaps import write_gaps

        write_gaps(capture, out, asked["clock"], "# gap " if asked["text"] else "")
    if asked["text"]:
        from tcpkmon.formats.pmgraph.text import write_text

        write_text(capture, selection, out, asked["clock"])
    elif asked["xgraph"]:
        from tcpkmon.formats.pmgraph.xgraph import write_xgraph

        for path in write_xgraph(capture, selection, Path(), asked["force"]):
            click.echo(for_terminal(str(path)))
    elif asked["output"] or not _is_answered(selection, asked):
        from tcpkmon.formats.pmgraph.pages import build_pages

        _draw(lambda bins: build_pages(capture, selection, bins), asked)
    out.flush()


def _show_sequence(files: Sequence[Path], selection: Selection, asked: dict[str, Any]) -> int:
    """Of one capture of any format."""
    from tcpkmon.formats.base.reader import complaints_of
    from tcpkmon.formats.pmgraph.sequence_reading import open_source
    from tcpkmon.formats.psc.reader import Capture
    from tcpkmon.formats.registry import group, open_files

    if len(files) > 1 and len(group(files)) > 1:
        raise UsageError("--sequence takes one capture", "give the files one by one")
    if selection.columns or selection.scales or selection.by_parameter:
        raise UsageError("--sequence draws what it draws", "leave out the columns, -S and -P")
    with open_files(*files) as reader, open_source(reader) as source:
        if isinstance(reader, Capture):
            if asked["verbose"]:
                _describe(reader)
            _warn(reader)
        if asked["xplot"]:
            from tcpkmon.formats.pmgraph.xplot import write_xplot

            for note in write_xplot(source, selection, asked["xplot"], asked["around"],
                                    asked["force"]):  # fmt: skip
                _say(note)
        if asked["sequence"]:
            from tcpkmon.formats.pmgraph.sequence_pages import build_sequence

            _draw(lambda bins: build_sequence(source, selection, bins, asked["around"]), asked)
        if isinstance(reader, Capture):
            return _code_of(reader, files)
        for text in complaints_of(reader):
            _say(f"{reader.path}: {for_terminal(text)}")
        return exit_code("pmgraph", reader, files)


def _show_together(
    captures: Sequence[Capture], selection: Selection, asked: dict[str, Any]
) -> None:
    by_clock = asked["axis"] == "clock"
    if asked["xgraph"]:
        from tcpkmon.formats.pmgraph.xgraph import write_together

        paths, notes = write_together(captures, selection, Path(), by_clock, asked["force"])
        for path in paths:
            click.echo(for_terminal(str(path)))
        for note in notes:
            _say(note)
        return
    from tcpkmon.formats.pmgraph.together import build_together

    _draw(lambda bins: build_together(captures, selection, bins, by_clock), asked)


def _is_answered(selection: Selection, asked: dict[str, Any]) -> bool:
    """Whether -M or -D was all that was wanted."""
    wants_graph = bool(selection.columns or selection.scales or selection.by_parameter)
    return (asked["maximum_memory"] or asked["gaps"]) and not wants_graph


def _draw(
    build: Callable[[int], tuple[list[Page], list[str]]], asked: dict[str, Any]
) -> None:
    """Draw what build() makes for so many pixel columns, and say its notes."""
    from tcpkmon.formats.pmgraph import figure, terminal

    output = asked["output"]
    in_window = output is None and figure.has_window()
    in_terminal = output is None and not in_window
    if in_terminal and not sys.stdout.isatty():
        raise UsageError(
            "nowhere to draw: no display, and stdout is no terminal",
            "use -o FILE.png (or .svg, .pdf), or -T for text",
        )
    bins = terminal.BINS if in_terminal else figure.BINS
    if output is not None:
        bins = figure.bins_of(output, asked["size"])
    pages, notes = build(bins)
    for note in notes:
        _say(note)
    if output is not None:
        figure.save(pages, output, asked["size"], asked["force"])
    elif in_window:
        figure.show(pages)
    else:
        width = min(shutil.get_terminal_size().columns, terminal.WIDTH_MAX)
        ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
        for line in terminal.draw_text(pages, width, cli.use_colours(), ascii_only):
            click.echo(line)


def _warn(capture: Capture) -> None:
    """Report what is missing; losses and a missing end only for files with control entries."""
    for warning in capture.warnings:
        _say(f"{capture.path}: {warning}")
    if len(capture) and capture.control(0, 1).any():
        if capture.lost:
            _say(f"{capture.path}: {capture.lost} records lost")
        if not capture.complete:
            _say(f"{capture.path}: no end record: tail unknown")
        offset_ns = 0
        for _, entry in capture.controls(0, 1):
            if isinstance(entry, Start):
                offset_ns = entry.realtime_ns - entry.mono_ns
        for line in describe(capture.off, capture.location_name, lambda ns: ns + offset_ns):
            _say(f"{capture.path}: {line}: not recorded")


def _describe(capture: Capture) -> None:
    from tcpkmon.formats.pmgraph.connections import find_connections, title_of

    header = capture.header
    _say(
        f"{capture.path}: {len(capture)} entries of {header.entry_size} bytes, version "
        f"{header.version}, mods {header.mods}, {header.endian.name.lower()} endian, "
        f"clusters of {header.mclsize} bytes"
    )
    for column in header.columns:
        _say(
            f"column {column.name}: offset {column.offset}, length {column.length}, "
            f"scope {column.scope}, mask {column.mask}, flags {column.flags}"
        )
    connections = find_connections(capture)
    for one in connections[:MOST_LISTED]:
        _say(f"connection {one.ports}: {one.records} records, {title_of(capture, one)}")
    if len(connections) > MOST_LISTED:
        _say(f"and {len(connections) - MOST_LISTED} more connections")
    present = (*capture.names, options.M_CLUSED_BYTES)
    letters = [f"-{one.letter}" for one in PARAMETERS if one.column in present]
    _say(f"options that it can show: {' '.join(letters)}")


def _say(text: str) -> None:
    cli.say(f"pmgraph: {text}")
