# SPDX-License-Identifier: Apache-2.0
"""Anonymises a file, a folder of logs, or that of a chain; verify says what it proves then."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tcpkmon.formats.anonymise.logs import anonymise_log
from tcpkmon.formats.anonymise.psc import anonymise_file, check_version
from tcpkmon.formats.anonymise.settings import LeftOut, plain, segment_name
from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.reconciled import is_difference
from tcpkmon.formats.base.segments import INDEX, find_segments, hidden, read_index
from tcpkmon.formats.klogger.logs import find_logs
from tcpkmon.formats.registry import SEGMENTS, format_of, kind_of
from tcpkmon.formats.verify import DOES_NOT_ADD_UP, Report

_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
_WRITERS: dict[str, Callable[[Path, IO[bytes], Who, LeftOut], None]] = {
    "psc": anonymise_file, "klogger": anonymise_log,
}  # fmt: skip
_LINE = ("time", "what", "name", "capture", "first", "number", "records", "lost", "bytes", "why")
"""What is kept of a line of an index."""


@dataclass
class Done:
    """What was made: what verify says of it, and what is not in it."""

    reports: list[Report] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def exit_code(self) -> int:
        """The worst of the reports."""
        return max((report.exit_code for report in self.reports), default=0)


def anonymise(path: Path, out: Path, who: Who) -> Done:
    """Write the capture at `path` anew to `out`, which is not there yet. What verify finds damaged
    is left out before, as repair does it, and counts as lost.

    Raises FileError, DamagedError; UsageError for what cannot be anonymised.
    """
    done = Done()
    if out.exists():
        raise FileError(f"{out} is there already", "name a new output file")
    found = format_of(path)
    if kind_of(path) == "magnet":
        what = f"{path} is a MAGNeT file, which is made of a log"
        raise UsageError(what, "anonymise the log, then export it: export --format magnet")
    if found is SEGMENTS:
        with _new_folder(out) as target:
            _chain(path, target, who, done.left_out)
    elif path.is_dir():
        with _new_folder(out) as target:
            _one(path, target, who, done.left_out)
    else:
        with _sound(path, out.parent, done.left_out) as sound:
            _file(found.name, sound, out, who, done.left_out)
    done.reports = list(format_of(out).verify(out))
    if done.exit_code == DOES_NOT_ADD_UP and done.exit_code > _judged(path):
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        raise TcpkmonError(f"{path} cannot be anonymised: the new one would not add up")
    return done


def _judged(path: Path) -> int:
    return max((report.exit_code for report in format_of(path).verify(path)), default=0)


def _one(path: Path, out: Path, who: Who, left_out: LeftOut) -> None:
    """A file, or a folder of logs; `out` is a folder that is there for these."""
    with _sound(path, out.parent, left_out) as sound:
        if not sound.is_dir():
            _file(format_of(sound).name, sound, out, who, left_out)
            return
        for log in find_logs(sound):
            _file("klogger", log, out / log.name, who, left_out)


def _file(kind: str, path: Path, out: Path, who: Who, left_out: LeftOut) -> None:
    with create_file(out, mode=_FILE_MODE, hint="name a new output file") as target:
        _WRITERS[kind](path, target, who, left_out)


@contextmanager
def _sound(path: Path, folder: Path, left_out: LeftOut) -> Iterator[Path]:
    """The capture, or a repaired copy of it."""
    found = format_of(path)
    if found.name == "psc":
        check_version(path)
    if not any(map(_is_damaged, found.verify(path))):
        yield path
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".anonymise-") as scratch:
        copy = Path(scratch, "repaired")
        summary, _ = found.repair(path, copy)
        left_out.repaired.append(f"{path.name}: {summary}")
        yield copy


def _is_damaged(report: Report) -> bool:
    """Not where only the kernel's sockets differ from the records."""
    told = [problem.what for problem in report.problems]
    is_sound = len(told) == report.problems_total and all(map(is_difference, told))
    return report.exit_code == DOES_NOT_ADD_UP and not (told and is_sound)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that gets its name when all is in it."""
    part = out.with_name(f".{out.name}.new")
    try:
        part.mkdir(mode=_FOLDER_MODE)
    except OSError as error:
        raise FileError(f"{out} cannot be written: {error.strerror}") from error
    try:
        yield part
        part.rename(out)
    except OSError as error:
        raise FileError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _chain(folder: Path, out: Path, who: Who, left_out: LeftOut) -> None:
    """All segments of a folder, under names without the host, and an index of them."""
    sizes: dict[str, int] = {}
    for segment in find_segments(folder):
        name = segment_name(who, segment.original)
        target = out / (name if segment.sealed else hidden(name))
        if target.exists():
            raise UsageError(f"{folder} has {segment.original} twice", "remove one of them")
        path = segment.path(folder)
        if path.is_dir():
            target.mkdir(mode=_FOLDER_MODE)
        _one(path, target, who, left_out)
        files = list(target.iterdir()) if target.is_dir() else [target]
        sizes[name] = sum(os.stat(one).st_size for one in files)
    lines, has_all = read_index(folder)
    if not has_all:
        left_out.key(INDEX)
    with open(out / INDEX, "w", encoding="utf-8") as index:
        for line in lines:
            if (made := _line(line, sizes, who)) is not None:
                index.write(json.dumps(made) + "\n")


def _line(line: dict[str, Any], sizes: dict[str, int], who: Who) -> dict[str, Any] | None:
    """A line of the new index; None for one of an archive, which is none any more."""
    name = line.get("name")
    if not isinstance(name, str) or line.get("what") not in ("sealed", "deleted", "repaired"):
        return None
    name = name.removesuffix(".zst")
    made = {key: plain(who, line[key]) for key in _LINE if key in line}
    made["name"] = segment_name(who, name)
    made["time"] = line.get("time") if isinstance(line.get("time"), str) else None
    if made["name"] in sizes:
        made["bytes"] = sizes[made["name"]]
    return made if made["name"] else None
