# SPDX-License-Identifier: Apache-2.0
"""The request for a capture: the command line makes it, the session reads it."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, replace
from typing import TextIO

from collector.plan.budget import Budget
from collector.plan.filters import Filters, Flag
from collector.plan.recorder import Recorder, check_recorder
from collector.plan.rotation import Rotation, check_rotation
from collector.plan.trigger_values import columns_for
from formats.base.errors import UsageError
from formats.registry import FILE_FORMATS, FileFormat


@dataclass(frozen=True)
class Request:
    """The options and arguments of the command line."""

    filters: Filters
    output: str
    force: bool = False
    duration_s: float | None = None
    stop_after: int | None = None
    columns: str = "default"
    locations: str | None = None
    when_changed: tuple[str, ...] = ()
    buffer_bytes: int = 4 << 20
    low_water_percent: int = 75
    show: bool = False
    fail_on_loss: bool = False
    existing: bool = True
    as_root: bool = False
    ready_fd: int | None = None
    quiet: bool = False
    verbose: bool = False
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = None
    schemata: tuple[str, ...] = ("tcp",)
    file_format: str = "psc"
    limits: tuple[tuple[str, int], ...] = ()
    """Events, and how many records of each a CPU makes in a second at most."""
    using: tuple[str, ...] = ()
    data: bool = False
    """With the fields that have the tag @data."""
    rings: str | None = None
    """The ring transport; None: the first that this kernel has."""
    control_group: str | None = None
    rotation: Rotation | None = None
    """The output is a folder of files; None: one file."""
    reconcile: bool = False
    """Compare the last records with the kernel's sockets: at the start, rotations and the end."""
    metrics: bool = False
    """Count for the metrics from the start, not from the first question on."""
    name: str | None = None
    """Of a capture of the daemon."""
    recorder: Recorder | None = None
    """The output is a folder of dumps."""
    budget: Budget | None = None
    """What it may cost; None: there is no limit."""

    def following(self, pid: int) -> Request:
        """The same with the process of the command, for --follow."""
        return replace(self, filters=self.filters.following(pid))

    @property
    def stored_columns(self) -> str:
        """The columns, with what the recorder's triggers need."""
        if self.recorder is None or self.file_format != "psc":
            return self.columns
        return columns_for(self.columns, self.recorder.triggers)

    @property
    def format(self) -> FileFormat:
        """The format of the file."""
        return FILE_FORMATS[self.file_format]

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
        return self.file_format == "psc" or (self.reconcile and self.has_tcp)

    @property
    def has_tcp(self) -> bool:
        """Whether the capture has the schema tcp."""
        return "tcp" in self.schemata


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
    if request.rotation is not None:
        check_rotation(request.rotation)
        if request.output == "-":
            raise UsageError("standard output has no next file", "name a folder: -o FOLDER")
        if request.rotation.archive and request.format.is_folder:
            raise UsageError("--archive is for captures in one file", "leave it out for a log")
        if request.rotation.archive == "parquet" and request.file_format != "psc":
            raise UsageError("--archive parquet is for PSC files", "--archive zst")
    if request.recorder is not None:
        check_recorder(request.recorder)
        if request.rotation is not None:
            raise UsageError("--record-last writes a file for each dump: it does not rotate")
        if request.output == "-":
            raise UsageError("each dump is a file of its own", "name a folder: -o FOLDER")
    only = request.format.schema
    if only is not None and request.schemata != (only,):
        what = f"{request.format.title} holds the schema {only} alone"
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
    if request.reconcile and request.file_format == "magnet":
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
    by_process = Flag.PID in request.filters.flags
    if request.reconcile and (by_process or request.when_changed or request.recorder):
        others = "--pid, --follow, --when-changed or --record-last"
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
