# SPDX-License-Identifier: Apache-2.0
"""The screen of tcpkmon top: its lines at several widths, and its keys."""

from __future__ import annotations

import io
import os
import pty
import threading
import time
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tcpkmon.collector.commands import top
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.collector.commands.top_screen import Screen
from tcpkmon.collector.metrics import shown
from tcpkmon.collector.metrics.words import SORTS, STATES
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import address_of, text_of

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


V4 = bytes(10) + b"\xff\xff"
DTYPE = np.dtype([
    ("lport", ">u2"), ("rport", ">u2"), ("laddr", "V16"), ("raddr", "V16"), ("state", "u4"),
    ("pid", "u4"), ("comm", "V16"),
])  # fmt: skip


def many(count: int, seed: int = 1) -> Any:
    random = np.random.default_rng(seed)
    rows = np.zeros(count, DTYPE)
    rows["lport"] = random.choice([80, 443, 5201], count)
    rows["rport"] = random.integers(1, 65536, count)
    hosts = [V4 + bytes([192, 0, 2, n]) for n in range(200)]
    hosts += [bytes([0x20, 1, 0xD, 0xB8, *[0] * 10, n, 7]) for n in range(20)]
    rows["laddr"] = np.array(hosts, "V16")[random.integers(0, 3, count)]
    rows["raddr"] = np.array(hosts, "V16")[random.integers(0, len(hosts), count)]
    rows["state"] = random.choice([1, 8, 250], count)
    rows["pid"] = random.choice([0, 17, 4711], count)
    rows["comm"] = np.array([b"nginx", b"", b"Redis"], "S16").view("V16")[
        random.integers(0, 3, count)
    ]
    return rows


def by_hand(row: Any, text: str) -> bool:
    cells = [f"{address_of(bytes(row[f'{side}addr']))}:{row[f'{side}port']}" for side in "lr"]
    state = int(row["state"])
    cells.append(STATES[state] if state < len(STATES) else str(state))
    name = text_of(bytes(row["comm"]))
    cells.append(f"{name}/{row['pid']}" if row["pid"] else name or "-")
    return any(text.lower() in cell.lower() for cell in cells)


@pytest.mark.parametrize(
    "text",
    ["5", "52", "5201", "192.0.2.1", "2.1:5", ":5201", ":", "8:", "db8::", "::1:7:4", "7:44",
     "ESTAB", "estab", "250", "nginx", "redis/4711", "x/1", "/", "-", "nothing", "1:2:3", "\u0665",
     "192.0.2.7:"],
)  # fmt: skip
def test_it_finds_what_the_cells_have(text: str) -> None:
    rows = many(400)
    wanted = [by_hand(row, text) for row in rows]
    assert shown.wanted(rows, text).tolist() == wanted
    assert shown.wanted(rows[:0], text).tolist() == []
    few = rows[["lport", "rport", "state"]]
    assert shown.wanted(few, ":52").tolist() == [
        any(f":{row[name]}".startswith(":52") for name in ("lport", "rport")) for row in few
    ]


class Capture:
    """What the screen asks."""

    collector = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def top(self, sort: str, most: int, by: str, wanted: str) -> dict[str, Any]:
        self.asked.append(wanted)
        return {"rows": {}, "groups": []}


def test_what_is_typed_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tcpkmon.collector.control import choosing

    main, terminal = pty.openpty()
    capture = Capture()
    monkeypatch.setattr(choosing, "name_of", lambda _: "web")
    monkeypatch.setattr(top.sys, "stdin", os.fdopen(terminal, "r"))
    monkeypatch.setattr(top, "REFRESH_S", 60.0)
    monkeypatch.setattr(top, "TYPING_S", 1.0)
    thread = threading.Thread(target=top.show, args=(capture, Screen()))
    thread.start()
    until = time.monotonic() + 30
    while not capture.asked and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)
    for letter in b"/nginx":
        os.write(main, bytes([letter]))
        time.sleep(0.05)
    while len(capture.asked) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    os.write(main, b"\nq")
    thread.join(30)
    assert not thread.is_alive()
    assert capture.asked[:2] == ["", "nginx"] and len(capture.asked) <= 3
    os.close(main)
