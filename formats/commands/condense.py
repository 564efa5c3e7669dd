# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon condense FILE...`: the report of the UBC event monitor's condenser."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.commands.proof import tell_problems
from tcpkmon.formats.commands.shared import (
    PATH,
    files_argument,
    make_console,
    make_table,
    output_option,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tcpkmon.formats.history import Condensed, Group, Shares, Times

_WIDTH = 100
_NONE = "n/a"


@click.command("condense")
@files_argument
@click.option("--classes", default="10,1000", show_default=True, metavar="MS,MS",
              help="CPU time of a process, in ms, from which it is Medium, and Heavy.")
@click.option("--by-user", is_flag=True,
              help="Classes of users: --classes is the CPU time of all processes of a user.")
@click.option("--slices", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N",
              help="Divide the session into N parts, and mark the peaks.")
@click.option("--discard-lossy", type=click.IntRange(0), metavar="N",
              help="Leave out each buffer (dump) from which more than N events were lost.")
@click.option("--without-collector", is_flag=True,
              help="Leave out the collector's own disk requests, page faults and process.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: all figures, times in seconds.")
@click.option("--html", type=PATH, metavar="FILE",
              help="Write the report as a page of HTML.")
@click.option("--force", is_flag=True, help="Let --html and -o replace a file.")
@output_option("Draw CPU, disk, page faults and response times over time (.png, .svg, .pdf).",
               "FILE")
def command(
    files: tuple[Path, ...],
    classes: str,
    by_user: bool,
    slices: int,
    discard_lossy: int | None,
    without_collector: bool,
    as_json: bool,
    html: Path | None,
    force: bool,
    output: Path | None,
) -> int:
    """Condense Klogger logs of the schemata tty, sched, paging and disk into a report.

    FILE is the folder of a capture, or its kernlog.dump.cpuN. Processes are Light, Medium or Heavy
    by the CPU time that they used. A figure that was not recorded is n/a. Exit code 3: events were
    lost, or the end of a log is unknown; 5: a log is damaged.
    """
    from tcpkmon.formats.analysis import open_log
    from tcpkmon.formats.history import condense

    limits = _parse_limits(classes)
    with open_log(*files) as log:
        report = condense(log, limits, slices, discard_lossy, by_user, without_collector)
        code = tell_problems("tcpkmon condense", log, files)
    if output is not None:
        from tcpkmon.formats.history import draw_condensed

        draw_condensed(report, output, force)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=2))
    elif html is None:
        _print(report, make_console(_WIDTH))
    if html is not None:
        from rich.console import Console

        page = Console(file=io.StringIO(), markup=False, highlight=False, width=_WIDTH, record=True)
        _print(report, page)
        with create_file(html, force=force) as out:
            out.write(page.export_html().encode())
    return code


def _parse_limits(text: str) -> tuple[float, float]:
    try:
        light, heavy = (float(word) for word in text.split(","))
    except ValueError:
        light, heavy = 1.0, 0.0
    if not 0 < light <= heavy < float("inf"):
        raise UsageError(f"--classes {text}: not two times", "write 10,1000: ms, ascending")
    return light, heavy


def _print(report: Condensed, console: Console) -> None:
    _print_head(report, console)
    light, heavy = report.limits_ms
    whose = "users" if report.by_user else "processes"
    console.print(f"Classes of {whose} by CPU time: Light below {light:g} ms, Medium below "
                  f"{heavy:g} ms, Heavy from there.\n")
    table = _list_groups("System Parameters", report.classes)
    empty = [_NONE] * (len(report.classes) - 1)
    table.add_row("Life of a process (secs)", *empty, _mean(report.process_life))
    table.add_row("Between processes (secs)", *empty, _mean(report.between_processes))
    console.print(table)
    console.print()
    console.print(_list_shares(report))
    for title, groups in (("User", report.users), ("Cgroup", report.cgroups)):
        if groups:
            console.print()
            console.print(_list_by_row(title, groups))
    if report.devices or report.cpus:
        console.print()
        console.print(_list_resources(report))
    console.print()
    console.print(_list_slices(report))
    for note in report.notes:
        console.print(f"Note: {for_terminal(note)}")


