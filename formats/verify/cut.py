# SPDX-License-Identifier: Apache-2.0
"""Cuts records out of a capture, so that what is left is proven as before.

The new file is what a capture would have written whose filter had left these records out: the
ledger counts them as filtered, not as written, at each checkpoint, and the numbers and serials of
the others close up. What was lost stays counted, and in its place. The header says what was cut.

    old   START 1 2 [3 4] LOSS 7 | checkpoint: written 7, filtered 0
    new   START 1 2 LOSS 5       | checkpoint: written 5, filtered 2      [ ] cut
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.psc.header import KIND_SETTINGS, encode_header, text_data
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.psc.states import described, find_states
from tcpkmon.formats.verify.psc import cuts_in, is_number, verify_file
from tcpkmon.formats.verify.report import Mask, Report

_BLOCK_ROWS = 1 << 16
_MODE = 0o640
_GROUP = (control.Ledger.location, control.Cpu.location, control.Collector.location)
_WRITTEN_WORD, _FILTERED_WORD, _IN_FILE_WORD = 6, 2, 8
Keep = Callable[[int, int], Mask]
"""Which rows of the capture stay, from one to another; of control entries it does not matter."""


def cut_file(
    capture: Capture, out: Path, keep: Keep, what: Mapping[str, Any], force: bool = False
) -> Report:
    """Write the new file; what verify says of it. what: was asked for, for the header's `cut`.

    UsageError where the capture has no ledger, or no columns cpu and serial; DamagedError where it
    does not add up. `out` is there only if all went well.
    """
    _check(capture)
    with create_file(out, force=force, mode=_MODE) as target:
        _Cut(capture, keep).run(target, what)
        target.flush()
        report = verify_file(f"/proc/self/fd/{target.fileno()}")
        if report.exit_code == DamagedError.exit_code:
            raise TcpkmonError(f"{capture.path} cannot be cut: the new file would not add up")
    return report


def _check(capture: Capture) -> None:
    path = capture.path
    if not path.is_file():
        raise UsageError(f"{path} has several files", "cut each by itself")
    columns = capture.columns_by_name
    if not capture.controls_fit or capture.header.endian == Endian.PDP or not all(
        is_number(capture, name) for name in ("seq_no", "cpu", "serial")
    ):
        lacking = [name for name in ("cpu", "serial") if name not in columns]
        raise UsageError(
            f"{path} has no {' and '.join(lacking) or 'ledger'}: nothing can be proven of a cut",
            "collect --columns default",
        )
    report = verify_file(path)
    if report.exit_code == DamagedError.exit_code or not report.checkpoints:
        raise DamagedError(f"{path} does not add up", "tcpkmon verify says why; repair it first")


class _Cut:
    def __init__(self, capture: Capture, keep: Keep) -> None:
        self._capture = capture
        self._keep = keep
        self._order = ">" if capture.header.endian == Endian.BIG else "<"
        self._cut: dict[int, Any] = {}
        """By CPU, the serials of what is cut, ascending."""
        self._counts: dict[int, int] = {}
        """By CPU * 2^16 + location, how many records were cut so far."""
        self._dropped = self._checkpoints = self._skip = self._kept = 0
        self._first = True
        self._last = -1
        """The row of the last checkpoint."""

    def run(self, target: IO[bytes], what: Mapping[str, Any]) -> None:
        records = self._look()
        target.write(encode_header(self._header({**what, "records": records})))
        total, opaque = len(self._capture), f"V{self._capture.entry_dtype.itemsize}"
        for start in range(0, total, _BLOCK_ROWS):
            rows, kept = self._block(start, min(start + _BLOCK_ROWS, total))
            target.write(rows.view(opaque)[kept].tobytes())

    def _mask(self, start: int, stop: int) -> tuple[Any, Any, Mask]:
        """Rows; where their control entries are; which records are cut."""
        rows = self._capture.rows(start, stop)
        controls = self._capture.control_of(rows)
        return rows, np.flatnonzero(controls), ~controls & ~self._keep(start, stop)

    def _look(self) -> int:
        """Find what is cut, and the last checkpoint; how many records are cut."""
        found: dict[int, list[Any]] = {}
        records = 0
        for start in range(0, len(self._capture), _BLOCK_ROWS):
            rows, controls, cut = self._mask(start, min(start + _BLOCK_ROWS, len(self._capture)))
            heads = controls[rows["location"][controls] == control.Checkpoint.location]
            self._last = start + int(heads[-1]) if len(heads) else self._last
            cpus, serials = rows["cpu"][cut], rows["serial"][cut].astype(np.uint64)
            for cpu in np.unique(cpus).tolist():
                found.setdefault(int(cpu), []).append(serials[cpus == cpu])
            records += len(serials)
        self._cut = {cpu: np.sort(np.concatenate(parts)) for cpu, parts in found.items()}
        return records

    def _block(self, start: int, stop: int) -> tuple[Any, Mask]:
        """Rows as they are in the new file, and which of them are in it."""
        rows, controls, cut = self._mask(start, stop)
        kept = ~cut
        kept[: self._skip] = False
        skipped = min(self._skip, len(rows))
        self._skip -= skipped
        plain = kept.copy()
        plain[controls] = False
        keys = (rows["cpu"].astype(np.int64) << 16) + rows["location"].astype(np.int64)
        words = control.words_view(rows, self._order)
        done = 0
        for at in controls.tolist():
            location = int(rows["location"][at])
            if not kept[at]:
                continue
            if location == control.Checkpoint.location:
                self._count(keys[done:at][cut[done:at]], plain[done:at])
                done = at
                group = int(words[at, 4])
                if self._is_needless(start + at, words[at]):
                    kept[at : at + 1 + group] = False
                    self._skip = max(0, at + 1 + group - len(rows))
                    self._checkpoints += 1
                    continue
                self._first, self._kept = False, 0
                rows["callvalue"][at] -= self._checkpoints
            elif location == control.End.location:
                words[at, 4] -= self._checkpoints
            elif location in _GROUP:
                self._correct(int(rows["callvalue"][at]), location, words[at])
            elif location == control.Loss.location:
                self._place(int(rows["callvalue"][at]), words[at])
        self._count(keys[done:][cut[done:]], plain[done:])
        self._number(rows, words, controls, kept)
        self._close_serials(rows, plain)
        return rows, kept

    def _count(self, cut: Any, plain: Mask) -> None:
        for key, count in zip(*np.unique(cut, return_counts=True), strict=True):
            self._counts[int(key)] = self._counts.get(int(key), 0) + int(count)
        self._kept += int(np.count_nonzero(plain))

    def _is_needless(self, row: int, words: Any) -> bool:
        """A checkpoint since whose last one no record is left says nothing new."""
        return not (self._first or words[5] or row == self._last or self._kept)

    def _correct(self, place: int, location: int, words: Any) -> None:
        """A row of a ledger: what was cut so far was filtered, not written."""
        if location == control.Cpu.location:
            count = sum(n for key, n in self._counts.items() if key >> 16 == place)
            _add(words, 0, -count)
            _add(words, 2, -count)
            return
        count = self._counts.get(place, 0)
        if location == control.Ledger.location:
            _add(words, _FILTERED_WORD, count)
            _add(words, _WRITTEN_WORD, -count)
        else:
            _add(words, _IN_FILE_WORD, -count)

    def _place(self, cpu: int, words: Any) -> None:
        """A LOSS entry with a serial."""
        if cpu in self._cut and (serial := int(words[0]) | int(words[1]) << 32):
            _add(words, 0, -int(np.searchsorted(self._cut[cpu], np.uint64(serial))))

    def _number(self, rows: Any, words: Any, controls: Any, kept: Mask) -> None:
        """Sequence numbers, and the counts of entries that control entries have."""
        before = self._dropped + np.cumsum(~kept) - ~kept
        self._dropped += int(np.count_nonzero(~kept))
        for name in ("seq", "seq_no"):
            if is_number(self._capture, name):
                rows[name] -= before.astype(rows.dtype[name])
        for at in controls.tolist():
            if rows["location"][at] in (control.Checkpoint.location, control.End.location):
                _add(words[at], 0, -int(before[at]))

    def _close_serials(self, rows: Any, plain: Mask) -> None:
        for cpu, serials in self._cut.items():
            at = np.flatnonzero(plain & (rows["cpu"] == cpu))
            old = rows["serial"][at].astype(np.uint64)
            rows["serial"][at] = old - np.searchsorted(serials, old).astype(np.uint64)

    def _header(self, what: Mapping[str, Any]) -> Any:
        header = self._capture.header
        settings = copy.deepcopy(dict(self._capture.settings))
        settings["cut"] = [*cuts_in(settings), {k: v for k, v in what.items() if v is not None}]
        if described(header):
            self._cut_states(settings["segment"]["states"])
        extras = {**header.extras, KIND_SETTINGS: text_data(json.dumps(settings))}
        return replace(header, extras=extras)

    def _cut_states(self, states: dict[str, Any]) -> None:
        """Of the states that a segment repeats, those that are left."""
        capture = self._capture

        def locations(start: int, stop: int) -> Any:
            return capture.column("location", start, stop)

        row, count = find_states(capture.header, len(capture), locations)
        if count:
            cut = self._mask(row, row + count)[2]
            states["count"] = int(np.count_nonzero(~cut))


def _add(words: Any, at: int, more: int) -> None:
    """Add to the number of 64 bits in two words."""
    value = max(0, (int(words[at]) | int(words[at + 1]) << 32) + more)
    words[at], words[at + 1] = value & 0xFFFFFFFF, value >> 32
