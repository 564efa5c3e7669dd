# SPDX-License-Identifier: Apache-2.0
"""All experiments, the command scripts/host-experiments, and docs/monitor.md with its picture."""

from __future__ import annotations

from pathlib import Path

import click

from scripts.experiments.command import make_command
from scripts.experiments.paper import Paper, listed
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.host import (
    buffers,
    calls,
    disks,
    everything,
    files,
    groups,
    oracles,
    overhead,
    response,
    samples,
    scheduling,
    session,
)
from scripts.host.mix import THEN
from tcpkmon.formats import drawing

EXPERIMENTS = listed(
    overhead,
    session,
    oracles,
    response,
    buffers,
    calls,
    disks,
    files,
    scheduling,
    samples,
    groups,
    everything,
)
INTRODUCTION = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `sudo scripts/host-experiments --docs`: change scripts/host, not this page. -->
# The experiments of the event monitor and of HP-UX's measurement system

`tcpkmon monitor` records the six groups of events of the event monitor of the University of British
Columbia (1987), `tcpkmon iscan` what the measurement system of HP-UX recorded (1988), both on a
kernel as it is. This page has their experiments, run on {model} with Linux {kernel}, with the
figures of then beside. `sudo scripts/host-experiments --docs` makes it again.

The machine of 1987 was a SUN-3 of one user; this one has {cpus} CPUs, which the collector shares
with what it records. U1 has {rounds} rounds, each condition in turn with the others.

U2 and H10 are the same {seconds} s: while 12 scripted users work at pseudo terminals, the monitor
records its six groups, and a second capture all schemata but magnet. H7 and H9 are tests alone
(`tests/unit/test_translate.py`, `tests/live/test_monitor_live.py`): the words of `translate`, and
what a user without privilege may do.

![Overhead of the monitor by command](images/{picture})

CPU time of the commands of U1 while the monitor is on, by what they take while it is absent: 95 %
confidence intervals; grey: 1987.
"""


def words(results: Results) -> dict[str, object]:
    seconds = results.median(session.NAME, session.ELAPSED, "monitor") or 0
    return {"seconds": number(seconds, 0)}


def draw(results: Results, path: Path) -> None:
    """The ratios of U1 by command."""
    with drawing.styled():
        figure = drawing.new_figure()
        figure.set_size_inches(9, 5)
        axes = figure.subplots()
        names = []
        for place, command in enumerate([*overhead.commands(results), overhead.BOTH]):
            benchmark, _, name = command.rpartition(": ")
            names.append(f"{name} ({benchmark})" if benchmark else name)
            first = place == 0
            if name in THEN:
                absent, _, on = THEN[name]
                axes.plot(on / absent, place, "s", color="0.6", label="1987" if first else None)
            value = overhead.times(results, command, overhead.ON)
            if value is not None:
                around = [[value.value - value.low], [value.high - value.value]]
                axes.errorbar(
                    value.value, place, xerr=around, fmt="o", markersize=3, capsize=2.5,
                    color=drawing.PALETTE[0], label="here" if first else None,
                )  # fmt: skip
        axes.axvline(1, color="0.8")
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="times the CPU time without the monitor", title="U1: monitor on")
        axes.invert_yaxis()
        axes.legend()
        drawing.save_figure(figure, path, force=True)


PAPER = Paper(
    "host-experiments", "1987", EXPERIMENTS, ("cc", "ed", "groff", "perf", "login"), "monitor.md",
    "monitor.png", INTRODUCTION, words, draw,
)  # fmt: skip


def set_session(_context: click.Context, _option: click.Parameter, seconds: float | None) -> None:
    if seconds is not None:
        session.SECONDS = session.QUICK_SECONDS = seconds


command = make_command(
    PAPER,
    """Run the experiments of the event monitor of 1987 and of HP-UX's measurement system of 1988.

    On a machine that does nothing else, as root. Exits with 1 if an experiment failed to run.
    """,
    "U1 and H8",
    "in five minutes",
    click.Option(
        ["--session"], type=click.FloatRange(10, 3600), metavar="SECONDS", expose_value=False,
        callback=set_session,
        help=f"Length of the session of U2 and H10.  [default: {session.SECONDS:.0f}]",
    ),
)  # fmt: skip
