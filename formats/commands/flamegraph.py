# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon flamegraph LOG...`: a sampler's stacks, for the tools that draw flame graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.commands.proof import tell_problems
from tcpkmon.formats.commands.shared import PATH


@click.command("flamegraph")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=PATH)
@click.option("--idle", is_flag=True, help="Count idle CPUs too.")
@click.option("--shares", is_flag=True, help="Print the share of each state instead: user, nice, "
              "system, idle, skipped.")
def command(logs: tuple[Path, ...], idle: bool, shares: bool) -> int:  # fmt: skip
    """Print the samples of a capture with the schema sampler as collapsed stacks.

    A line is NAME;OUTERMOST;...;INNERMOST COUNT: what flamegraph.pl, inferno and speedscope draw.
    `collect --using stacks` records stacks; without them a stack is where the program counter was.
    Kernel functions end in _[k], a program's own are addresses. Exit code 3: events were lost, or
    the end of a log is unknown; 5: a log is damaged.
    """
    from tcpkmon.formats.analysis import collapse_stacks, count_samples, open_log

    with open_log(*logs) as log:
        if shares:
            counted = count_samples(log)
            for state, share in sorted(counted.shares.items()):
                click.echo(f"{state.lower()}\t{100 * share:.2f}%\t{counted.states[state]}")
        else:
            for line, count in sorted(collapse_stacks(log, idle).items()):
                sys.stdout.write(f"{line} {count}\n")
        if log.lost and not log.damaged:
            say(f"tcpkmon flamegraph: {log.lost} events were lost")
        return tell_problems("tcpkmon flamegraph", log, logs)
