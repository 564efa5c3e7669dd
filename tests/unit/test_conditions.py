# SPDX-License-Identifier: Apache-2.0
"""The language of conditions is one: what it says does not depend on who asks. Its page is run."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.plan.columns import (
    EVENT,
    choose_columns,
    load_schema,
    locations_of,
    make_layout,
)
from tcpkmon.collector.plan.triggers import compile_triggers
from tcpkmon.formats.analysis.check import Capture, check, compile_assertions, parse_where
from tcpkmon.formats.analysis.check.scope import Table
from tcpkmon.formats.analysis.diff import parse_conditions
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.expressions import ExpressionError
from tcpkmon.formats.conditions import FUNCTIONS
from tests.unit.psc_files import write_capture

PAGE = Path(__file__).parents[2] / "docs" / "conditions.md"
SCHEMA = load_schema()
LAYOUT = make_layout(SCHEMA, choose_columns(SCHEMA.event(EVENT), "default,seg_ack"), ())
VALUES = {"srtt_us": [100, 5000, 5001], "min_rtt_us": [100, 0, 5001], "snd_wnd": [0, 7, 2**32 - 1],
          "time_ns": [1, 5_000_500, 5_001_000]}  # fmt: skip


def as_trigger(text: str) -> list[bool]:
    rows = np.zeros(3, LAYOUT.dtype)
    rows["location"] = 1
    for name, values in VALUES.items():
        rows[name] = values
    (trigger,) = compile_triggers([text], LAYOUT, locations_of(SCHEMA))
    found: list[bool] = trigger.mask(rows).tolist()
    return found


def as_assertion(text: str) -> list[bool]:
    columns: dict[str, Any] = {name: np.array(values) for name, values in VALUES.items()}
    (one,), _ = compile_assertions([f"{text} and time_ns >= 0"], dict.fromkeys(columns, "number"))
    found: list[bool] = one.value.holds(Table("record", columns, 3, 0, {}, np.array)).tolist()
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("srtt_us > 5ms", [False, False, True]),
        ("srtt_us > 5000", [False, False, True]),
        ("srtt_us * 1k < 5001us", [False, False, False]),
        ("srtt_us / min_rtt_us >= 1", [True, False, True]),
        ("srtt_us - min_rtt_us == 0", [True, False, True]),
        ("time_ns >= srtt_us", [False, True, True]),
        ("snd_wnd * 2 > 4G or srtt_us == 100us", [True, False, True]),
        ("not snd_wnd == 7", [True, False, True]),
        ("-srtt_us <= -5ms", [False, True, True]),
        ("srtt_us > 2ms + 3 * 1ms", [False, False, True]),
    ],
)
def test_triggers_and_assertions_say_the_same(text: str, found: list[bool]) -> None:
    assert as_trigger(text) == found
    assert as_assertion(text) == found


@pytest.mark.parametrize(
    "text",
    ["srtt_us > snd_wnd", "srtt_us * min_rtt_us > 1", "1 / srtt_us > 1", "1 < 2", "srtt_us",
     "srtt_us > 1 / 0", "(srtt_us > 1) > 2", "srtt_uz > 1", "srtt_us + snd_wnd > 1"],
)  # fmt: skip
def test_mistakes_are_told_in_the_same_words(text: str) -> None:
    told = []
    for read in (as_trigger, as_assertion):
        with pytest.raises(ExpressionError) as caught:
            read(text)
        told.append([(one.what, one.at) for _, one in caught.value.mistakes])
    trigger, assertion = told
    assert [at for _, at in trigger] == [at for _, at in assertion]
    if "srtt_uz" not in text:  # a column of a record, an event or a condition
        assert trigger == assertion


def test_every_function_is_on_the_page_and_computes(tmp_path: Path) -> None:
    capture = Capture(write_capture(tmp_path / "run.pm", 300, 2))
    text = PAGE.read_text()
    for name, function in FUNCTIONS.items():
        assert re.search(rf"`[^`]*\b{name}\b", text), name
        argument = {"number": "mss", "bool": "mss > 0", "": ""}[function.takes]
        condition = f"{name}({argument})" + (" >= 0" if function.takes != "bool" else "")
        (result,) = check(capture, [condition])
        assert result.ok, result


def test_the_page_is_right() -> None:
    """What its commands have in quotes is read as they read it; what it shows of a mistake is told.
    """
    text, names = PAGE.read_text(), (*VALUES, "rport")
    read: dict[str, Any] = {
        "--on": as_trigger,
        "--where": parse_where,
        "--fail-if": lambda given: parse_conditions([given]),
        "check": lambda given: compile_assertions([given], dict.fromkeys(names, "number")),
    }
    seen = set()
    for line in re.findall(r"^    ((?:collect|tcpkmon) [^:\n]*'.*)$", text, re.MULTILINE):
        words = shlex.split(line)
        options = [pair for pair in pairwise(words) if pair[0] in {*read} - {"check"}]
        options += [("check", word) for word in words[3:] if words[1] == "check"]
        for option, given in options:
            read[option](given)
            seen.add(option)
    assert seen == set(read)
    what, shown, caret = re.findall(r"^    (?:tcpkmon check: |  )(.*)$", text, re.MULTILINE)
    with pytest.raises(TcpkmonError) as caught:
        as_assertion(shown)
    assert caught.value.lines()[0] == what
    assert caret.index("^") == shown.index(">")
