# SPDX-License-Identifier: Apache-2.0
"""Makes a clean capture from a damaged one, which it never touches."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.limits import MOST_CPUS, MOST_MISSING
from tcpkmon.formats.klogger.logs import find_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.verify.klogger import verify_folder, verify_log
from tcpkmon.formats.verify.psc import Segment, SequenceReader, is_number, is_ours, verify_file
from tcpkmon.formats.verify.report import (
    DOES_NOT_ADD_UP,
    I64,
    U64,
    Mask,
    Problems,
    Report,
    previous_of,
)

# What the repairs of all formats share: a new file, and rounds until verify finds nothing more.

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


# Makes a log of the dumps before the first damage in another; the damaged one is never touched.

FOLDER_MODE = 0o750


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


# Copies the sound entries of a damaged capture, in order, and counts what is left out as lost.

SEGMENT_ROWS = 1 << 16
HELD_ROWS = 64
"""Rows that wait for the next segment, so that each is judged by its neighbours on both sides."""
ROUNDS = 64

Raw = npt.NDArray[Any]


@dataclass
class Cleaned:
    """What became of the entries of a damaged capture."""

    kept: int = 0
    dropped: int = 0
    missing: int = 0
    """Sequence numbers that no LOSS entry accounted for before."""
    end: control.End | None = None
    """The END entry at the very end, if there is one."""

    @property
    def changed(self) -> bool:
        """Whether anything but the end had to be mended."""
        return bool(self.dropped or self.missing)


def increasing(seq: U64, previous: int) -> I64:
    """Indices of entries whose numbers rise, from `previous` on, without the single strays.

    Where two neighbours are out of order, the one that does not fit its other neighbour goes.
    """
    keep = np.flatnonzero(seq > np.uint64(previous)).astype(np.int64)
    for _ in range(ROUNDS):
        here = seq[keep]
        wrong = np.flatnonzero(here[1:] <= here[:-1])
        if not len(wrong):
            return keep
        before = np.where(wrong > 0, here[np.maximum(wrong - 1, 0)], np.uint64(previous))
        stray = np.where(here[wrong + 1] > before, wrong, wrong + 1)
        keep = np.delete(keep, stray)
    here = seq[keep]
    top = np.maximum.accumulate(here)
    first = np.concatenate((np.ones(1, np.bool_), here[1:] > top[:-1]))[: len(keep)]
    rising: I64 = keep[first]
    return rising


class Cleaner:
    """One pass over a capture that tcpkmon wrote; `skip` are entries to leave out in any case.

    `to` gets whole entries in the byte order of the file.
    """

    def __init__(self, capture: Capture, skip: Set[int], to: IO[bytes]) -> None:
        self._capture = capture
        self._skip = np.array(sorted(skip), np.int64)
        self._write = to.write
        self._dtype = capture.array.dtype
        self._order = ">" if capture.header.endian == Endian.BIG else "<"
        self._opaque = np.dtype(("V", self._dtype.itemsize))
        self._cpu_limit = MOST_CPUS
        self._has_cpu = is_number(capture, "cpu")
        before = previous_of(capture.settings)
        self._old_seq = self._new_seq = before.last_seq
        self._written = before.entries
        self._checkpoints = before.checkpoints
        self._last_row: Raw = np.zeros(1, self._opaque)
        self._end_row = self._last_row
        self._end_seq = 0
        self.result = Cleaned()

    def run(self) -> Cleaned:
        """Write everything up to and with END."""
        for rows, seq in self._candidates():
            self._emit(rows, seq)
        self._finish_gap()
        end = self.result.end
        reason = (
            end.reason if end is not None and not self.result.changed else (control.EndReason.ERROR)
        )
        lost = self._new_seq - self._written
        entry = control.End(reason, self._written, lost, self._checkpoints)
        self._append(entry, self._last_row if end is None else self._end_row)
        return self.result

    def _finish_gap(self) -> None:
        """What is missing just before the END entry that was taken out."""
        gap = self._end_seq - self._old_seq - 1
        if self.result.end is None or not 0 < gap <= MOST_MISSING:
            return
        self.result.missing += gap
        self._new_seq += gap
        loss = control.Loss(control.ANY_CPU, 0, gap, control.LossCause.DAMAGED)
        self._append(loss, self._last_row)

    def _append(self, entry: control.Control, like: Raw) -> None:
        rows = self._control_rows([entry], like)
        self._new_seq += 1
        self._written += 1
        self._number(rows, np.array([self._new_seq], np.uint64))
        self._write(rows.tobytes())

    def _candidates(self) -> Iterator[tuple[Raw, U64]]:
        """Rows that make sense alone and whose sequence numbers rise, in pieces."""
        reader = SequenceReader(self._capture, Problems(0, 1))
        rows: Raw = np.zeros(0, self._opaque)
        seq: U64 = np.zeros(0, np.uint64)
        total = len(self._capture)
        for piece in self._capture.chunks(SEGMENT_ROWS):
            segment = Segment(self._capture, piece.start, piece.stop)
            numbers = reader.read(segment)
            good = self._sensible(segment, numbers)
            self._note_end(segment, numbers, good)
            self.result.dropped += len(segment) - int(np.count_nonzero(good))
            rows = np.concatenate((rows, segment.rows.view(self._opaque)[good]))
            seq = np.concatenate((seq, numbers[good]))
            keep = increasing(seq, self._old_seq)
            # What is held is judged again with what follows it.
            upto = len(seq) if piece.stop == total else max(len(seq) - HELD_ROWS, 0)
            now = keep[keep < upto]
            self.result.dropped += upto - len(now)
            if len(now):
                yield rows[now], seq[now]
            rows, seq = rows[upto:], seq[upto:]

    def _sensible(self, segment: Segment, seq: U64) -> Mask:
        location = segment.wide("location")
        ports = segment.numbers("lport").astype(np.int64) | segment.numbers("rport")
        is_control = control.is_control(location)
        known = (location > 0) & (location <= max(facts.NAMES))
        good: Mask = known & ~(is_control & (ports != 0)) & (seq < np.uint64(2**63))
        good &= seq.astype(np.uint32) == segment.numbers("seq_no")
        if not segment.start:
            starts = segment.control_rows(location == control.Start.location)
            if len(starts) and starts.index[0] == 0:
                start = starts.decode(0)
                assert isinstance(start, control.Start)
                self._cpu_limit = min(start.cpus, 0xFFFF) or MOST_CPUS
            good &= (location != control.Start.location) | (np.arange(len(location)) == 0)
        else:
            good &= location != control.Start.location
        if self._has_cpu:
            cpu = segment.numbers("cpu").astype(np.int64)
            good &= is_control | ((cpu >= 0) & (cpu < self._cpu_limit))
        low, high = np.searchsorted(self._skip, (segment.start, segment.stop))
        good[self._skip[low:high] - segment.start] = False
        return good

    def _note_end(self, segment: Segment, seq: U64, good: Mask) -> None:
        """END entries are taken out (a new one is written); the one at the very end is kept in
        mind."""
        ends = segment.control_rows(segment.wide("location") == control.End.location)
        for at, index in enumerate(ends.index.tolist()):
            local = index - segment.start
            if not good[local]:
                continue
            good[local] = False
            if index == len(self._capture) - 1:
                found = ends.decode(at)
                assert isinstance(found, control.End)
                self.result.end = found
                self._end_seq = int(seq[local])
                self._end_row = segment.rows.view(self._opaque)[local : local + 1]
                self.result.dropped -= 1

    def _emit(self, rows: Raw, seq: U64) -> None:
        """Number rows anew, with a LOSS entry for every gap that none accounts for."""
        rows, gap, count = self._with_right_losses(rows, seq)
        if not len(rows):
            return
        extra = gap - count
        inserted = extra > 0
        own = count + np.uint64(1)
        step = own + np.where(inserted, extra + np.uint64(1), np.uint64(0))
        new = np.cumsum(step, dtype=np.uint64) + np.uint64(self._new_seq)
        place = np.arange(len(rows)) + np.cumsum(inserted)
        total = int(place[-1]) + 1
        out = np.empty(total, self._opaque)
        numbers = np.empty(total, np.uint64)
        out[place], numbers[place] = rows, new
        at = place[inserted] - 1
        losses = [
            control.Loss(control.ANY_CPU, 0, int(n), control.LossCause.DAMAGED)
            for n in extra[inserted]
        ]
        out[at] = self._control_rows(losses, rows[inserted]).view(self._opaque)
        numbers[at] = (new - own)[inserted]
        typed = out.view(self._dtype)
        self._number(typed, numbers)
        self._count_checkpoints(typed, numbers)
        self._write(out.tobytes())
        self.result.kept += len(rows)
        self.result.missing += int(extra.sum())
        self._written += total
        self._new_seq = int(new[-1])
        self._last_row = rows[-1:].copy()

    def _with_right_losses(self, rows: Raw, seq: U64) -> tuple[Raw, U64, U64]:
        """Rows without LOSS entries that count more than is missing; gaps; what LOSSes count."""
        while True:
            gap = np.diff(seq, prepend=np.uint64(self._old_seq)) - np.uint64(1)
            typed = rows.view(self._dtype)
            is_loss = typed["location"] == control.Loss.location
            is_loss &= (typed["lport"] | typed["rport"]) == 0
            words = control.words_view(typed, self._order).astype(np.uint64)
            count = np.where(is_loss, words[:, 2] | (words[:, 3] << np.uint64(32)), np.uint64(0))
            wrong = is_loss & ((count == 0) | (count > gap))
            wrong |= is_loss & (words[:, 4] > max(control.LossCause))
            wrong |= ~is_loss & (gap > MOST_MISSING)
            if not np.any(wrong):
                break
            self.result.dropped += int(np.count_nonzero(wrong))
            rows, seq = rows[~wrong], seq[~wrong]
        if len(seq):
            self._old_seq = int(seq[-1])
        return rows, gap, count

    def _control_rows(self, entries: Sequence[control.Control], like: Raw) -> Raw:
        """Control entries with the times of the rows `like`, not numbered yet."""
        rows = control.encode_many(entries, self._dtype)
        model = like.view(self._dtype)
        for name in ("tv_sec", "tv_usec", "time_ns"):
            if name in (self._dtype.names or ()) and self._dtype[name].kind == "u":
                rows[name] = model[name]
        return rows

    def _number(self, rows: Raw, seq: U64) -> None:
        rows["seq_no"] = seq.astype(np.uint32)
        if is_number(self._capture, "seq"):
            rows["seq"] = seq

    def _count_checkpoints(self, rows: Raw, seq: U64) -> None:
        """What checkpoints say of their place is made right; the ledger stays as it was."""
        mask = (rows["location"] == control.Checkpoint.location) & (rows["lport"] == 0)
        at = np.flatnonzero(mask & (rows["rport"] == 0))
        if not len(at):
            return
        before = (at + self._written).astype(np.uint64)
        lost = seq[at] - np.uint64(1) - before
        words = control.words_view(rows, self._order)
        for word, value in ((0, before), (2, lost)):
            words[at, word] = value & np.uint64(0xFFFFFFFF)
            words[at, word + 1] = value >> np.uint64(32)
        self._checkpoints = int(rows["callvalue"][at[-1]]) + 1


# PSC captures.

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
