# SPDX-License-Identifier: Apache-2.0
"""Makes a log of the dumps before the first damage in another; the damaged one is never touched."""

from __future__ import annotations

import contextlib
import os

from formats.errors import FileError, UsageError
from formats.klogger import LogReader
from formats.verify.repair import Repair, new_file
from formats.verifylog.check import verify_log
from formats.verifylog.structure import find_dumps

_COPY_BYTES = 1 << 20


def repair_log(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Repair:
    """Write the log `path` up to its first dump that is cut or damaged to the new file `out`.

    What stands behind that cannot be kept: nobody could tell how much is missing between. All that
    is kept is kept byte for byte, so the serials go on being those of the capture. kept: records.

    Raises as formats.verify.repair.repair_file().
    """
    with contextlib.suppress(OSError):
        if os.path.samefile(path, out):
            raise UsageError(f"{out} is the damaged file itself", "name another output file")
    with LogReader(path) as reader:
        dumps = find_dumps(path, reader.format.order)
        last, kept, number = -1, 0, 0
        for batch in reader.batches():
            if batch.dump not in (last, last + 1):
                break
            number = number + len(batch) if batch.dump == last else len(batch)
            kept, last = kept + len(batch), batch.dump
        whole = _complete(reader, last)
    end = dumps.offsets.get(last + 1, dumps.end) if last >= 0 else dumps.start
    del number, whole
    with new_file(out) as target, open(path, "rb") as source:
        left = end
        while left:
            piece = source.read(min(left, _COPY_BYTES))
            if not piece:
                raise FileError(f"{path} became shorter meanwhile")
            target.write(piece)
            left -= len(piece)
    left_out = sum(dump.offset >= end for dump in dumps.found)
    return Repair(kept, left_out, 0, dumps.size_bytes - dumps.end, verify_log(out))


def _complete(reader: LogReader, last: int) -> bool:
    return bool(reader) and last >= 0
