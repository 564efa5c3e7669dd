# SPDX-License-Identifier: Apache-2.0
"""The file formats of records: one line each. Commands ask here, and know no format themselves.

What an entry does is imported when it is done, so that importing this module costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formats.base.reader import Reader
    from formats.verify import Report

FilePath = str | os.PathLike[str]
_HEAD_BYTES = 64


@dataclass(frozen=True)
class FileFormat:
    """A format of files (or folders of files) of records.

    sniff: whether a file that begins with these bytes (none: a folder) is of it. open: its reader;
    FileError, DamagedError. verify: a report of each file, and of a folder one of all. repair: from
    a file to a new one; what was done, for a person, and what verify says of the new one.
    """

    name: str
    sniff: Callable[[Path, bytes], bool]
    open: Callable[[FilePath], Reader]
    verify: Callable[[FilePath], list[Report]]
    repair: Callable[[FilePath, FilePath], tuple[str, Report]]
    suffix: str = ""
    """What the name that collect chooses ends with."""
    is_folder: bool = False
    """A capture is a folder with a file for each CPU, else one file."""
    any_schema: bool = False
    """It can hold other schemata than tcp, and choose among their events."""
    can_print: bool = False
    """collect can print the records (--print) while it writes them."""


def format_of(path: FilePath) -> FileFormat:
    """The format of a file or folder, by its beginning and not by its name.

    It is the last of FILE_FORMATS for what cannot be read: opening that says why.
    """
    head = b""
    try:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        pass
    *listed, last = FILE_FORMATS.values()
    return next((one for one in listed if one.sniff(Path(path), head)), last)


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
    from formats.verify import repair_log

    done = repair_log(path, out)
    summary = f"{done.kept} dumps kept, {done.dropped} left out, {done.cut_bytes} bytes cut off"
    return summary, done.report


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


_LISTED = (
    FileFormat(
        "klogger", _sniff_klogger, _open_klogger, _verify_klogger, _repair_klogger,
        is_folder=True, any_schema=True,
    ),
    # Last: it has no magic number. What is of no other format is read as it.
    FileFormat(
        "psc", lambda path, head: True, _open_psc, _verify_psc, _repair_psc,
        suffix=".pm", can_print=True,
    ),
)  # fmt: skip
FILE_FORMATS = {one.name: one for one in _LISTED}
"""By name, in the order in which a file is tried."""
