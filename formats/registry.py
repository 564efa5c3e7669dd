# SPDX-License-Identifier: Apache-2.0
"""The file formats of records, one entry each. Commands ask here and name no format themselves.

An entry imports its format when it is used, so that importing this module is fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from formats.base.errors import TcpkmonError, UsageError
from formats.base.files import read_head

if TYPE_CHECKING:
    from formats.base.reader import Reader
    from formats.klogger.source import Source
    from formats.verify import Report

FilePath = str | os.PathLike[str]
_HEAD_BYTES = 64


@dataclass(frozen=True)
class FileFormat:
    """A format of files, or of folders of files, that hold records.

    sniff(path, head): whether a file that begins with the bytes `head` has this format; for a
    folder, `head` is empty. open: returns a reader; raises FileError, DamagedError. verify: returns
    a report for each file, or one for a whole folder. repair(path, out): writes a new file, and
    returns what it did, as text, and the report of verify on the new file.

    title: what a file of it is, for people. shown_by: the command that shows its records.
    suffix: how the file names that collect chooses end. is_folder: a capture is a folder with one
    file for each CPU, otherwise one file. schema: the one that it can hold; None: any.
    can_print: collect can print records (--print) while it writes them.
    """

    name: str
    sniff: Callable[[Path, bytes], bool]
    open: Callable[[FilePath], Reader]
    verify: Callable[[FilePath], list[Report]]
    repair: Callable[[FilePath, FilePath], tuple[str, Report]]
    title: str
    shown_by: str
    suffix: str = ""
    is_folder: bool = False
    schema: str | None = None
    can_print: bool = False

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
    from formats.base.segments import find_segments

    try:
        return path.is_dir() and bool(find_segments(path))
    except OSError:
        return False


def _open_segments(path: FilePath) -> Reader:
    return open_files(path)


def _verify_segments(path: FilePath) -> list[Report]:
    from formats.verify import verify_chain

    return verify_chain(path, lambda each: format_of(each).verify(each))


def _repair_segments(path: FilePath, out: FilePath) -> tuple[str, Report]:
    raise UsageError(f"{path} is a folder of segments", "repair the one that needs it")


def _sniff_klogger(path: Path, head: bytes) -> bool:
    from formats.klogger.encode import MAGIC

    return head.startswith(MAGIC) or path.is_dir()


def _open_klogger(path: FilePath) -> Reader:
    from formats.klogger.logs import open_logs

    return open_logs(path)


def _verify_klogger(path: FilePath) -> list[Report]:
    from formats.verify import verify_folder, verify_log

    return verify_folder(path) if os.path.isdir(path) else [verify_log(path)]


def _repair_klogger(path: FilePath, out: FilePath) -> tuple[str, Report]:
    from formats.verify import repair_folder, repair_log

    done = (repair_folder if os.path.isdir(path) else repair_log)(path, out)
    summary = f"{done.kept} dumps kept, {done.dropped} left out, {done.cut_bytes} bytes cut off"
    return summary, done.report


def _sniff_magnet(path: Path, head: bytes) -> bool:
    from formats.magnet.control import MAGIC

    return head.startswith(MAGIC)


def _open_magnet(path: FilePath) -> Reader:
    from formats.klogger.logs import Logs
    from formats.magnet.reader import open_reader

    return Logs([open_reader(path)])


def _verify_magnet(path: FilePath) -> list[Report]:
    from formats.verify import verify_magnet

    return [verify_magnet(path)]


def _repair_magnet(path: FilePath, out: FilePath) -> tuple[str, Report]:
    from formats.verify import repair_magnet

    done = repair_magnet(path, out)
    summary = (
        f"{done.kept} records kept, {done.missing} newly counted as lost, "
        f"{done.cut_bytes} bytes cut off"
    )
    return summary, done.report


def open_sources(*paths: FilePath) -> list[Source]:
    """The readers of files whose records are events: Klogger logs, MAGNeT files, their segments.

    Segments of one capture are read as one. Raises FileError, DamagedError.
    """
    from formats.klogger.logs import open_sources
    from formats.magnet.reader import open_reader, open_segments, place_at

    files = [Path(path) for path in paths]
    kinds = [kind_of(path) for path in files]
    for path, kind in zip(files, kinds, strict=True):
        if kind == "psc" and path.is_dir():
            raise UsageError(f"{path} holds PSC files, which have no events", "tcpkmon export")
    magnet = [path for path, kind in zip(files, kinds, strict=True) if kind == "magnet"]
    others = [path for path in files if path not in magnet]
    found: list[Source] = []
    chained = [path for path in magnet if path.is_dir() or (len(magnet) > 1 and place_at(path)[0])]
    if chained:
        found.append(open_segments(*chained))
    found += [open_reader(path) for path in magnet if path not in chained]
    return found + (open_sources(*others) if others else [])


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
    if kinds == {"psc"}:
        from formats.psc.reader import open_capture

        return open_capture(path, *more)
    from formats.klogger.logs import Logs, open_logs

    if kinds == {"klogger"}:
        return open_logs(path, *more)
    from formats.magnet.reader import open_segments

    return Logs([open_segments(*map(Path, (path, *more)))])


def group(paths: Sequence[Path]) -> list[list[Path]]:
    """Files and folders by capture: segments of one capture together, each other one alone."""
    from formats.klogger.logs import place_at as log_at
    from formats.magnet.reader import place_at as magnet_at
    from formats.psc.pieces import place_at as psc_at

    groups: dict[object, list[Path]] = {}
    places = {"klogger": log_at, "magnet": magnet_at, "psc": psc_at}
    for number, path in enumerate(paths):
        found, capture = format_of(path), ""
        with suppress(TcpkmonError):
            if found is not SEGMENTS and path.is_dir() is found.is_folder:
                capture = places[found.name](path)[0]
        groups.setdefault(capture or number, []).append(path)
    return [*groups.values()]


def kind_of(path: FilePath) -> str:
    """The name of the format of a file, or of the segments in a folder."""
    from formats.base.segments import suffix_of

    found = format_of(path)
    if found is not SEGMENTS:
        return found.name
    return {".klog": "klogger", ".magnet": "magnet"}.get(suffix_of(path), "psc")


def _open_psc(path: FilePath) -> Reader:
    from formats.psc.reader import open_capture

    return open_capture(path)


def _verify_psc(path: FilePath) -> list[Report]:
    from formats.verify import verify_file

    return [verify_file(path)]


def _repair_psc(path: FilePath, out: FilePath) -> tuple[str, Report]:
    from formats.verify import repair_file

    done = repair_file(path, out)
    summary = (
        f"{done.kept} entries kept, {done.dropped} left out, {done.missing} sequence number(s) "
        f"newly counted as lost, {done.cut_bytes} bytes cut off"
    )
    return summary, done.report


SEGMENTS = FileFormat(
    "segments", _sniff_segments, _open_segments, _verify_segments, _repair_segments,
    "a capture in many files", "pmgraph", is_folder=True,
)  # fmt: skip
"""A folder of files of another format: no format that a capture can have by itself."""
_ALL = (
    FileFormat(
        "klogger", _sniff_klogger, _open_klogger, _verify_klogger, _repair_klogger,
        "a Klogger log", "tcpkmon decode", is_folder=True,
    ),
    FileFormat(
        "magnet", _sniff_magnet, _open_magnet, _verify_magnet, _repair_magnet,
        "a MAGNeT file", "tcpkmon magnet-parse", suffix=".magnet", schema="magnet",
    ),
    # The last one: a PSC file has no magic number, so it is any file that no other format accepts.
    FileFormat(
        "psc", lambda path, head: True, _open_psc, _verify_psc, _repair_psc,
        "a PSC file", "pmgraph", suffix=".pm", schema="tcp", can_print=True,
    ),
)  # fmt: skip
FILE_FORMATS = {one.name: one for one in _ALL}
"""The formats by name, in the order in which format_of() tries them."""
