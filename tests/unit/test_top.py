# SPDX-License-Identifier: Apache-2.0
"""The screen of tcpkmon top: its lines at several widths, and its keys."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.collector.commands.top_screen import Screen
from tcpkmon.collector.metrics.words import SORTS
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError

ANSWER: dict[str, Any] = {
    "pid": 4711,
    "connections": 1234, "opened_rate": 204.0, "closed_rate": 1999.6,
    "groups": ["port", "peer"],
    "rows": {
        "id": [7, 8], "laddr": ["192.168.100.200", "2001:db8:0:1:1:1:1:1"], "lport": [5201, 65535],
        "raddr": ["192.0.2.7", "2001:db8:0:1:1:1:1:2"], "rport": [41022, 65534],
        "state": [1, 250], "acked_rate": [1234567.0, 0.0], "received_rate": [950.0, 3.1e10],
        "srtt_us": [12345, 0], "min_rtt_us": [42, 0xFFFFFFFF], "snd_cwnd_segs": [34, 12345],
        "retransmits": [2, 9999], "comm": ["nginx", "a\x1b[31mb"], "pid": [77, 0],
    },
}  # fmt: skip


def draw(screen: Screen, width: int, height: int = 24) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, width=width, height=height, markup=False, highlight=False)
    console.print(screen.draw(width, height))
    return written.getvalue().splitlines()


def make(**values: Any) -> Screen:
    screen = Screen(name="web", **values)
    screen.take(ANSWER)
    return screen


@pytest.mark.parametrize("width", [76, 80, 109, 110, 132, 200])
def test_a_connection_has_one_line_of_any_width(width: int) -> None:
    lines = draw(make(), width)
    assert len(lines) == 5
    assert all(len(line) <= width for line in lines)
    cells = lines[2].split()
    assert cells[0].endswith(":5201")
    assert cells[2:9] == ["ESTAB", "1.2M", "950", "12.3", "0.042", "34", "2"]
    assert "\x1b" not in "".join(lines), "names of processes are escaped"
    assert lines[3].split()[2] == "250", "a state of a later kernel"
    assert lines[3].split()[4:7] == ["31G", "-", "-"]


def test_80_columns_show_whole_ipv4_addresses_and_the_owner() -> None:
    lines = draw(make(), 80)
    assert lines[0].startswith("tcpkmon top of web   1,234 connections   +204/s -2.0K/s   sort")
    assert lines[2].split()[1] == "192.0.2.7:41022"
    assert lines[2].split()[-1] == "nginx"
    assert lines[3].split()[1].endswith("1:2:65534"), "of a longer one its end"
    assert draw(make(), 132)[2].split()[-1] == "nginx/77"


def test_a_wide_screen_says_whose_they_are() -> None:
    """The pod, else the container, else the unit; nothing else moves out of its line."""
    screen = make()
    whose = {"unit": ["nginx.service", ""], "container": ["web", ""], "pod": ["", ""]}
    screen.take({**ANSWER, "rows": {**ANSWER["rows"], **whose}})
    lines = draw(screen, 150)
    assert len(lines) == 5 and all(len(line) <= 150 for line in lines)
    assert lines[1].split()[-1] == "WHOSE"
    assert [line.split()[-1] for line in lines[2:4]] == ["web", "-"]
    assert "WHOSE" not in draw(screen, 110)[1] and "WHOSE" not in draw(make(), 150)[1]


def test_keys() -> None:
    screen = make()
    assert not screen.press("q")
    assert screen.press(">") and screen.sort == SORTS[1] and screen.stale
    screen.take(ANSWER)
    screen.press("<")
    screen.press("<")
    assert screen.sort == SORTS[-1]
    screen.press(" ")
    assert screen.paused and "paused" in draw(screen, 80)[0]
    screen.press(" ")
    assert not screen.paused and screen.stale
    for key in "/ngiq\x7fn":
        screen.take(ANSWER)
        assert screen.press(key), "q is a letter of the filter"
    assert "filter: ngin_" in draw(screen, 100)[0]
    assert screen.filter == "ngin" and screen.stale, "it asks for what has it while it is typed"
    screen.press("\r")
    assert screen.wanted == "ngin"
    for key in "/x\x1b":
        screen.press(key)
    assert screen.wanted == screen.filter == "ngin", "given up"


def test_the_key_g_goes_through_the_groups_that_there_are() -> None:
    screen = make(sort="srtt_us")
    seen = []
    for _ in range(3):
        screen.press("g")
        seen.append((screen.by, screen.sort))
        screen.press(">")
        screen.take(ANSWER)
    assert seen == [("port", "rate"), ("peer", "rate"), ("", "rate")]


@pytest.mark.parametrize("width", [80, 160])
def test_a_group_has_one_line(width: int) -> None:
    names = ("open", "acked_rate", "received_rate", "opened_rate", "closed_rate",
             "retransmits_rate", "srtt_us")  # fmt: skip
    columns = {name: [12.0, 1234567.0] for name in names}
    groups = ["2001:db8:0:1:1:1:1:1", "a\x1b[31mb"]
    screen = make(by="peer", sort="opened")
    screen.take({**ANSWER, "by": "peer", "rows": {"group": groups, **columns}})
    lines = draw(screen, width)
    assert len(lines) == 5 and all(len(line) <= width for line in lines)
    assert lines[1].split()[:4] == ["PEER", "OPEN", "OPENED/s", "CLOSED/s"]
    assert lines[2].split() == [groups[0], *["12"] * 5, "0.012", "12"]
    assert lines[3].split()[1:] == [*["1.2M"] * 5, "1235", "1.2M"]
    assert "\x1b" not in "".join(lines)


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, ["top"], "tcpkmon") == UsageError.exit_code
    assert "needs a terminal" in capsys.readouterr().err
    assert run(command, ["top", "--sort", "name"], "tcpkmon") == UsageError.exit_code
    assert "choose rate, acked" in capsys.readouterr().err
