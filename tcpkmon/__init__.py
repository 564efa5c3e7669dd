# SPDX-License-Identifier: Apache-2.0
"""tcpkmon from Python: captures, and what their files say. docs/python.md shows each function.

Errors are those of the commands, with their messages: subclasses of TcpkmonError.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tcpkmon.formats.base.errors import (
    DamagedError,
    FileError,
    LossError,
    PrivilegeError,
    TcpkmonError,
    UsageError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame

    from tcpkmon.collector.capturing import Capture, Control
    from tcpkmon.formats.analysis import diff as _diff
    from tcpkmon.formats.analysis import latency as _latency
    from tcpkmon.formats.analysis.explaining import Explained
    from tcpkmon.formats.base.reader import Reader
    from tcpkmon.formats.verify import Report

__all__ = [
    "DamagedError",
    "FileError",
    "LossError",
    "PathLike",
    "PrivilegeError",
    "TcpkmonError",
    "UsageError",
    "attach",
    "collect",
    "connections",
    "diff",
    "intervals",
    "latency",
    "open",
    "requests",
    "sql",
    "verify",
    "why",
]

PathLike: TypeAlias = str | os.PathLike[str]
"""A capture: a file, or the folder of one."""


def collect(output: PathLike, **options: Any) -> Capture:
    """Start a capture into `output`; returns when all is attached. The end of a `with` stops it.

    options: those of the command collect, with _ for -: ports=[5201], schema="sched",
    columns="all", force=True for a flag. Needs root. UsageError for an option that there is
    not; PrivilegeError, FileError and others when the capture cannot start, and nothing is left
    behind.
    """
    from pathlib import Path

    from tcpkmon.collector.capturing import launch
    from tcpkmon.collector.commands.arguments import arguments_of

    words = arguments_of(options)
    return launch(["--quiet", "-o", os.fspath(output), *words], Path(output))


def attach(which: int | str | None = None) -> Control:
    """A running capture, by its PID or name, or the only one: status, marks, filters."""
    from tcpkmon.collector import capturing

    return capturing.attach(which)


def open(path: PathLike, *more: PathLike) -> Reader:
    """Open the capture at `path`, of any format. Raises FileError or DamagedError.

    It is a file or a folder; with `more`, several segments of one capture, in any order
    (UsageError for others).

    A PSC file returns a tcpkmon.formats.psc.reader.Capture. A Klogger log, or a folder of them,
    returns a tcpkmon.formats.klogger.logs.Logs. Both have table(name), any table as Arrow, and
    connections(columns), the records of the schema tcp in blocks of whole connections.
    """
    from tcpkmon.formats.base.analysed import Analysed
    from tcpkmon.formats.registry import open_files

    reader = open_files(path, *more)
    if isinstance(reader, Analysed):
        reader.above = _Above((path, *more))
    return reader


def connections(*paths: PathLike) -> DataFrame:
    """A row for each connection of a capture; docs/connections.md has the columns."""
    return _table("connections", paths)


def intervals(*paths: PathLike) -> DataFrame:
    """A row for each time in which one limit held; docs/connections.md has the columns."""
    return _table("intervals", paths)


def requests(*paths: PathLike) -> DataFrame:
    """A row for each request and its answer; docs/requests.md has the columns."""
    from tcpkmon.formats.analysis import exchanges, why

    with why.Source(*paths) as source:
        return why.as_frame(exchanges.exchanges(source))


def sql(query: str, *paths: PathLike) -> Any:
    """What a query over the tables of captures, or of a dataset, says, as a pyarrow.Table;
    docs/tables.md has them.

    query: as DuckDB understands it. UsageError where DuckDB refuses it, or is not installed.
    """
    from tcpkmon.formats.dataset import open_query

    with open_query([os.fspath(path) for path in paths]) as asked:
        return asked.run(query).read_all()


def why(*paths: PathLike) -> list[Explained]:
    """Of each connection, what limited it: its values, and the sentences of `tcpkmon why`.

    Those with the most bytes come first.
    """
    from tcpkmon.formats.analysis.explaining import explain

    return list(explain(paths))


def latency(*paths: PathLike, slowest: int = 3) -> _latency.Report:
    """Where the time of each byte went, of a log of the schema magnet; docs/latency.md.

    slowest: so many of the slowest writes of each flow are told of.
    """
    from tcpkmon.formats.analysis import open_log
    from tcpkmon.formats.analysis.latency import Latency, Summary, find_flows, make_report

    with open_log(*paths) as log:
        measured = Latency(log)
        summary = Summary(find_flows(measured.survey, []), measured.survey.begin_ns, slowest)
        for some in measured:
            summary.add(some)
        return make_report(measured, summary)


def diff(a: PathLike | Sequence[PathLike], b: PathLike | Sequence[PathLike]) -> _diff.Report:
    """Two captures, or two groups of them, compared; docs/diff.md. DamagedError: not proven."""
    from tcpkmon.formats.analysis.diff import Side, make_report, read_run, refuse_unproven

    runs = [tuple(read_run(path) for path in _listed(side)) for side in (a, b)]
    refuse_unproven([run for side in runs for run in side if not run.proven])
    return make_report(Side("A", runs[0]), Side("B", runs[1]))


def verify(*paths: PathLike) -> list[Report]:
    """What each capture proves of itself: a Report for each file, of folders one for all too.

    exit_code of a Report: 0, nothing was lost, and that is proven; 3, losses that are accounted
    for, or an unknown end; 5, it does not add up or is damaged. FileError: it cannot be read.
    """
    from tcpkmon.formats.registry import format_of

    return [report for path in paths for report in format_of(path).verify(path)]


def _table(name: str, paths: tuple[PathLike, ...]) -> DataFrame:
    from tcpkmon.formats.analysis import why

    with why.Source(*paths) as source:
        table = why.connections(source) if name == "connections" else why.intervals(source)
        return why.as_frame(table)


def _listed(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    from pathlib import Path

    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return [Path(path) for path in several]


class _Above:
    """What the readers of open() have of the rooms above them. paths: what was opened."""

    def __init__(self, paths: tuple[PathLike, ...]) -> None:
        self._paths = paths
        self._html: str | None = None

    def blocks(self, reader: Any, columns: Sequence[str], memory: int | str | None) -> Any:
        from tcpkmon.formats.analysis import why
        from tcpkmon.formats.base.quantities import parse_size

        size = parse_size(memory) if isinstance(memory, str) else memory
        source = why.Source(reader, needed=columns, what="columns of the schema tcp")
        source.names = list(columns)
        return source.blocks(size)

    def arrow(self, reader: Any, name: str) -> Any:
        from tcpkmon.formats import tables

        return tables.table_of(tables.Opened(tuple(_listed(self._paths)), reader), name)

    def html(self, reader: Any) -> str:
        from tcpkmon.formats import tables

        if self._html is None:
            opened = tables.Opened(tuple(_listed(self._paths)), reader)
            self._html = tables.as_html(opened)
        return self._html
