# SPDX-License-Identifier: Apache-2.0
"""The request for a capture: the command line makes it, the session reads it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TextIO

from tcpkmon.collector.plan.budget import Budget
from tcpkmon.collector.plan.filters import Filters, Flag
from tcpkmon.collector.plan.options import (
    FLAG,
    JOINED,
    LIMIT_TIME,
    LIMITS,
    NAMES,
    PATH,
    RING_SIZE,
    TEXT,
    UNSET,
    WORDS,
    choice,
    fields_of,
    group,
    number,
    option,
)
from tcpkmon.collector.plan.recorder import Recorder, columns_for
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.registry import FILE_FORMATS, FileFormat

FORMATS = (*STREAMS, "magnet")
"""The first is the default. A MAGNeT file is made of a log, when the capture ends."""
_OF_REQUESTS = {"locations": "SEND_CALL,RECEIVE_CALL", "columns": "pid,comm,netns,seg_ack"}
"""What --requests adds."""


@dataclass(frozen=True)
class Request:
    """What is asked of a capture: each option is declared here, or in the class of its group."""

    # fmt: off
    filters: Filters = group(Filters, is_table=False)
    output: str = option("-o, --output FILE", PATH, "File to write; - is stdout.", True)
    force: bool = option("--force", FLAG, "Replace an existing file.")
    duration_s: float | None = option(
        "--duration TIME", LIMIT_TIME, "Stop after this time: 10s, 2m.")
    stop_after: int | None = option(
        "--stop-after N", number(1), "Stop after N records; those still in the rings are kept.")
    columns: str = option(
        "--columns SET|NAME,...", JOINED, "classic, default, full, all, or names: the columns to "
        "read in the kernel and store.", True, default="default", shown=True)
    locations: str | None = option(
        "--locations NAME,...", JOINED, "Events: default, all, NAME or -NAME. The default has no "
        "calls of the application (SEND_CALL, RECEIVE_CALL), and no RCV_SPACE_ADJUST, which comes "
        "with each call.", True)
    when_changed: tuple[str, ...] = option(
        "--when-changed COL,...", WORDS,
        "Record a segment only when one of these columns changed for its connection.", True)
    buffer_bytes: int = option(
        "--buffer-size MB", RING_SIZE, "Ring size of each CPU.", True,
        default=4 << 20, shown=4.0)
    low_water_percent: int = option(
        "--low-water PCT", number(1, 99), "Wake up when less than this share of a ring is free, "
        "or half while records come slowly.", True, default=75, shown=True)
    rings: str | None = option(
        "--rings bpf|perf", choice("bpf", "perf", checked=False), "The kind of ring buffers. "
        "Default: bpf; perf where the kernel refuses bpf.", True, default=None)
    show: bool = option("--print", FLAG, "Print each record on stdout too.")
    file_format: str = option(
        "--format", choice(*FORMATS), "A PSC file, a folder with a Klogger log per CPU, or a "
        "MAGNeT file (of magnet).", True, default=FORMATS[0], shown=True)
    schemata: tuple[str, ...] = option(
        "--schema NAME|FOLDER", NAMES, "What to record: a shipped schema (tcp, magnet, network, "
        "sched, locking, syscall, disk, paging, tty, sampler, user, preempt, stopwatch) or your "
        "own; also several. Default: tcp.", "schemata", default=("tcp",))
    using: tuple[str, ...] = option(
        "--using LEVEL", NAMES, "Use this log level of a schema instead of its default.", True)
    data: bool = option(
        "--data", FLAG,
        "Record what a schema has for this option too (magnet: TCP's state, IP header).", True)
    connections: int = option(
        "--connections N", number(1, 1 << 24), "So many connections have an identity at a time, "
        "152 bytes of kernel memory each; records of more are lost, and counted. Above the default "
        "also how many top, metrics and rotation remember.", True, default=1 << 17, shown=True)
    limits: tuple[tuple[str, int], ...] = option(
        "--limit EVENT=N", LIMITS, "Record at most N of this event a second and CPU.", "limits",
        live=True)
    control_group: str | None = option(
        "--control-group NAME", TEXT,
        "A group whose members may control the capture (tcpkmon status, ...).")
    latency: bool = option(
        "--latency", FLAG, "At the end print where the time of each byte went, as tcpkmon latency "
        "does. Without --schema: that of magnet with its log level driver.")
    why: bool = option(
        "--why", FLAG, "At the end print what limited each connection, as tcpkmon why does.")
    requests: bool = option(
        "--requests", FLAG, "Record what tcpkmon requests needs for exact times: the calls of both "
        "ends and their processes. Short for --locations default,SEND_CALL,RECEIVE_CALL --columns "
        "default,pid,comm,netns,seg_ack, which more of both adds to.", True)
    metrics: bool = option(
        "--metrics", FLAG,
        "Count for tcpkmon metrics from the start, not from its first question on.")
    top: bool = option(
        "--top", FLAG,
        "Show the connections, as tcpkmon top does; q ends the capture. Says no more.")
    reconcile: bool = option(
        "--reconcile", FLAG,
        "Compare the last records with the kernel's sockets: start, rotations, end.", True)
    fail_on_loss: bool = option("--fail-on-loss", FLAG, "Exit with 3 if a record was lost.")
    existing: bool = option(
        "--no-existing", UNSET, "Omit connections that are open at the start.", "existing")
    as_root: bool = option("--as-root", FLAG, "Run COMMAND as root even under sudo.")
    ready_fd: int | None = option(
        "--ready-fd N", number(0, checked=False), "Write a byte to this descriptor when attached.")
    rotation: Rotation | None = group(Rotation)
    """The output is a folder of files; None: one file."""
    recorder: Recorder | None = group(Recorder)
    """The output is a folder of dumps."""
    budget: Budget | None = group(Budget)
    """What it may cost; None: there is no limit."""
    quiet: bool = option("-q, --quiet", FLAG, "No progress, no summary.")
    verbose: bool = option(
        "-v, --verbose", FLAG,
        "Print the kind of rings, and how each location is attached.")
    # fmt: on
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = None
    name: str | None = None
    """Of a capture of the daemon."""
    needs: tuple[str, ...] = ()
    """Fields that each event must have."""

    def following(self, pid: int) -> Request:
        """The same with the process of the command, for --follow."""
        return replace(self, filters=self.filters.following(pid))

    @property
    def stored_columns(self) -> str:
        """The columns, with what the recorder's triggers need."""
        if self.recorder is None or not self.format.has_entries:
            return self.columns
        return columns_for(self.columns, self.recorder.triggers)

    @property
    def format(self) -> FileFormat:
        """The format of the file."""
        return FILE_FORMATS[self.file_format]

    @property
    def identities(self) -> int:
        """How many connections may have an identity: to be compared, those that come and go too."""
        return max(self.connections, 1 << 18 if self.reconcile else 0)

    @property
    def remembered(self) -> int | None:
        """How many connections the collector's own tables hold; None: their defaults."""
        return self.connections if self.connections > 1 << 17 else None

    @property
    def rotates(self) -> bool:
        """Whether the output is a folder of files that follow one another."""
        return self.rotation is not None

    @property
    def counts_at_once(self) -> bool:
        """Whether the records are counted from the start."""
        return self.metrics or self.reconcile

    @property
    def orders_tcp(self) -> bool:
        """Whether the collector looks at the records of the schema tcp in one order of all CPUs."""
        return self.format.has_entries or (self.reconcile and self.has_tcp)

    @property
    def has_tcp(self) -> bool:
        """Whether the capture has the schema tcp."""
        return "tcp" in self.schemata


