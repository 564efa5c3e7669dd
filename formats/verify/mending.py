# SPDX-License-Identifier: Apache-2.0
"""What the repairs of all formats share: a new file, and rounds until verify finds nothing more."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.verify.report import DOES_NOT_ADD_UP, Report

NEW_NAME = "name a new output file"
_MODE = 0o640
_ROUNDS = 6
_COPY_BYTES = 1 << 20
FilePath = str | os.PathLike[str]
Source = TypeVar("Source")


@dataclass(frozen=True)
class Repair:
    """What a repair did. kept, dropped: entries, dumps or records (`what`); missing: numbers, or
    records, that are newly counted as lost. None: it counts no such."""

    what: str
    kept: int
    cut_bytes: int
    """Of what is cut short at the end."""
    report: Report
    """What verify says of the new file."""
    dropped: int | None = None
    missing: int | None = None

    @property
    def summary(self) -> str:
        """In one line."""
        told = [f"{self.kept} {self.what} kept"]
        if self.dropped is not None:
            told.append(f"{self.dropped} left out")
        if self.missing is not None:
            numbers = " sequence number(s)" if self.what == "entries" else ""
            told.append(f"{self.missing}{numbers} newly counted as lost")
        return ", ".join([*told, f"{self.cut_bytes} bytes cut off"])


@contextlib.contextmanager
def new_file(path: FilePath, out: FilePath) -> Iterator[IO[bytes]]:
    """The new file `out` for the repair of `path`; it is there only if all goes well.

    UsageError if both are the same file, FileError if `out` is there already or cannot be written.
    """
    with contextlib.suppress(OSError):
        if os.path.samefile(path, out):
            raise UsageError(f"{out} is the damaged file itself", "name another output file")
    with create_file(out, mode=_MODE, hint=NEW_NAME) as target:
        yield target


def mend(
    source: Source,
    target: IO[bytes],
    out: FilePath,
    clean: Callable[[Source, Set[int], IO[bytes]], None],
    reopen: Callable[[str], AbstractContextManager[Source]],
    verify: Callable[[str], Report],
) -> Report:
    """Clean a file, clean that again of the entries that verify still names, and write the last.

    clean: writes the sound entries of a file but some to another one. What verify says of it.
    """
    with contextlib.ExitStack() as stack:
        skip: Set[int] = frozenset()
        for _ in range(_ROUNDS):
            scratch = stack.enter_context(tempfile.TemporaryFile(dir=Path(out).parent))
            clean(source, skip, scratch)
            scratch.flush()
            name = f"/proc/self/fd/{scratch.fileno()}"
            report = verify(name)
            if report.exit_code != DOES_NOT_ADD_UP or not report.suspects:
                break
            source, skip = stack.enter_context(reopen(name)), report.suspects
        scratch.seek(0)
        shutil.copyfileobj(scratch, target, _COPY_BYTES)
    report.path = str(out)
    return report