def _print_head(report: Condensed, console: Console) -> None:
    head = report.head
    started = head["started_ns"]
    when = (
        _NONE if started is None
        else datetime.datetime.fromtimestamp(started / 1e9, datetime.timezone.utc)
        .strftime("%m/%d/%y %H:%M:%S UTC")
    )  # fmt: skip
    machine = head["settings"].get("machine")
    machine = machine if isinstance(machine, dict) else {}
    memory = machine.get("memory_bytes")
    megabytes = f"{memory >> 20} Megabytes" if isinstance(memory, int) else _NONE
    for label, value in (
        ("Monitor started on", when),
        ("Monitor Version:", f"{head['version']} on {head['kernel']}"),
        ("Monitor User Name:", machine.get("user", _NONE)),
        ("Monitor User Number:", machine.get("uid", _NONE)),
        ("CPU:", f"{head['host']} ({head['cpus']} CPUs, {machine.get('cpu_model', 'unknown')})"),
        ("Memory:", megabytes),
        ("Users seen:", len(report.users)),
        ("Elapsed time =", f"{head['elapsed_s']:.3f} seconds"),
        ("Number of events processed =", head["events"]),
        ("Total blocks/buffers read =", head["buffers"]),
        ("Events lost =", head["lost"]),
    ):
        console.print(f"{label} {for_terminal(str(value))}")
    console.print()


def _mean(times: Times | None, unit: float = 1.0) -> str:
    return _NONE if times is None else f"{times.mean * unit:.3f}"


def _number(value: int | None) -> str:
    return _NONE if value is None else str(value)


_TIMES = (
    ("Response time (secs)", "response", 1.0),
    ("Think time (secs)", "think", 1.0),
    ("True CPU (ms)", "cpu", 1e3),
    ("True I/O (ms)", "io", 1e3),
)
_SPREAD = (("   median", "p50"), ("   95 %", "p95"), ("   largest", "most"))


def _table(*columns: str) -> Table:
    return make_table(columns, left=columns[0])


def _list_groups(title: str, groups: Sequence[Group]) -> Table:
    table = _table(title, *(group.name for group in groups))
    for label, name, unit in _TIMES:
        times = [getattr(group, name) for group in groups]
        table.add_row(label, *(_mean(one, unit) for one in times))
        for part, at in _SPREAD:
            shown = (_NONE if one is None else f"{getattr(one, at) * unit:.3f}" for one in times)
            table.add_row(part, *shown)
    table.add_row("Physical Page Fault (number)", *(_number(g.physical_faults) for g in groups))
    table.add_row("Virtual Page Fault (number)", *(_number(g.virtual_faults) for g in groups))
    table.add_row("Login (secs)", *(_mean(group.login) for group in groups))
    table.add_row("Logout (secs)", *(_mean(group.logout) for group in groups))
    table.add_row("Processes", *(str(group.processes) for group in groups))
    return table


def _list_by_row(title: str, groups: Sequence[Group]) -> Table:
    from tcpkmon.formats.history import NO_USER

    table = _table(title, "Processes", "Response s", "Think s", "CPU ms", "I/O ms", "Physical",
                   "Virtual")  # fmt: skip
    for group in groups:
        name = "not known" if group.name in (str(NO_USER), "0" if title == "Cgroup" else "") else (
            group.name
        )
        table.add_row(
            name, str(group.processes), _mean(group.response), _mean(group.think),
            _mean(group.cpu, 1e3), _mean(group.io, 1e3), _number(group.physical_faults),
            _number(group.virtual_faults),
        )  # fmt: skip
    return table


def _list_shares(report: Condensed) -> Table:
    table = _table("Statistic", "True", "Virtual", "Total")

    def add(label: str, shares: Shares | None, unit: float) -> None:
        values = (shares.true, shares.virtual, shares.total) if shares is not None else ()
        table.add_row(label, *([f"{value * unit:.4f}" for value in values] or [_NONE] * 3))

    add("CPU Utilization (percent)", report.cpu, 100)
    add("Disk Utilization (percent)", report.disk, 100)
    add("Page Fault Rate (no. page faults/sec)", report.faults_per_s, 1)
    return table


def _list_resources(report: Condensed) -> Table:
    table = _table("Resource", "Utilization %", "Requests", "Bytes", "Mean depth")
    for cpu, share in report.cpus.items():
        table.add_row(f"CPU {cpu}", f"{100 * share:.2f}", "", "", "")
    for device in report.devices:
        major, minor = device.number >> 20, device.number & 0xFFFFF
        table.add_row(
            f"device {major}:{minor}", f"{100 * device.utilisation:.2f}", str(device.requests),
            str(device.bytes), f"{device.mean_depth:.2f}",
        )  # fmt: skip
    return table


def _list_slices(report: Condensed) -> Table:
    table = _table("From s", "To s", "Transactions", "Response s", "CPU %", "Disk %", "Faults",
                   "Peak of")  # fmt: skip
    for one in report.slices:
        shares = (_NONE if share is None else f"{100 * share:.2f}" for share in (one.cpu, one.disk))
        table.add_row(
            f"{one.start_s:.1f}", f"{one.stop_s:.1f}", str(one.transactions), _mean(one.response),
            *shares, _number(one.faults), ", ".join(one.peak),
        )  # fmt: skip
    return table
