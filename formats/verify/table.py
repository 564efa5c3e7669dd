# SPDX-License-Identifier: Apache-2.0
"""Prints what verify found for people: one table per file, in under 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.verify.report import CAUSES, Problem, Report, Row

PLAIN_WIDTH = 79
WIDEST = 1000
_STYLES = {0: "green", 3: "yellow"}
_COLUMNS = (
    "attempts", "filtered", "unchanged", "limited", "shed", "written", "in file", "pending", "lost",
)  # fmt: skip
_ASIDE = ("filtered", "unchanged", "limited", "shed", "pending")
_IF_ANY = ("limited", "shed", "pending")


def make_console(colours: bool) -> Console:
    """A console on stdout: as wide as the terminal, PLAIN_WIDTH where there is none."""
    console = Console(highlight=False, markup=False, emoji=False, no_color=not colours)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def print_report(console: Console, report: Report) -> None:
    """One file: verdict, ledger, what is missing where, problems with their offsets."""
    console.print(
        _text(report.path, "bold"),
        Text(": "),
        _text(report.verdict, _STYLES.get(report.exit_code, "red")),
        sep="",
        soft_wrap=True,
    )
    if report.error is not None or (report.brief and not report.exit_code):
        return
    console.print(_text(_summary(report)))
    if report.rows:
        console.print(_fitting_table(console, report))
        if report.tail_unknown:
            last = f"The table is as of the last {report.word('checkpoint')}."
            console.print(_text(last, "yellow"))
    for line in _remarks(report):
        console.print(_text(line))
    for problem in report.problems:
        console.print(_text(f"{_place(report, problem)}{problem.what}"))
    unlisted = report.problems_total - len(report.problems)
    if unlisted > 0:
        console.print(_text(f"... and {unlisted} more problem(s)"))


def _place(report: Report, problem: Problem) -> str:
    if problem.entry < 0:
        return ""
    return f"offset {problem.offset}, {report.word('entry')} {problem.entry}: "


def _text(text: str, style: str = "") -> Text:
    return Text(for_terminal(text), style=style)


def _summary(report: Report) -> str:
    parts = [f"{report.entries} {report.word('entries')}, {report.size_bytes} bytes"]
    if report.ledger:
        if report.checkpoints or report.clock_pairs:  # a folder of dumps has none of its own
            parts.append(f"{report.checkpoints} {report.word('checkpoint')}(s)")
            parts.append(f"{report.clock_pairs} clock pair(s)")
        ended = "no end" if report.end_reason is None else f"ended: {report.end_reason}"
        parts.append(ended)
    return ", ".join(parts)


def _fitting_table(console: Console, report: Report) -> Table:
    """The ledger; where numbers are too wide for it, fewer columns and more lines."""
    table = _ledger_table(report, ())
    wide = console.options.update(width=WIDEST)
    if Measurement.get(console, wide, table).maximum <= console.width:
        return table
    return _ledger_table(report, _ASIDE)


def _ledger_table(report: Report, aside: tuple[str, ...]) -> Table:
    """`aside`: counts that get lines of their own below their row, as the causes do."""
    totals = report.totals
    totals.pending += _counted_before(report)
    columns = [
        name
        for name in _COLUMNS
        if name not in aside and (name not in _IF_ANY or getattr(totals, name))
    ]
    per_cpu = any(row.cpu is not None for row in report.rows)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=True)
    if per_cpu:
        table.add_column("cpu", justify="right")
    table.add_column(report.word("location"), no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in (*report.rows, totals):
        style = "bold" if row is totals else ""
        cells = [_text(row.name)]
        if per_cpu:
            cells.insert(0, _text("" if row.cpu is None else str(row.cpu)))
        cells += [_text(str(_value(row, name))) for name in columns]
        if row is totals and per_cpu:
            cells[0] = Text("")
        table.add_row(*cells, style=style)
        below = [(name, _value(row, name)) for name in aside]
        if row is not totals:
            below += [(cause, row.lost.get(cause, 0)) for cause in CAUSES]
        for name, number in below:
            if number:
                cells = [_text(f"  {name}")] + [Text("")] * (len(columns) - 1)
                cells.append(_text(str(number)))
                table.add_row(*([Text("")] if per_cpu else []), *cells, style="dim")
    return table


def _value(row: Row, name: str) -> int:
    if name == "lost":
        return row.lost_total
    count = int(getattr(row, name.replace(" ", "_")))
    return max(0, count) if name == "pending" else count  # the rest: _counted_before()


def _counted_before(report: Report) -> int:
    """Records whose events the file before counts, where that was deleted: they were under way."""
    return sum(-min(0, row.pending) for row in report.rows)


def _remarks(report: Report) -> Iterable[str]:
    totals = report.totals
    yield from report.window
    if totals.lost_total:
        causes = (f"{cause} {totals.lost[cause]}" for cause in CAUSES if totals.lost[cause])
        yield f"lost by cause: {', '.join(causes)}"
    if (before := _counted_before(report)) and not report.problems_total:
        yield f"in file are {before} whose events the file before these counted"
    if report.seq_gaps:
        yield f"{report.seq_gaps} gap(s) in the sequence, {report.seq_lost} numbers missing"
    for one in report.missed:
        unseen = {"recursion": one.recursion, "kprobe, new network namespace": one.kprobe}
        counts = ", ".join(f"{count} ({cause})" for cause, count in unseen.items() if count)
        yield f"never seen by the program of {one.name}, lost too: {counts}"
    if report.existing:
        yield f"{report.existing} connection(s) were open before the start"
    if report.ring_lost:
        yield f"the rings themselves count {report.ring_lost} that found no room"
    if report.clock_steps:
        yield f"the clock was set {report.clock_steps} time(s) while capturing"
    if report.tail_unknown:
        yield (
            f"tail unknown: {report.after_checkpoint} {report.word('snapshot')}(s) "
            f"after the last {report.word('checkpoint')}, "
            "and perhaps more that were never written"
        )
    for name, way in report.unproven.items():
        yield f"not proven: {name} by {way}: the kernel did not count what it skipped there"
    yield from report.off
    yield from report.shed
    if report.unchecked:
        yield f"not checked: {'; '.join(report.unchecked)}"
    yield from (note for note in report.notes if note not in report.details)
