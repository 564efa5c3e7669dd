# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: which captures the arguments name, and what is read of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.formats.analysis.diff.settings import read_settings
from tcpkmon.formats.analysis.diff.units import Flows, choose_connections, read_flows
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.snapshots import Source
from tcpkmon.formats.analysis.why.tables import connections
from tcpkmon.formats.base.errors import DamagedError, Errors, UsageError
from tcpkmon.formats.conditions import Value
from tcpkmon.formats.klogger.logs import LOG_NAME, Logs
from tcpkmon.formats.registry import format_of, kind_of

_ENDINGS = (".pm", ".pm.zst")
_TRY = "tcpkmon diff before.pm after.pm, or tcpkmon diff before=a1.pm,a2.pm after=b1.pm,b2.pm"


@dataclass(frozen=True)
class Run:
    """One capture. connections: those that count, None in a log without the schema tcp.

    flows: of the schema magnet, None without it. settings: what its header tells, by name.
    other_ends: receivers that were chosen though their senders, which would count, were not.
    """

    path: Path
    proven: bool
    verdict: str
    settings: dict[str, str]
    connections: Table | None
    flows: Flows | None
    other_ends: int = 0


@dataclass(frozen=True)
class Side:
    """A side: one capture or several."""

    name: str
    runs: tuple[Run, ...]


def parse_sides(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """The captures of two sides by name, from [NAME=]CAPTURE[,...]. UsageError, SeveralErrors.

    Arguments of one name are one side. Without a name it is that of the file.
    """
    named: dict[str, list[Path]] = {}
    errors = Errors()
    for text in arguments:
        name, given, rest = text.partition("=")
        is_named = given and not _exists(text)
        rest = rest if is_named else text
        paths = [rest] if _exists(rest) else [part for part in rest.split(",") if part]
        side = named.setdefault(f"{name}=" if is_named else text, [])
        with errors.caught():
            if not paths or (is_named and not name):
                raise UsageError(f"{text!r} names no capture", _TRY)
            for path in paths:
                with errors.caught():
                    side.extend(_captures(Path(path)))
    captures = {path: os.path.realpath(path) for side in named.values() for path in side}
    counts = Counter(os.path.realpath(path) for side in named.values() for path in side)
    twice = [str(path) for path, real in captures.items() if counts[real] > 1]
    with errors.caught():
        if twice:
            raise UsageError(f"named twice: {', '.join(twice)}", "a capture counts once")
    with errors.caught():
        if len(named) != 2:
            raise UsageError(f"a comparison has two sides, and here are {len(named)}", _TRY)
    errors.raise_all()
    short = [name[:-1] if name.endswith("=") else Path(name).name or name for name in named]
    names = short if short[0] != short[1] else list(named)
    return dict(zip(names, named.values(), strict=True))


def parse_folder(paths: Sequence[Path]) -> list[Path]:
    """The captures of one side: files, logs, and what is in folders of them. SeveralErrors."""
    errors, found = Errors(), []
    for path in paths:
        with errors.caught():
            found += _captures(path)
    errors.raise_all()
    return found


def verify(path: Path) -> tuple[bool, str]:
    """Whether a capture proves that nothing is missing, and what it says."""
    reports = format_of(path).verify(path)
    told = "; ".join(report.verdict for report in reports if report.exit_code)
    return bool(reports) and not told, told or "nothing lost"


def read_run(path: Path, where: Value | None = None) -> Run:
    """What a capture has. where: chooses connections. Errors as Source has them."""
    if kind_of(path) == "magnet":
        raise UsageError(
            f"{path} is a MAGNeT file, which does not name the ends of its connections",
            "compare logs: collect --schema magnet --format klogger",
        )
    proven, verdict = verify(path)
    table, flows, other_ends = None, None, 0
    with format_of(path).open(path) as reader:
        settings = read_settings(reader) | {"format": kind_of(path)}
        if isinstance(reader, Logs) and (found := read_flows(path)) is not None:
            flows, settings["latency from"] = found
    try:
        with Source(path) as source:
            table, other_ends = choose_connections(connections(source), where)
    except UsageError:
        if flows is None:
            raise
    if table is not None:
        names = {str(name) for name in table["ca_name"].tolist() if name is not None}
        if names:
            settings["congestion control"] = ", ".join(sorted(names))
    return Run(path, proven, verdict, settings, table, flows, other_ends)


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def _captures(path: Path) -> list[Path]:
    """The capture, or those in a folder that is none itself."""
    if not path.is_dir() or _is_capture(path):
        return [path]
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    found = [
        one for one in inside
        if (_is_capture(one) if one.is_dir() else one.name.endswith(_ENDINGS))
    ]  # fmt: skip
    if not found:
        raise UsageError(f"no capture in {path}", "a folder holds *.pm files or folders of logs")
    return found


def _is_capture(folder: Path) -> bool:
    """Segments, or a Klogger log."""
    return format_of(folder).name != "klogger" or any(
        LOG_NAME.match(one.name) for one in folder.iterdir()
    )


def refuse_unproven(runs: Sequence[Run]) -> None:
    """DamagedError if a capture does not prove that nothing is missing."""
    bad = [f"{run.path}: {run.verdict}" for run in runs if not run.proven]
    if bad:
        raise DamagedError(f"not proven: {'; '.join(bad)}", "--unproven-ok compares all the same")
