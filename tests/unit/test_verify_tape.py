# SPDX-License-Identifier: Apache-2.0
"""The proof of a tape of any format: ledgers, an end, a window and its triggers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.base.control import Trigger
from tcpkmon.formats.verify.ledger import COUNTERS, CPU_COUNTERS, PROGRAM_COUNTERS, Ledger, Table
from tcpkmon.formats.verify.report import NOT_CLOSED, Part, Problems, Report
from tcpkmon.formats.verify.run import Decoder, End, Found, Item, Opening, Records, Told, prove

POINT = 40
PREVIOUS = {"name": "", "last_seq": 0, "entries": 0, "checkpoints": 0, "skipped": 0, "serials": {},
            "lost": {}, "evicted": True}  # fmt: skip
DUMP = {
    "segment": {"capture": "0" * 32, "number": 1, "previous": PREVIOUS},
    "recorder": {"from_ns": 5, "triggers": ["rtt > 1ms"]},
}


class Books(Ledger):
    texts = MappingProxyType(dict.fromkeys(
        ("attempts", "serials", "came out", "damaged", "read", "ring_lost", "late", "in file",
         "fell"), "{told} is {found}",
    ))  # fmt: skip
    slack = MappingProxyType({})

    def where(self, key: int, has_cpu: bool = True) -> str:
        return "A"

    def program(self, key: int) -> tuple[int, str]:
        return 0, "program"


def books(entry: int, records: int, final: bool = True) -> Books:
    """A ledger of one CPU and one event, of which nothing was lost."""
    points = np.zeros((1, len(COUNTERS)), np.uint64)
    for name in ("attempts", "written", "in_file"):
        points[0, COUNTERS.index(name)] = records
    cpus = np.array([[records, records, 0, 0, 0]], np.uint64)
    return Books(
        entry, entry + 1, 0, final, Table(COUNTERS, np.array([POINT]), points),
        Table(CPU_COUNTERS, np.array([0]), cpus), Table(PROGRAM_COUNTERS),
    )  # fmt: skip


class Tape(Decoder):
    existing = None

    def __init__(self, items: Sequence[Item], settings: object = None) -> None:
        super().__init__(Report("x", ledger=True), Problems(0, 1), settings)
        self._items = items

    def tape(self) -> Iterator[Item]:
        yield from self._items

    def name(self, point: int) -> str:
        return "A"

    def conclude(self, found: Found) -> None:
        self.report.entries = 9

    def describe(self, part: Part, found: Found) -> None:
        part.last_seq = 1


def records(count: int) -> Records:
    return Records(np.full(count, POINT))


def end(entry: int = 6, **more: Any) -> End:
    return End(entry, **{"reason": "asked", "is_last": True, "stamp_ns": 8, "mono_ns": 8} | more)


def whats(report: Report) -> list[str]:
    return [problem.what for problem in report.problems]


def test_a_tape_adds_up() -> None:
    report = prove(Tape([records(2), records(3), books(5, 5), end()]))
    assert (report.exit_code, report.verdict) == (0, "adds up: nothing lost")
    assert [(row.name, row.in_file) for row in report.rows] == [("A", 5)]


def test_a_ledger_counts_what_is_before_it_began() -> None:
    tape = [records(5), Opening(), records(1), books(5, 5, final=False), books(6, 6), end(7)]
    assert prove(Tape(tape)).exit_code == 0
    assert whats(prove(Tape([records(5), records(1), books(5, 5), end()])))[0] == "5 is 6"


@pytest.mark.parametrize(
    ("tape", "what"),
    [
        ([records(5), books(5, 5, final=False), end()], "END without a final checkpoint before it"),
        ([books(4, 0), books(5, 0), end()], "a checkpoint follows the final one"),
        ([books(5, 0), records(1), end()], "snapshots follow the final checkpoint"),
        ([books(5, 0), end(reason="rotated")], "END says that another file follows this one"),
        ([books(5, 0), end(reason="dumped")], "END of a dump in a file that is none"),
    ],
)
def test_the_rules_of_an_end(tape: list[Item], what: str) -> None:
    assert what in whats(prove(Tape(tape)))


def test_an_end_directly_follows_the_ledger_that_was_made_for_it() -> None:
    for closed in (end(7), end(is_last=False)):
        report = prove(Tape([books(5, 0), closed]))
        assert (report.exit_code, report.notes) == (3, [NOT_CLOSED])
    early, settings = books(5, 0, final=False), {"segment": {**DUMP["segment"], "previous": None}}
    early.stamp_ns = 7
    assert prove(Tape([early, end(reason="rotated")], settings)).exit_code == 3
    assert prove(Tape([early, end(reason="rotated", stamp_ns=7)], settings)).exit_code == 0
    early.is_base = True
    dump = prove(Tape([early, end(reason="dumped", stamp_ns=7)], DUMP))
    assert dump.exit_code == 3, "the first ledger counts what is before the file"


@pytest.mark.parametrize("number", [-1, 2])
def test_a_trigger_that_the_header_lacks_is_a_problem_and_has_no_line(number: int) -> None:
    first, last = books(1, 0, final=False), books(5, 0)
    first.is_base = True
    tape: list[Item] = [first, Told(2, Trigger(1, 6, 0, 7, 1, 0)), last, end(reason="dumped")]
    assert prove(Tape(tape, DUMP)).window[1:] == [
        "trigger: rtt > 1ms, at 1970-01-01T00:00:00.000000Z, noticed after 0.0 ms"
    ]
    report = prove(Tape([*tape[:1], Told(2, Trigger(number, 6, 0, 7, 1, 0)), *tape[2:]], DUMP))
    assert whats(report) == [f"trigger {number} of 1 that the header has"]
    assert len(report.window) == 1


def test_a_yes_is_no_time() -> None:
    settings = {**DUMP, "recorder": {"from_ns": True}}
    report = prove(Tape([books(5, 0), end(reason="dumped")], settings))
    assert "the header's description of this dump cannot be read" in whats(report)
