# SPDX-License-Identifier: Apache-2.0
"""Control entries: where each number stands, round trips, and what is taken for one."""

from __future__ import annotations

import dataclasses
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.drops import DropPlace
from tcpkmon.formats.base.reconciled import Reconciled
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.base.whose import GroupPart
from tcpkmon.formats.klogger import overlap
from tcpkmon.formats.psc.columns import CLASSIC, Column, entry_dtype
from tcpkmon.formats.schema import load
from tests.unit.log_files import BASE

BIG = 2**40 + 3  # low word 3, high word 256

# Every entry as the contract has it: location, callvalue, the words.
EXAMPLES: list[tuple[control.Control, int, int, list[int]]] = [
    (control.Start(BIG, 5, 2, 16), 224, 2, [3, 256, 5, 0, 2, 16]),
    (control.Clock(BIG, BIG, 7, -2), 225, 0, [3, 256, 3, 256, 7, 2**32 - 2, 2**32 - 1]),
    (control.Loss(3, 11, BIG, control.LossCause.LATE), 227, 3, [11, 0, 3, 256, 1]),
    (control.Checkpoint(9, BIG, 4, 30, 1), 228, 9, [3, 256, 4, 0, 30, 1]),
    (control.Mark(6, "abcde"), 229, 6, [0x64636261, 0x65]),
    (control.End(control.EndReason.COUNT, BIG, 2, 8), 230, 2, [3, 256, 2, 0, 8]),
    (control.Ledger(1, 19, BIG, 2, 3, 4), 231, 0x10013, [3, 256, 2, 0, 3, 0, 4, 0]),
    (control.Losses(2, 1, 5, 6, 7, 8, BIG), 232, 0x20001, [5, 0, 6, 0, 7, 0, 8, 0, 3, 256]),
    (control.Cpu(3, 1, 2, 3, BIG, 1, 9), 233, 3, [1, 0, 2, 0, 3, 0, 3, 256, 1, 9]),
    (control.Program(17, BIG, 2, 3, 4), 234, 17, [3, 256, 2, 0, 3, 0, 4, 0]),
    (control.Collector(1, 2, 3, 4, 5, 6, BIG), 235, 0x10002, [3, 0, 4, 0, 5, 0, 6, 0, 3, 256]),
    (control.Change(2, 3, BIG, 5, 6, 7, 1), 236, 0x20003, [3, 256, 5, 0, 6, 0, 7, 0, 1]),
    (control.Trigger(2, BIG, 5, 6, 7, 8), 237, 2, [3, 256, 5, 0, 6, 0, 7, 8]),
    (Reconciled(1, 3, BIG, 5, 6, 7), 238, 0x10003, [3, 256, 5, 0, 6, 0, 7]),
    (GroupPart(1, 2, BIG, b"abcdefgh"), 239, 0x10002, [3, 256, 0x64636261, 0x68676665]),
    (Unseen(BIG, 5), 240, 0, [3, 256, 5, 0]),
    (DropPlace(7, b"abcdefgh"), 241, 7, [0x64636261, 0x68676665]),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example[0]).__name__)
def test_each_number_stands_in_its_place(
    example: tuple[control.Control, int, int, list[int]],
) -> None:
    entry, location, callvalue, words = example
    words += [0] * (10 - len(words))
    assert entry.location == location
    assert entry.callvalue() == callvalue
    assert list(entry.words()) == words
    assert facts.decode(callvalue, location, words) == entry


def test_every_kind_has_an_example() -> None:
    assert {location for _, location, _, _ in EXAMPLES} == set(facts.KINDS)
    assert set(facts.NAMES) == {*facts.KINDS, control.EXISTING}
    assert facts.NAMES[231] == "LEDGER"


WORD = st.integers(0, 2**32 - 1)


TEXTS = (control.Mark, GroupPart, DropPlace)
NUMBERS_ONLY = sorted(set(facts.KINDS) - {kind.location for kind in TEXTS})


@given(st.sampled_from(NUMBERS_ONLY), WORD, st.lists(WORD, min_size=10, max_size=10))
def test_any_words_decode_and_come_back(location: int, callvalue: int, words: list[int]) -> None:
    entry = facts.decode(callvalue, location, words)
    assert facts.decode(entry.callvalue(), location, entry.words()) == entry


