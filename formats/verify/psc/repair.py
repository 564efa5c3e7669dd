# SPDX-License-Identifier: Apache-2.0
"""Makes a clean capture from a damaged one, which it never touches."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import IO

from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.verify.mending import Repair, mend, new_file
from tcpkmon.formats.verify.psc.check import verify_file
from tcpkmon.formats.verify.psc.clean import Cleaned, Cleaner
from tcpkmon.formats.verify.psc.entries import is_ours


def repair_file(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Repair:
    """Write the sound entries of the capture `path` to the new file `out`.

    Entries that make no sense, or that verify finds wrong, are left out; where sequence numbers
    are missing a LOSS entry (cause damaged, no CPU) counts them, and the entries after it are
    numbered anew. END comes last, its reason `error` unless the file was whole. A file without
    control entries only loses a cut last entry.

    Raises UsageError if both are the same file, FileError if `out` is there already or cannot be
    written, DamagedError if the header cannot be decoded. `out` is there only if all went well.
    """
    with open_capture(path) as capture, new_file(path, out) as target:
        cut_bytes = capture.rest_bytes
        if not is_ours(capture):
            _copy(capture, target)
            target.flush()
            return Repair("entries", len(capture), cut_bytes, verify_file(out), 0, 0)
        total = Cleaned()

        def clean(source: Capture, skip: Set[int], to: IO[bytes]) -> None:
            _write_header(source, to)
            cleaned = Cleaner(source, skip, to).run()
            total.kept = cleaned.kept
            total.dropped += cleaned.dropped
            total.missing += cleaned.missing

        report = mend(capture, target, out, clean, open_capture, verify_file)
        return Repair("entries", total.kept, cut_bytes, report, total.dropped, total.missing)


def _write_header(capture: Capture, to: IO[bytes]) -> None:
    """The header as it was: it could be decoded, so every byte of it is worth keeping."""
    to.write(capture.read_at(0, capture.data_offset))


def _copy(capture: Capture, to: IO[bytes]) -> None:
    _write_header(capture, to)
    for piece in capture.chunks():
        to.write(capture.rows(piece.start, piece.stop).tobytes())
