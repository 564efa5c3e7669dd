# SPDX-License-Identifier: Apache-2.0
"""The command collect: captures TCP snapshots into a PSC file, alone or around a command."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tcpkmon.collector.commands.capture_options import capture_options, given
from tcpkmon.collector.plan.filters import parse
from tcpkmon.collector.plan.options import make_part, tables_of
from tcpkmon.collector.plan.request import Request, make_request
from tcpkmon.formats.base.cli import run as run_command
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.registry import FileFormat


def default_name(file_format: FileFormat, is_folder: bool = False) -> str:
    """The name of the output without -o, with the local time."""
    return time.strftime("tcpkmon-%Y%m%d-%H%M%S") + ("" if is_folder else file_format.suffix)


@click.command(
    "collect",
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": False},
)
@capture_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **values: Any) -> int:
    """Capture snapshots of TCP connections from the running kernel.

    With COMMAND: attach, run it, stop when it ends, and return its exit code.

    \b
    collect --ports 5001 -o transfer.pm --duration 10s
    collect --ports 5201 -o run.pm -- iperf3 -c 192.0.2.1
    """
    options = given()
    filters = parse(**options.pop("filters", {}))
    recorder = options.get("recorder")
    if recorder is not None and "last_s" not in recorder:
        what = "--after, --on and --dumps-per-hour are for the flight recorder"
        raise UsageError(what, "add --record-last 30s")
    for name, kind in tables_of(Request).items():
        if name in options:
            options[name] = make_part(kind, options[name])
    request = make_request(
        filters, {"output": "-", **options, "command": command, "arguments": tuple(sys.argv[1:])}
    )
    if "output" not in options:
        is_folder = request.rotation is not None or request.recorder is not None
        request = replace(request, output=default_name(request.format, is_folder))
    if request.top:
        from tcpkmon.collector.commands.top import run_beside

        return run_beside(request, run)
    return run_and_report(request) if request.latency or request.why else run(request)


def run_and_report(request: Request) -> int:
    """run(), then what reads what was captured: tcpkmon latency, tcpkmon why.

    UsageError where those cannot read it.
    """
    from tcpkmon.collector.commands.afterwards import Afterwards
    from tcpkmon.formats.commands import latency as latency_command
    from tcpkmon.formats.commands import why as why_command

    chosen = []
    if request.latency:
        if "magnet" not in request.schemata or request.file_format != "klogger":
            raise UsageError(
                "--latency needs logs of schema magnet", "leave out --schema and --format"
            )
        chosen.append(latency_command.command)
    if request.why:
        if "tcp" not in request.schemata:
            raise UsageError("--why needs the schema tcp", "add --schema tcp, or leave it out")
        chosen.append(why_command.command)
    if request.output == "-":
        wanted = "--latency" if request.latency else "--why"
        raise UsageError(f"{wanted} reads what was captured", "name it: -o NAME")
    name = Path(sys.argv[0]).name

    def report() -> int:
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        return max(run_command(command, [request.output], name) for command in chosen)

    unneeded = [] if request.ready_fd is None else [request.ready_fd]
    with Afterwards(report, unneeded) as reporting:
        code = run(request)
        reporting.run()
    return code


def run(request: Request) -> int:
    """tcpkmon.collector.session.session.run(), imported only here: it is slow."""
    if request.file_format == "magnet":
        from tcpkmon.collector.commands.converting import run_and_convert

        return run_and_convert(request, run)
    from tcpkmon.collector.session import session

    return session.run(request)


def import_quietly() -> None:
    """Import what is slow. During that, Ctrl-C ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # numpy's linear algebra, which nothing here uses, starts a thread for each further CPU when it
    # is imported. They would keep all privileges, which belong to threads: session/rights.py. The
    # environment is also that of the command.
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    import tcpkmon.collector.session.session  # noqa: F401

    for name, value in before.items():
        del os.environ[name]
        if value is not None:
            os.environ[name] = value
    signal.signal(signal.SIGINT, handler)


def main() -> None:
    """Entry point of the installed command."""
    # What a start makes stays; looking for garbage is a fifth of its imports. The session turns it
    # on when the capture begins.
    gc.disable()
    import_quietly()
    sys.exit(run_command(command, prog=Path(sys.argv[0]).name))
