# SPDX-License-Identifier: Apache-2.0
"""Checks a MAGNeT file: its structure, its counts, and the proof of its log that its header has.

What is in the log and what is missing was proven when the file was made of it (proof_of). The file
itself shows that it has the records and the losses of that proof. Files of before have ledgers
instead, which nobody adds up any more: of these the structure is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tcpkmon.formats.base.control import EndReason, LossCause
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.segments import has_earlier
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.magnet.control import CHECK, END, LEDGER, OLD
from tcpkmon.formats.magnet.header import MagnetFile, magnet_name
from tcpkmon.formats.magnet.layout import CLOCK, FIRST_EVENT, LOST
from tcpkmon.formats.magnet.reader import Losses
from tcpkmon.formats.magnet.walk import Piece, Walk
from tcpkmon.formats.verify.report import COUNTS, Missed, Problems, Report, Row, find_part

WORDS = {
    "entries": "records",
    "entry": "record",
    "checkpoint": "ledger",
    "location": "event",
    "snapshot": "record",
}
"""What a person knows as something else in such a file: the words of a report."""
_NUMBERS = ("checkpoints", "seq_lost", "ring_lost", "ring_unexplained", "clock_steps",
            "after_checkpoint", "problems_total")  # fmt: skip
_TEXTS = ("window", "notes", "off", "shed", "unchecked")
_MOST_TEXTS = 100
"""Of each of _TEXTS: a header has a limit."""
_OF_LOG = "the proof is that of the log, made when the log became this file"
_OF_BEFORE = "its ledgers, which tcpkmon until commit a475560f adds up"


def proof_of(report: Report) -> dict[str, Any]:
    """What the header has of the proof of a log, with the digest of it all."""
    proof: dict[str, Any] = {name: getattr(report, name) for name in _NUMBERS}
    proof |= {name: getattr(report, name)[:_MOST_TEXTS] for name in _TEXTS}
    proof |= {"end_reason": report.end_reason, "proven_end": report.proven_end}
    proof["unproven"] = {magnet_name(name): way for name, way in report.unproven.items()}
    proof["missed"] = [asdict(one) for one in report.missed]
    events: dict[str, Row] = {}
    for row in report.rows:
        name = magnet_name(row.name)
        events.setdefault(name, Row(None, 0, name)).add(row)
    proof["events"] = {
        name: {**{one: getattr(row, one) for one in COUNTS}, "lost": row.lost}
        for name, row in events.items()
    }
    return {**proof, "digest": digest_of(proof)}


def digest_of(proof: Mapping[str, Any]) -> str:
    """Of a proof, without its own."""
    told = {name: value for name, value in proof.items() if name != "digest"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def verify_magnet(path: str | os.PathLike[str]) -> Report:
    """Check the file at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    report = Report(str(path), format="magnet", words=WORDS)
    try:
        with MagnetFile(path) as file:
            _Check(file, report).run()
    except DamagedError as error:
        report.error = error.message.removeprefix(f"{path}: ")
    return report


