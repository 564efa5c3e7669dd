# SPDX-License-Identifier: Apache-2.0
"""All logs of one capture, a file for each CPU: each alone, then what only all can tell."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.base.limits import MOST_PROBLEMS
from tcpkmon.formats.base.reconciled import WORDS as RECONCILED_WORDS
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.klogger.logs import LOG_NAME, PREFIX, find_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.verify.klogger.check import verify_log
from tcpkmon.formats.verify.klogger.events import WORDS
from tcpkmon.formats.verify.report import Problem, Report
from tcpkmon.formats.verify.segment import UNKNOWN, Part
from tcpkmon.formats.verify.window import evicted_words

_SAME = ("schema", "host", "kernel", "settings", "events")


def verify_logs(path: str | os.PathLike[str]) -> list[Report]:
    """The report of a log, or those of a folder of logs. Raises FileError."""
    return verify_folder(path) if os.path.isdir(path) else [verify_log(path)]


def verify_folder(folder: str | os.PathLike[str]) -> list[Report]:
    """The report of each log in a folder, and last that of all together. Raises FileError."""
    paths = find_logs(folder)
    reports = []
    for path in paths:
        try:
            reports.append(verify_log(path))
        except FileError as error:
            error_exit = error.exit_code
            reports.append(Report(str(path), error=error.message, error_exit=error_exit))
    return [*reports, _join(str(folder), paths, reports)]


def _join(folder: str, paths: Sequence[Path], reports: Sequence[Report]) -> Report:
    whole = Report(folder, ledger=all(one.ledger for one in reports), format="klogger", words=WORDS)
    for one in reports:
        whole.add(one, per_cpu=False)
        whole.ring_lost += one.ring_lost
        whole.after_checkpoint += one.after_checkpoint
        whole.problems_total += one.problems_total
    whole.clock_steps = max(one.clock_steps for one in reports)
    whole.proven_end = all(one.proven_end for one in reports)
    reasons = {one.end_reason for one in reports}
    whole.end_reason = reasons.pop() if len(reasons) == 1 else None
    whole.notes.append(f"{len(reports)} log(s), one for each CPU")
    for one in reports:
        if one.error is not None:
            _add(whole, f"{one.path}: {one.error}")
        elif one.problems_total:
            whole.notes.append(f"{one.path} does not add up: see above")
    if len({reason for reason in reasons if reason}) > 1:
        _add(whole, "the logs say that the capture ended for different reasons")
    _compare(whole, paths)
    whole.part = _join_parts(reports)
    _join_windows(whole, reports)
    told = [note for one in reports for note in one.notes]
    whole.notes += [note for note in told if note.startswith(RECONCILED_WORDS)]
    whole.notes += whole.about_unseen(told)
    for one in reports:  # the time is in one of the logs
        one.details |= whole.details
    return whole


def _compare(whole: Report, paths: Sequence[Path]) -> None:
    """The headers are of one capture, and each file is that of the CPU in its name."""
    first: Mapping[str, Any] | None = None
    told_programs = False
    for path in paths:
        try:
            with LogReader(path) as reader:
                header, cpu = reader.header, reader.cpu
                program = reader.format.find_event("PROGRAM_LEDGER")
                if program is None or program.number in reader.present():
                    told_programs = True
        except (DamagedError, FileError):
            continue
        match = LOG_NAME.match(path.name)
        if match is not None and int(match[1]) != cpu:
            _add(whole, f"{path.name} is the log of CPU {cpu}")
        first = header if first is None else first
        for key in _SAME:
            if header.get(key) != first.get(key):
                _add(whole, f"{path.name} is of another capture: its {key} is another")
    if first is not None and not told_programs and whole.proven_end:
        _add(whole, "no log tells what the programs missed: the lowest CPU's log is not there")
    if first is not None:
        _count(whole, first.get("settings"), paths)


def _count(whole: Report, settings: object, paths: Sequence[Path]) -> None:
    """No log is missing of those that were begun together, as the headers say."""
    cpus = setting(settings, "logs")
    if not isinstance(cpus, list):
        whole.unchecked.append("whether a CPU's log is missing (the headers do not say)")
        return
    names = {path.name for path in paths}
    for name in [f"{PREFIX}{cpu}" for cpu in cpus[:MOST_PROBLEMS] if type(cpu) is int]:
        if name not in names:
            _add(whole, f"{name} is missing")


def _add(whole: Report, what: str) -> None:
    whole.problems.append(Problem(0, -1, what))
    whole.problems_total += 1


def _join_parts(reports: Sequence[Report]) -> Part | None:
    """The segment whose logs have these reports; None where they are none."""
    parts = [one.part for one in reports if one.part is not None]
    if not parts:
        return None
    previous = parts[0].previous
    serials = dict(previous.serials) if previous is not None else {}
    for part in parts:
        serials |= part.serials
    unsure = any(part.unsure for part in parts)
    return replace(
        parts[0],
        entries=sum(part.entries for part in parts) + (previous.entries if previous else 0),
        last_seq=UNKNOWN if unsure else sum(serials.values()),
        goes_on=all(part.goes_on for part in parts),
        unsure=unsure,
        serials=serials,
        first="".join(part.first for part in parts),
        last="".join(part.last for part in parts),
    )


def _join_windows(whole: Report, reports: Sequence[Report]) -> None:
    """What all logs of a dump hold."""
    lines = list(dict.fromkeys(line for one in reports for line in one.window))
    spans = [line for line in lines if line.startswith(("complete from", "not complete from"))]
    worst = next((line for line in spans if line.startswith("not")), spans[0] if spans else "")
    whole.evicted = sum(one.evicted for one in reports)
    if worst:
        evicted = f"{worst}; {evicted_words(whole.evicted)}"
        whole.window = [evicted, *(line for line in lines if line not in spans)]
