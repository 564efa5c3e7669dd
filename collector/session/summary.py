# SPDX-License-Identifier: Apache-2.0
"""What collect prints on stderr before and after a capture, and the error that it ends with."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.plan.cgroups import walk_cgroups
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session.status_line import describe_losses
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.ledger import Totals
from tcpkmon.formats.base.causes import KERNEL_CAUSES
from tcpkmon.formats.base.cli import say as say_line
from tcpkmon.formats.base.errors import FileError, LossError, TcpkmonError
from tcpkmon.formats.base.group_names import MOST_GROUPS
from tcpkmon.formats.base.text import counted, human_bytes, some_of, were_lost

NOT_THERE = "in files that are not there"
"""A cause of losses that no ledger has."""

_LISTEN = "0A"
_MOST_SOCKETS = 20_000
_MOST_PORTS = 8


def say(text: str) -> None:
    """Print a line on stderr, escaped for a terminal."""
    say_line(f"collect: {text}")


def describe(request: Request, prepared: Prepared, kernel: Kernel) -> None:
    """With -v, print the kind of rings and how each location is attached.

    Always print which requested location is missing, what the kernel refused, where losses are not
    counted, and which unit is not there.
    """
    if request.quiet:
        return
    if request.verbose:
        say(f"{prepared.transport.name} rings")
        for name, how in kernel.attached().items():
            say(f"{name} by {how}")
        if prepared.plan.unseen:
            say(prepared.plan.unseen)
    asked = {*(request.locations or "").upper().split(","), *kernel.refused()}
    for name, why in kernel.missing().items():
        if request.verbose or name in asked:
            say(f"{name} is not recorded: {why}")
    for name, way in prepared.plan.unproven.items():
        say(f"{name} by {way} may lose events that this kernel does not count")
    for text in request.filters.absent_units(path for _, path in walk_cgroups(MOST_GROUPS)):
        say(text)


def _ports_in_use() -> str:
    """The ports of this namespace's connections, those of the most first; of each the lower one."""
    counts: Counter[int] = Counter()
    for name in ("tcp", "tcp6"):
        with suppress(OSError), Path(f"/proc/net/{name}").open(encoding="ascii") as lines:
            for line in itertools.islice(lines, 1, _MOST_SOCKETS):
                local, remote, state = line.split()[1:4]
                if state != _LISTEN:
                    counts[min(int(end.rpartition(":")[2], 16) for end in (local, remote))] += 1
    ports = ", ".join(str(port) for port, _ in counts.most_common(_MOST_PORTS))
    return f"; connections that are open, or were just closed, have ports {ports}" if ports else ""


def report(
    request: Request,
    totals: Totals | None,
    stream: Stream,
    connections: int,
    refused: Mapping[str, str],
) -> None:
    """Print what was captured, and raise the error for the exit code.

    totals: None when the file could not be finished. refused: what the kernel refused a CPU, and
    why. FileError when the last write or the sync failed; LossError where the disk took records, a
    file is not under its name any more, and for any loss under --fail-on-loss.
    """
    written, gone = stream.written, stream.gone
    if totals is None:
        raise TcpkmonError(
            f"stopped in a hurry: {request.output} has no end record",
            "tcpkmon verify tells what is in it",
        )
    if not request.quiet:
        for what, why in refused.items():
            say(f"{what}: {why}")
        if written.refused:
            say(f"{written.refused:,} entries of the ledger, marks or the clock were not written")
        where = "standard output" if request.output == "-" else request.output
        of = f" of {counted(connections, 'socket')}" if request.has_tcp else ""
        size = human_bytes(stream.bytes_written())
        say(stream.describe_end() or f"{counted(totals.in_file, 'record')}{of} in {where} ({size})")
        limited = f"{totals.limited:,} over their limit, " if totals.limited else ""
        limited += f"{totals.shed:,} shed by the budget, " if totals.shed else ""
        say(
            f"{counted(totals.attempts, 'event')} seen, {totals.filtered:,} filtered, "
            f"{totals.unchanged:,} unchanged, {limited}{totals.written:,} recorded; "
            f"lost: {describe_losses({**totals.by_cause, NOT_THERE: sum(gone.values())})}"
        )
        if request.has_tcp and not totals.written and totals.filtered:
            say(f"nothing matched: {totals.filtered:,} events were of other connections"
                f"{_ports_in_use()}")  # fmt: skip
        if totals.ring_lost != totals.by_cause[KERNEL_CAUSES["ring_full"]]:
            say(f"the rings themselves count {totals.ring_lost:,} that found no room")
    error = written.error or written.sync_error
    if error is not None:
        raise FileError(
            f"{request.output}: {error.strerror}; the file holds what was written before",
            "tcpkmon verify tells what is missing",
        )
    if gone:
        names = some_of([str(Path(request.output, name)) for name in gone], 3)
        raise LossError(
            f"{names}: removed, moved or replaced while it was written; "
            f"{sum(gone.values()):,} records are not there",
            "nothing may rename or delete what a running capture writes",
        )
    if stream.disk_lost and not request.fail_on_loss:
        raise LossError(
            f"{were_lost(stream.disk_lost)} because they could not be written to "
            f"{request.output}: the disk was full, or writes failed",
            "make room on the disk; with --fail-on-loss the exit code tells of other losses too",
        )
    if request.fail_on_loss and totals.lost:
        raise LossError(
            f"{were_lost(totals.lost)}: {describe_losses(totals.by_cause)}",
            "a larger --buffer-size, fewer --columns or --when-changed help",
        )