def test_numbers_too_large_are_held_at_the_limit() -> None:
    entry = control.Cpu(0, 2**70, 0, 0, 0, 1, 2**32)
    assert entry.words() == (2**32 - 1, 2**32 - 1, 0, 0, 0, 0, 0, 0, 1, 2**32 - 1)
    assert control.Clock(0, -5, 2**40, -(2**70)).words()[2:7] == (0, 0, 2**32 - 1, 0, 2**31)
    assert control.Loss(2**40, 0, 1, 0).callvalue() == 2**32 - 1
    assert control.Ledger(70000, 19, 0, 0, 0, 0).callvalue() == 0xFFFF0013


def test_mark_is_cut_at_a_character() -> None:
    mark = control.Mark(1, "x" * 39 + "é")
    assert facts.decode(1, 229, mark.words()) == control.Mark(1, "x" * 39)
    broken = facts.decode(1, 229, [0xFFFFFFFF] + [0] * 9)
    assert broken == control.Mark(1, "\ufffd" * 4)


def test_what_is_a_control_entry() -> None:
    location = np.array([0, 1, 223, 224, 225, 226, 227, 235, 236, 2**32 - 1], np.uint32)
    expected = [False, False, False, True, True, False, True, True, True, True]
    assert control.is_control(location).tolist() == expected


def classic_columns(absent: tuple[str, ...] = ()) -> list[Column]:
    return [
        Column(name, offset, 0 if name in absent else length, flags=int(name.endswith("port")))
        for name, (offset, length) in CLASSIC.items()
    ]


@pytest.mark.parametrize("order", ["<", ">", "="])
@pytest.mark.parametrize("absent", [(), ("snd_fack", "sb_net_target", "m_clused")])
def test_encode_many(order: str, absent: tuple[str, ...]) -> None:
    dtype = entry_dtype([*classic_columns(absent), Column("seq", 64, 8)], 80, order)
    entries = [entry for entry, _, _, _ in EXAMPLES]
    rows = control.encode_many(iter(entries), dtype)
    assert (rows.dtype, rows.shape) == (dtype, (len(entries),))
    words = control.words_view(rows, order)
    assert words.shape == (len(entries), 10)
    for row, entry in zip(range(len(rows)), entries, strict=True):
        callvalue, location = int(rows["callvalue"][row]), int(rows["location"][row])
        assert facts.decode(callvalue, location, words[row].tolist()) == entry
    for name in ("seq_no", "tv_sec", "tv_usec", "lport", "rport", "seq"):
        assert not rows[name].any()
    # Ledger: attempts' low word stands at byte 24 of its entry, whatever columns there are.
    ledger = rows[6].tobytes()
    assert struct.unpack_from(f"{order}I", ledger, 12) == (0x10013,)
    assert struct.unpack_from(f"{order}II", ledger, 24) == (3, 256)


def test_the_document_places_each_number_as_the_code_does() -> None:
    text = (Path(__file__).parents[2] / "docs" / "psc-format.md").read_text(encoding="utf-8")
    rows = {
        int(row[1]): (row[2], re.findall(r"\bw(\d+) ", row[3]))
        for row in re.finditer(r"^\| (2\d\d) \| (\w+) \| .*? \| (.*) \|$", text, re.MULTILINE)
    }
    widths = {"U32": 1, "U64": 2, "S64": 2}
    for location, kind in facts.KINDS.items():
        if kind in TEXTS:
            continue
        places, at = [], 0
        for field in dataclasses.fields(kind):
            width = widths.get(str(field.type), 0)
            if width:
                places.append("".join(str(at + word) for word in range(width)))
            at += width
        assert rows[location] == (facts.NAMES[location], places)


def test_the_events_of_logs_are_those_of_the_facts() -> None:
    declared = {event.name: event for event in load([BASE]).events}
    assert set(declared) == overlap.BASE
    for kind in facts.KINDS.values():
        if kind.event:
            fields = [field.name for field in declared[kind.event].fields]
            assert sorted(fields) == sorted(facts.event_fields(kind))
