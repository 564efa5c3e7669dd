# SPDX-License-Identifier: Apache-2.0
"""The command collect: captures TCP snapshots into a PSC file, alone or around a command."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collector.commands.budget_options import budget_options, take_budget
from collector.commands.recorder_options import recorder_options, take_recorder
from collector.commands.rotation_options import rotation_options, take_rotation
from collector.plan.quantities import parse_duration, parse_limit, parse_megabytes
from collector.writer.stream import STREAMS
from formats.base.cli import run as run_command
from formats.base.errors import UsageError
from formats.registry import FILE_FORMATS, FileFormat

if TYPE_CHECKING:
    from collector.plan.request import Request

FORMATS = [FILE_FORMATS[name] for name in STREAMS]
"""The first is the default."""


_OF_REQUESTS = {"locations": "SEND_CALL,RECEIVE_CALL", "columns": "pid,comm,netns,seg_ack"}
"""What --requests adds."""


def default_name(file_format: FileFormat, is_folder: bool = False) -> str:
    """The name of the output without -o, with the local time."""
    return time.strftime("tcpkmon-%Y%m%d-%H%M%S") + ("" if is_folder else file_format.suffix)


def _was_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


@click.command(
    "collect",
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": False},
)
@click.option("--ports", metavar="LIST", help="Ports on either side: 5001,5201-5210.")
@click.option("-L", "local_ports", metavar="PORTS", help="Local ports.")
@click.option("-D", "remote_ports", metavar="PORTS", help="Remote ports.")
@click.option("--pair", multiple=True, metavar="L.R", help="One pair of local and remote port.")
@click.option("--addr", multiple=True, metavar="PREFIX", help="An address or prefix, either side.")
@click.option("-4", "only4", is_flag=True, help="IPv4 only (v4-mapped too).")
@click.option("-6", "only6", is_flag=True, help="IPv6 only.")
@click.option("--netns", multiple=True, metavar="NAME|PID|PATH", help="A network namespace.")
@click.option("--cgroup", multiple=True, metavar="PATH", help="A cgroup (v2), those below too.")
@click.option("--pid", multiple=True, type=int, metavar="N",
              help="Connections of this process, and of those that it starts or has started.")
@click.option("--follow", is_flag=True,
              help="Only connections of COMMAND, and of the processes that it starts.")
@click.option("--syscalls", metavar="NAME,...", help="Only these calls, in the schema syscall.")
@click.option("-o", "--output", metavar="FILE", help="File to write; - is stdout.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--duration", metavar="TIME", help="Stop after this time: 10s, 2m.")
@click.option("--stop-after", type=click.IntRange(1), metavar="N",
              help="Stop after N records; those still in the rings are kept.")
@click.option(
    "--columns", default="default", show_default=True, metavar="SET|NAME,...",
    help="classic, default, full, all, or names: the columns to read in the kernel and store.",
)
@click.option(
    "--locations", metavar="NAME,...",
    help="Events: default, all, NAME or -NAME. The default has no calls of the application "
    "(SEND_CALL, RECEIVE_CALL), and no RCV_SPACE_ADJUST, which comes with each call.",
)
@click.option(
    "--when-changed", metavar="COL,...",
    help="Record a segment only when one of these columns changed for its connection.",
)
@click.option(
    "--buffer-size", type=click.FloatRange(0.008, 1024), default=4.0, show_default=True,
    metavar="MB", help="Ring size of each CPU.",
)
@click.option(
    "--low-water", type=click.IntRange(1, 99), default=75, show_default=True, metavar="PCT",
    help="Wake up when less than this share of a ring is free, or half while records come slowly.",
)
@click.option("--rings", metavar="bpf|perf",
              help="The kind of ring buffers. Default: bpf; perf where the kernel refuses bpf.")
@click.option("--print", "show", is_flag=True, help="Print each record on stdout too.")
@click.option("--format", "file_format", type=click.Choice([one.name for one in FORMATS]),
              default=FORMATS[0].name, show_default=True,
              help="A PSC file, a folder with a Klogger log per CPU, or a MAGNeT file (of magnet).")
@click.option("--schema", "schemata", multiple=True, metavar="NAME|FOLDER",
              help="What to record: a shipped schema (tcp, magnet, network, sched, locking, "
              "syscall, disk, paging, tty, sampler, user, stopwatch) or your own; also several. "
              "Default: tcp.")
@click.option("--using", multiple=True, metavar="LEVEL",
              help="Use this log level of a schema instead of its default.")
@click.option("--data", is_flag=True,
              help="Record what a schema has for this option too (magnet: TCP's state, IP header).")
@click.option("--limit", "limits", multiple=True, metavar="EVENT=N",
              help="Record at most N of this event a second and CPU.")
@click.option("--control-group", metavar="NAME",
              help="A group whose members may control the capture (tcpkmon status, ...).")
@click.option("--latency", is_flag=True,
              help="At the end print where the time of each byte went, as tcpkmon latency does. "
              "Without --schema: that of magnet with its log level driver.")
@click.option("--why", is_flag=True,
              help="At the end print what limited each connection, as tcpkmon why does.")
@click.option("--requests", is_flag=True,
              help="Record what tcpkmon requests needs for exact times: the calls of both ends and "
              "their processes. Short for --locations default,SEND_CALL,RECEIVE_CALL --columns "
              "default,pid,comm,netns,seg_ack, which more of both adds to.")
@click.option("--metrics", is_flag=True,
              help="Count for tcpkmon metrics from the start, not from its first question on.")
@click.option("--top", is_flag=True,
              help="Show the connections, as tcpkmon top does; q ends the capture. Says no more.")
@click.option("--reconcile", is_flag=True,
              help="Compare the last records with the kernel's sockets: start, rotations, end.")
@click.option("--fail-on-loss", is_flag=True, help="Exit with 3 if a record was lost.")
@click.option("--no-existing", is_flag=True, help="Omit connections that are open at the start.")
@click.option("--as-root", is_flag=True, help="Run COMMAND as root even under sudo.")
@click.option("--ready-fd", type=int, metavar="N",
              help="Write a byte to this descriptor when attached.")
@rotation_options
@recorder_options
@budget_options
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.option("-v", "--verbose", is_flag=True,
              help="Print the kind of rings, and how each location is attached.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    ports: str | None,
    local_ports: str | None,
    remote_ports: str | None,
    pair: tuple[str, ...],
    addr: tuple[str, ...],
    only4: bool,
    only6: bool,
    netns: tuple[str, ...],
    cgroup: tuple[str, ...],
    pid: tuple[int, ...],
    follow: bool,
    syscalls: str | None,
    output: str | None,
    duration: str | None,
    when_changed: str | None,
    buffer_size: float,
    low_water: int,
    file_format: str,
    schemata: tuple[str, ...],
    limits: tuple[str, ...],
    no_existing: bool,
    latency: bool,
    why: bool,
    requests: bool,
    top: bool,
    **same: Any,
) -> int:
    """Capture snapshots of TCP connections from the running kernel.

    With COMMAND: attach, run it, stop when it ends, and return its exit code.

    \b
    collect --ports 5001 -o transfer.pm --duration 10s
    collect --ports 5201 -o run.pm -- iperf3 -c 192.0.2.1
    """
    if latency and not schemata:
        schemata, same["using"] = ("magnet",), same["using"] or ("driver",)
    if schemata and schemata != ("tcp",) and not _was_given("file_format"):
        file_format = next(one.name for one in FORMATS if one.schema is None)
    if not schemata:
        schemata = (FILE_FORMATS[file_format].schema or "tcp",)
    from collector.plan.filters import parse
    from collector.plan.request import Request

    if only4 and only6:
        raise UsageError("-4 and -6 together leave nothing to record")
    if requests:
        for key, more in _OF_REQUESTS.items():
            same[key] = f"{same[key] or 'default'},{more}"
    filters = parse(
        ports=ports,
        local_ports=local_ports,
        remote_ports=remote_ports,
        pairs=pair,
        addresses=addr,
        family=4 if only4 else 6 if only6 else 0,
        namespaces=netns,
        cgroups=cgroup,
        pids=pid,
        follow=follow,
        syscalls=syscalls,
    )
    rotation = take_rotation(same, parse_duration)
    recorder = take_recorder(same, parse_duration)
    budget = take_budget(same, parse_duration)
    if output is None:
        is_folder = rotation is not None or recorder is not None
        output = default_name(FILE_FORMATS[file_format], is_folder=is_folder)
    request = Request(
        filters=filters,
        output=output,
        rotation=rotation,
        recorder=recorder,
        budget=budget,
        duration_s=parse_duration(duration) if duration else None,
        when_changed=tuple(n.strip() for n in (when_changed or "").split(",") if n.strip()),
        buffer_bytes=parse_megabytes(buffer_size),
        low_water_percent=low_water,
        existing=not no_existing,
        arguments=tuple(sys.argv[1:]),
        schemata=tuple(dict.fromkeys(schemata)),
        file_format=file_format,
        limits=tuple(parse_limit(text) for text in limits),
        **same,  # the options that Request takes as they are, by the same names
    )
    if top:
        from collector.commands.top import run_beside

        return run_beside(request, run)
    return run_and_report(request, latency, why) if latency or why else run(request)


def run_and_report(request: Request, latency: bool, why: bool) -> int:
    """run(), then what reads what was captured: tcpkmon latency, tcpkmon why.

    UsageError where those cannot read it.
    """
    from collector.commands.afterwards import Afterwards
    from formats.commands import latency as latency_command
    from formats.commands import why as why_command

    chosen = []
    if latency:
        if "magnet" not in request.schemata or request.file_format != "klogger":
            raise UsageError(
                "--latency needs logs of schema magnet", "leave out --schema and --format"
            )
        chosen.append(latency_command.command)
    if why:
        if "tcp" not in request.schemata:
            raise UsageError("--why needs the schema tcp", "add --schema tcp, or leave it out")
        chosen.append(why_command.command)
    if request.output == "-":
        wanted = "--latency" if latency else "--why"
        raise UsageError(f"{wanted} reads what was captured", "name it: -o NAME")
    name = Path(sys.argv[0]).name

    def report() -> int:
        return max(run_command(command, [request.output], name) for command in chosen)

    unneeded = [] if request.ready_fd is None else [request.ready_fd]
    with Afterwards(report, unneeded) as reporting:
        code = run(request)
        reporting.run()
    return code


def run(request: Request) -> int:
    """collector.session.session.run(), imported only here: it is slow."""
    from collector.session import session

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
    import collector.session.session  # noqa: F401

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