def make_request(filters: Filters, given: Mapping[str, Any]) -> Request:
    """Of the values of those options that were given, by field, and what else Request has.

    UsageError where one of them cannot be.
    """
    made = fields_of(Request, given)
    if made.get("latency") and "schemata" not in made:
        made |= {"schemata": ("magnet",), "using": made.get("using") or ("driver",)}
    for name, more in _OF_REQUESTS.items() if made.get("requests") else ():
        made[name] = f"{made.get(name) or 'default'},{more}"
    if filters.by_name:
        made["columns"] = f"{made.get('columns') or 'default'},cgroup"
    only = FILE_FORMATS[made.get("file_format", FORMATS[0])].schema
    schemata = made.setdefault("schemata", (only or "tcp",))
    made["schemata"], of_tcp = _look_into(schemata)
    if not of_tcp:
        made.setdefault("file_format", next(n for n in FORMATS if FILE_FORMATS[n].schema is None))
    return Request(filters, **made)


def _look_into(schemata: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """The schemata, with tcp where one extends it; whether they are tcp and what extends it.

    What is wrong with them is told later.
    """
    if schemata == ("tcp",):
        return schemata, True
    from tcpkmon.collector.plan.extension import add_tcp, extends_only

    try:
        return add_tcp(schemata), extends_only(schemata)
    except TcpkmonError:
        return schemata, False


def check_request(request: Request) -> None:
    """Raises UsageError for options that contradict each other or do not fit this process."""
    if request.show and request.output == "-":
        raise UsageError("--print and -o - both want standard output", "choose one of them")
    if request.show and not request.format.can_print:
        raise UsageError("--print shows the records of a PSC file", "tcpkmon decode shows a log")
    stdout: TextIO | None = sys.stdout
    if request.show and stdout is None:
        raise UsageError("--print: standard output is closed")
    if request.output == "-" and _is_one_file(1, 2):
        raise UsageError(
            "standard output and standard error are one file: messages would get into the capture",
            "redirect one of them",
        )
    is_magnet = request.file_format == "magnet"
    if is_magnet and (request.rotation or request.recorder or request.output == "-"):
        raise UsageError(
            "a MAGNeT file is made when the capture ends: no --rotate-..., --record-last or -o -",
            "capture with --format klogger, then tcpkmon export --format magnet",
        )
    for part in (request.rotation, request.recorder, request.budget):
        if part is not None:
            part.check()
    if request.rotation is not None:
        if request.output == "-":
            raise UsageError("standard output has no next file", "name a folder: -o FOLDER")
        if request.rotation.archive and request.file_format != "psc":
            what = "--archive is for PSC files"
            raise UsageError(what, f"leave it out for {request.format.title}")
        if request.rotation.dataset and request.file_format != "psc":
            raise UsageError("--dataset is for PSC files", "leave it out, or --format psc")
    if request.recorder is not None:
        if request.rotation is not None:
            raise UsageError("--record-last writes a file for each dump: it does not rotate")
        if request.output == "-":
            raise UsageError("each dump is a file of its own", "name a folder: -o FOLDER")
    only, takes_own = request.format.schema, is_magnet
    if only is not None and request.schemata != (only,):
        from tcpkmon.collector.plan.extension import extends_only
        from tcpkmon.collector.plan.schema_sources import shipped_names

        beside = {*request.schemata} & {*shipped_names()} - {only}
        if beside or not (takes_own or extends_only(request.schemata)):
            own = " and a user's own" if takes_own else " and what extends it"
            what = f"{request.format.title} holds the schema {only}{own}"
            raise UsageError(what, "add --format klogger")
    if request.using and not request.format.holds_events:
        raise UsageError("--using chooses among the log levels of a schema", "name one: --schema")
    if request.data and not request.format.holds_events:
        raise UsageError("--data is for schemata other than tcp", "name one: --schema")
    if request.filters.follow and not request.command:
        raise UsageError(
            "--follow is for a command", "collect --follow -- COMMAND, or --pid N of a process"
        )
    if request.filters.syscalls and "syscall" not in request.schemata:
        raise UsageError("--syscalls is for the schema syscall", "add --schema syscall")
    if request.reconcile and is_magnet:
        raise UsageError(
            "--reconcile: the kernel tells a connection's state, bytes_acked, bytes_received and "
            "total_retrans; the schema magnet has none of them, and no event of one at rest",
            "add --schema tcp --format klogger, or leave out --reconcile",
        )
    if request.reconcile and not request.has_tcp:
        what = "--reconcile compares the last records of the schema tcp, which is not captured"
        raise UsageError(what, "add --schema tcp")
    if request.reconcile and not request.existing:
        what = "--reconcile compares with the open connections"
        raise UsageError(what, "leave out --no-existing")
    chosen = Flag.PID in request.filters.flags or request.filters.by_name
    if request.reconcile and (chosen or request.when_changed or request.recorder):
        others = "--pid, --follow, --unit, --container, --pod, --when-changed or --record-last"
        raise UsageError(f"--reconcile: not with {others}", "leave one of them out")
    if request.ready_fd is not None:
        try:
            os.fstat(request.ready_fd)
        except (OSError, OverflowError):
            raise UsageError(f"--ready-fd {request.ready_fd}: no such descriptor is open") from None


def _is_one_file(one: int, other: int) -> bool:
    """Whether two descriptors write into the same file or pipe."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False  # one is closed
    return os.path.samestat(first, second) and not stat.S_ISCHR(first.st_mode)