class _Check:
    """The check of one file. counts: its records by code."""

    def __init__(self, file: MagnetFile, report: Report) -> None:
        self._file, self._report = file, report
        self._problems = Problems(0, file.layout.size)
        self._walk = Walk(file)
        self._counts = np.zeros(NUMBERS, np.int64)
        self._goes_on = False
        self._losses = Losses(follows=has_earlier(file.header.get("settings")))

    def run(self) -> None:
        """Read the file, and fill the report."""
        report, walk, file = self._report, self._walk, self._file
        report.size_bytes = file.size
        for found in walk:
            if isinstance(found, Piece):
                self._add(found.start, found.rows)
            elif found.kind == LEDGER:
                self._losses.add(found.values)
            elif found.kind == END:
                self._goes_on = found.values.get("reason") == EndReason.ROTATED
            elif found.kind not in (CHECK, *OLD):
                what = f"a control entry of unknown kind {found.kind!r:.40}"
                self._problems.add(found.start, what)
        proof = file.header.get("proof")
        if proof is None:
            self._judge_old()
        else:
            self._judge(proof)
        report.settle(self._problems)

    def _add(self, start: int, rows: Any) -> None:
        codes, sizes, report = rows["event"], rows["size"], self._report
        report.entries += len(codes)
        self._counts += np.bincount(codes[codes < NUMBERS], minlength=NUMBERS)
        lost = np.flatnonzero(codes == LOST)
        report.seq_gaps += len(lost)
        report.clock_pairs += int(np.count_nonzero(codes == CLOCK))
        causes = rows["sockid"][lost]
        wrong = np.flatnonzero((sizes[lost] <= 0) | (causes > max(LossCause)))
        self._problems.add_each(
            wrong, start + lost,
            lambda at: f"LOST counts {sizes[lost[at]]} of cause {causes[at]}", rest=True,
        )  # fmt: skip

    def _judge(self, proof: Any) -> None:
        """The file has what the proof in its header counts."""
        report, problems, walk = self._report, self._problems, self._walk
        if not isinstance(proof, dict) or proof.get("digest") != digest_of(proof):
            problems.add_header("the digest of the proof in the header is wrong")
            return
        try:
            _fill(report, proof)
        except (AttributeError, KeyError, TypeError, ValueError):
            problems.add_header("the proof in the header cannot be read")
            return
        self._note_damage(False)
        report.ledger = True
        report.notes.append(_OF_LOG)
        if report.problems_total:
            problems.add_header(f"the log does not add up: {report.problems_total} problem(s)")
        if walk.open:
            problems.add_header(f"no checksum follows the last {walk.open} records: it is cut")
        if report.proven_end and not walk.ended:
            problems.add_header("it lacks the END that its log has: it is cut")
        if walk.lost != report.seq_lost:
            what = f"LOST counts {walk.lost}, the proof {report.seq_lost}"
            problems.add_header(what)
        if not report.problems_total:  # else nobody knows how many the log has
            self._compare()

    def _compare(self) -> None:
        """The records of each event are those of the proof; after its last ledger, any."""
        told = {row.name: row.in_file for row in self._report.rows}
        more = 0
        for kind in self._file.kinds:
            if kind.code >= FIRST_EVENT:
                found, in_file = int(self._counts[kind.code]), told.pop(kind.name, 0)
                more += found - in_file
                if found < in_file or (found > in_file and not self._report.after_checkpoint):
                    what = f"{found} records of {kind.name}, but the proof counts {in_file}"
                    self._problems.add_header(what)
        if any(told.values()):
            self._problems.add_header("the proof counts events that the header lacks")
        elif more != self._report.after_checkpoint and not self._problems.total:
            told_more = self._report.after_checkpoint
            what = f"{more} records after the last ledger, but the proof counts {told_more}"
            self._problems.add_header(what)

    def _judge_old(self) -> None:
        """Of a file that a capture wrote itself: its structure, and what it counts as lost."""
        report, walk = self._report, self._walk
        self._note_damage(not walk.ended)
        report.ledger, report.after_checkpoint = not walk.ended, walk.open
        report.words = {**WORDS, "no ledger in this file": "a file of before, with other ledgers"}
        report.seq_lost = max(walk.lost, self._losses.ledger) + self._losses.missed
        report.unchecked.append(_OF_BEFORE)
        if walk.open:
            report.unchecked.append(f"the last {walk.open} records (no control entry follows them)")
        try:
            report.part = part = find_part(self._file.header.get("settings"))
        except ValueError as error:
            self._problems.add_header(str(error))
            return
        if part is not None:
            before = part.previous
            part.entries = report.entries + (before.entries if before else 0)
            part.last_seq = report.entries + walk.lost + (before.last_seq if before else 0)
            part.goes_on, part.unsure = self._goes_on, True

    def _note_damage(self, is_open: bool) -> None:
        """What the walk found. is_open: the capture was killed, so that its tail is no damage."""
        for at, what in self._walk.problems:
            if is_open and at in (self._file.count, self._walk.cut_at):
                self._report.notes.append(what)
            else:
                self._problems.add(at, what)
        self._problems.count(max(0, self._walk.total - len(self._walk.problems)))


def _fill(report: Report, proof: Mapping[str, Any]) -> None:
    """Put the proof of a log into the report; an error where it is not as
    proof_of() makes it."""
    for name in _NUMBERS:
        setattr(report, name, _number(proof[name]))
    for name in _TEXTS:
        setattr(report, name, [_text(one) for one in proof[name]])
    reason = proof["end_reason"]
    report.end_reason = None if reason is None else _text(reason)
    report.proven_end = proof["proven_end"] is True
    report.unproven = {name: _text(way) for name, way in proof["unproven"].items()}
    for one in proof["missed"]:
        numbers = [_number(one[name]) for name in ("location", "recursion", "kprobe")]
        report.missed.append(Missed(numbers[0], _text(one["name"]), *numbers[1:]))
    for number, (name, counts) in enumerate(proof["events"].items()):
        told = {key: _number(counts[key]) for key in COUNTS}
        lost = {cause: _number(n) for cause, n in counts["lost"].items()}
        report.rows.append(Row(None, number, name, **told, lost=lost))


def _number(value: object) -> int:
    if type(value) is not int or abs(value) >= 1 << 63:
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value
