# SPDX-License-Identifier: Apache-2.0
"""The file formats of records, one entry each. Commands ask here and name no format themselves.

An entry imports its format when it is used, so that importing this module is fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.files import read_head, table_error

if TYPE_CHECKING:
    from tcpkmon.formats.base.reader import Reader
    from tcpkmon.formats.klogger.source import Source
    from tcpkmon.formats.verify import Report

FilePath = str | os.PathLike[str]
_HEAD_BYTES = 64


@dataclass(frozen=True)
class FileFormat:
    """A format of files, or of folders of files, that hold records.

    sniff(path, head): whether a file that begins with the bytes `head` has this format; for a
    folder, `head` is empty. open: returns a reader of a file or folder, or of several segments of
    one capture; raises FileError, DamagedError, UsageError for files of several captures. verify:
    returns a report for each file, or one for a whole folder. repair(path, out): writes a new file,
    and returns what it did, as text, and the report of verify on the new file.

    title: what a file of it is, for people. shown_by: the command that shows its records.
    suffix: how the file names that collect chooses end; segment: how those of segments do.
    place_at: capture and number of a segment. is_folder: a capture is a folder with one
    file for each CPU, otherwise one file. schema: the one that it can hold; None: any.
    can_print: collect can print records (--print) while it writes them. has_entries: it holds the
    records of the schema tcp as entries of all CPUs in one order.
    """

    name: str
    sniff: Callable[[Path, bytes], bool]
    open: Callable[..., Reader]
    verify: Callable[[FilePath], list[Report]]
    repair: Callable[[FilePath, FilePath], tuple[str, Report]]
    title: str
    shown_by: str
    suffix: str = ""
    segment: str = ""
    place_at: Callable[[Path], tuple[str, int]] = lambda path: ("", 0)
    is_folder: bool = False
    schema: str | None = None
    can_print: bool = False
    has_entries: bool = False

    @property
    def holds_events(self) -> bool:
        """Whether it can hold the events of other schemata than tcp."""
        return self.schema != "tcp"


def format_of(path: FilePath) -> FileFormat:
    """The format of a file or folder, from its content and not from its name.

    A file that cannot be read has the last format, whose open() then raises the error.
    """
    head = b""
    try:
        if os.path.isfile(path):
            head = read_head(path, _HEAD_BYTES)
    except (OSError, ValueError, TcpkmonError):
        pass
    *others, last = FILE_FORMATS.values()
    return next((one for one in (SEGMENTS, *others) if one.sniff(Path(path), head)), last)


def _sniff_segments(path: Path, head: bytes) -> bool:
    from tcpkmon.formats.base.segments import find_segments

    try:
        return path.is_dir() and bool(find_segments(path))
    except OSError:
        return False


def _verify_segments(path: FilePath) -> list[Report]:
    from tcpkmon.formats.verify import verify_chain

    return verify_chain(path, lambda each: format_of(each).verify(each))


def _repair_segments(path: FilePath, out: FilePath) -> tuple[str, Report]:
    raise UsageError(f"{path} is a folder of segments", "repair the one that needs it")


def _sniff_klogger(path: Path, head: bytes) -> bool:
    from tcpkmon.formats.klogger.encode import MAGIC

    return head.startswith(MAGIC) or path.is_dir()


def _repair_magnet(path: FilePath, out: FilePath) -> tuple[str, Report]:
    raise UsageError(
        f"{path} is a MAGNeT file, which is made of a log", "repair the log, then export it"
    )


def _sniff_magnet(path: Path, head: bytes) -> bool:
    from tcpkmon.formats.magnet.control import MAGIC

    return head.startswith(MAGIC)


def _open_magnet(*paths: FilePath) -> Reader:
    from tcpkmon.formats.klogger.logs import Logs
    from tcpkmon.formats.magnet.reader import open_reader, open_segments

    first, *more = map(Path, paths)
    return Logs([open_segments(first, *more) if more or first.is_dir() else open_reader(first)])


def open_sources(*paths: FilePath) -> list[Source]:
    """The readers of files whose records are events: Klogger logs, MAGNeT files, their segments.

    Segments of one capture are read as one. Raises FileError, DamagedError.
    """
    from tcpkmon.formats.klogger import logs
    from tcpkmon.formats.magnet import reader

    found: dict[bool, list[Path]] = {True: [], False: []}
    for path in map(Path, paths):
        kind = kind_of(path)
        if kind == "psc" and path.is_dir():
            raise UsageError(f"{path} holds PSC files, which have no events", "tcpkmon export")
        found[kind == "magnet"].append(path)
    others = found[False]
    return reader.open_sources(*found[True]) + (logs.open_sources(*others) if others else [])


def open_files(path: FilePath, *more: FilePath) -> Reader:
    """Open a capture of any format: a file, a folder, or several segments of one capture.

    Raises FileError, DamagedError; UsageError for files that are not of one capture.
    """
    found = format_of(path)
    if not more and found is not SEGMENTS:
        return found.open(path)
    kinds = {kind_of(each) for each in (path, *more)}
    if len(kinds) > 1:
        raise UsageError(f"{path} and others have several formats", "name files of one capture")
    return FILE_FORMATS[kinds.pop()].open(path, *more)


def group(paths: Sequence[Path]) -> list[list[Path]]:
    """Files and folders by capture: segments of one capture together, each other one alone."""
    groups: dict[object, list[Path]] = {}
    for number, path in enumerate(paths):
        found, capture = format_of(path), ""
        with suppress(TcpkmonError):
            if found is not SEGMENTS and path.is_dir() is found.is_folder:
                capture = found.place_at(path)[0]
        groups.setdefault(capture or number, []).append(path)
    return [*groups.values()]


def kind_of(path: FilePath) -> str:
    """The name of the format of a file, or of the segments in a folder."""
    from tcpkmon.formats.base.segments import suffix_of

    found = format_of(path)
    if found is not SEGMENTS:
        return found.name
    suffix = suffix_of(path)
    if (kind := next((one.name for one in _ALL if one.segment == suffix), None)) is None:
        raise table_error(path, "a folder of Arrow streams")
    return kind


def late(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported when it is called."""

    def call(*arguments: object) -> Any:
        return getattr(import_module(module), name)(*arguments)

    return call


