# SPDX-License-Identifier: Apache-2.0
"""Makes a log of the dumps before the first damage in another; the damaged one is never touched."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.klogger.logs import find_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.verify.klogger.check import verify_log
from tcpkmon.formats.verify.klogger.folder import verify_folder
from tcpkmon.formats.verify.mending import NEW_NAME, new_file
from tcpkmon.formats.verify.report import Report

FOLDER_MODE = 0o750
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class LogRepair:
    """What a repair did: dumps kept and left out, and bytes of what was no whole dump."""

    kept: int
    dropped: int
    cut_bytes: int
    report: Report
    """What verify says of the new file."""

    @property
    def summary(self) -> str:
        """In one line."""
        return f"{self.kept} dumps kept, {self.dropped} left out, {self.cut_bytes} bytes cut off"


def repair_logs(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> LogRepair:
    """Repair a log, or a folder of logs."""
    return (repair_folder if os.path.isdir(path) else repair_log)(path, out)


def repair_folder(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> LogRepair:
    """Repair each log in the folder `path`, into the new folder `out`, which appears when all are
    done. Raises as repair_log(), FileError too where `out` is there or cannot be made."""
    target, part = Path(out), Path(out).with_name(f".{Path(out).name}.new")
    if target.exists():
        raise FileError(f"{out} is there already", NEW_NAME)
    try:
        part.mkdir(mode=FOLDER_MODE)
        done = [repair_log(one, part / one.name) for one in find_logs(path)]
        part.rename(target)
    except OSError as error:
        raise FileError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return LogRepair(
        sum(one.kept for one in done),
        sum(one.dropped for one in done),
        sum(one.cut_bytes for one in done),
        verify_folder(target)[-1],
    )


def repair_log(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> LogRepair:
    """Write the log `path` up to its first dump that is cut or damaged to the new file `out`.

    What is behind that is not kept: nobody could tell how much is missing between. What is
    kept is kept byte for byte. Raises UsageError if both are the same file, FileError if `out` is
    there already or cannot be written, DamagedError if the header cannot be decoded.
    """
    with LogReader(path) as reader:
        for _ in reader.batches():
            pass
        walked = reader.walked
        places = [problem.offset for problem in reader.problems if problem.offset is not None]
    bad = min(places, default=walked.end)
    kept = [dump for dump in walked.found if dump.end <= bad]
    end = kept[-1].end if kept else walked.begin
    with new_file(path, out) as target, open(path, "rb") as source:
        while end:
            piece = source.read(min(end, _COPY_BYTES))
            if not piece:
                raise FileError(f"{path} became shorter meanwhile")
            target.write(piece)
            end -= len(piece)
    dropped = len(walked.found) - len(kept)
    return LogRepair(len(kept), dropped, walked.size - walked.end, verify_log(out))
