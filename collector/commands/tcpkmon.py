# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon: the group of all subcommands."""

from __future__ import annotations

import sys

import click

from tcpkmon.collector.commands import (
    benchmark,
    buffer_size,
    columns,
    daemon,
    demo,
    disable,
    doctor,
    dump,
    enable,
    events,
    lowwater,
    mark,
    metrics,
    probe,
    reload,
    sampler_period,
    schema,
    selftest,
    status,
    top,
    triggers,
)
from tcpkmon.collector.commands.history import iscan, monitor, msmod
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.commands import (
    anonymise,
    check,
    condense,
    connections,
    cut,
    decode,
    diff,
    export,
    flamegraph,
    join,
    latency,
    magnet_parse,
    repair,
    report,
    requests,
    sql,
    translate,
    verify,
    why,
)


@click.group("tcpkmon", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tcpkmon", prog_name="tcpkmon")
def command() -> None:
    """Monitor TCP in the running Linux kernel: what this machine can do, and what files hold.

    collect captures, pmgraph draws.
    """


for _part in (
    demo,
    doctor,
    selftest,
    events,
    columns,
    verify,
    repair,
    cut,
    anonymise,
    schema,
    decode,
    export,
    condense,
    translate,
    flamegraph,
    latency,
    magnet_parse,
    sampler_period,
    daemon,
    reload,
    status,
    metrics,
    top,
    enable,
    disable,
    mark,
    probe,
    buffer_size,
    lowwater,
    msmod,
    iscan,
    monitor,
    benchmark,
    why,
    connections,
    requests,
    report,
    sql,
    join,
    check,
    diff,
    dump,
    triggers,
):
    command.add_command(_part.command)


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(command, prog="tcpkmon"))