def _one(verify: Callable[..., Report]) -> Callable[[FilePath], list[Report]]:
    return lambda path: [verify(path)]


def _repaired(repair: Callable[..., Any]) -> Callable[[FilePath, FilePath], tuple[str, Report]]:
    def run(path: FilePath, out: FilePath) -> tuple[str, Report]:
        done = repair(path, out)
        return done.summary, done.report

    return run


SEGMENTS = FileFormat(
    "segments", _sniff_segments, open_files, _verify_segments, _repair_segments,
    "a capture in many files", "pmgraph", is_folder=True,
)  # fmt: skip
"""A folder of files of another format: no format that a capture can have by itself."""
_ALL = (
    FileFormat(
        "klogger", _sniff_klogger, late("tcpkmon.formats.klogger.logs", "open_logs"),
        late("tcpkmon.formats.verify", "verify_logs"),
        _repaired(late("tcpkmon.formats.verify", "repair_logs")),
        "a Klogger log", "tcpkmon decode", segment=".klog",
        place_at=late("tcpkmon.formats.klogger.logs", "place_at"), is_folder=True,
    ),
    FileFormat(
        "magnet", _sniff_magnet, _open_magnet,
        _one(late("tcpkmon.formats.verify", "verify_magnet")),
        _repair_magnet,
        "a MAGNeT file", "tcpkmon magnet-parse", suffix=".magnet", segment=".magnet",
        place_at=late("tcpkmon.formats.magnet.reader", "place_at"), schema="magnet",
    ),
    # The last one: a PSC file has no magic number, so it is any file that no other format accepts.
    FileFormat(
        "psc", lambda path, head: True, late("tcpkmon.formats.psc.reader", "open_capture"),
        _one(late("tcpkmon.formats.verify", "verify_file")),
        _repaired(late("tcpkmon.formats.verify", "repair_file")),
        "a PSC file", "pmgraph", suffix=".pm", segment=".pm", schema="tcp", can_print=True,
        has_entries=True, place_at=late("tcpkmon.formats.psc.pieces", "place_at"),
    ),
)  # fmt: skip
FILE_FORMATS = {one.name: one for one in _ALL}
"""The formats by name, in the order in which format_of() tries them."""
