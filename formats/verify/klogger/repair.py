# SPDX-License-Identifier: Apache-2.0
"""Makes a log of the dumps before the first damage in another; the damaged one is never touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.klogger.logs import find_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.verify.klogger.check import verify_log
from tcpkmon.formats.verify.klogger.folder import verify_folder
from tcpkmon.formats.verify.mending import NEW_NAME, Repair, new_file

FOLDER_MODE = 0o750
_COPY_BYTES = 1 << 20


def repair_logs(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Repair:
    """Repair a log, or a folder of logs."""
    return (repair_folder if os.path.isdir(path) else repair_log)(path, out)


def repair_folder(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Repair:
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
    return Repair(
        "dumps",
        sum(one.kept for one in done),
        sum(one.cut_bytes for one in done),
        verify_folder(target)[-1],
        sum(one.dropped or 0 for one in done),
    )


def repair_log(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Repair:
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
    return Repair("dumps", len(kept), walked.size - walked.end, verify_log(out), dropped)
