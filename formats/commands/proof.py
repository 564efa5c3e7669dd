# SPDX-License-Identifier: Apache-2.0
"""The exit code of a command that read captures: 0 only where nothing in them contradicts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import DamagedError, LossError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.reader import Told, exit_code_of
from tcpkmon.formats.registry import format_of

if TYPE_CHECKING:
    from tcpkmon.formats.analysis import Log
    from tcpkmon.formats.klogger.source import Source
    from tcpkmon.formats.verify import Report

    Known = Mapping[Path, Sequence[Report]]

_MOST_SHOWN = 10


def exit_code(name: str, read: Told, paths: Iterable[Path], known: Known | None = None) -> int:
    """That of the command `name`, which read these paths to their end: 5, 3 or 0.

    A reader counts what it sees missing. The captures' own ledgers and index are asked, too, as
    verify does, and what they say otherwise is printed: the code is that of verify. known: what
    verify says of them, if it was asked already. FileError.
    """
    return worst(name, exit_code_of(read), paths, known)


def worst(name: str, code: int, paths: Iterable[Path], known: Known | None = None) -> int:
    """The exit code of a command that itself counted losses (3), damage (5) or nothing (0), or that
    of verify, whichever is worse."""
    if code == DamagedError.exit_code:
        return code
    return max(code, contradicted(name, paths, worst_only=code != 0, known=known))


def contradicted(
    name: str, paths: Iterable[Path], worst_only: bool = False, known: Known | None = None
) -> int:
    """Print which of these captures do not add up or lack their end; returns the exit code.

    worst_only: losses and a missing end are none of the command's business.
    """
    code = 0
    for path in paths:
        reports = format_of(path).verify(path) if known is None else known[path]
        has_ledger = any(report.checkpoints or report.claimed for report in reports)
        for report in reports:
            is_wrong = report.error is not None or (has_ledger and bool(report.problems_total))
            lacks = report.tail_unknown or report.lost_total or report.ring_unexplained
            if is_wrong or (lacks and has_ledger and not worst_only):
                verdict = for_terminal(f"{report.path}: {report.verdict}")
                say(f"{name}: {verdict}; tcpkmon verify {for_terminal(str(path))} says more")
                code = max(code, report.exit_code)
    return code


def tell_problems(name: str, log: Log, paths: Iterable[Path]) -> int:
    """Print what is wrong with logs that were read to their end; returns the exit code."""
    for text in log.problems:
        say(f"{name}: {text}")
    return exit_code(name, log, paths)


def tell_missing(name: str, log: Source) -> int:
    """Print what is missing from a log that was read to its end; returns the exit code."""
    more = ["and more damage"] if len(log.problems) > _MOST_SHOWN else []
    losses = log.losses.describe()
    for text in (*log.problems[:_MOST_SHOWN], losses, log.tail, *more):
        if text:
            say(f"{name}: {log.path}: {text}")
    if log.problems:
        return DamagedError.exit_code
    return LossError.exit_code if losses or log.tail else 0
