# SPDX-License-Identifier: Apache-2.0
"""The filter of tcpkmon top: what it finds, what it costs, and how often it is asked."""

from __future__ import annotations

import os
import pty
import threading
import time
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.commands import top
from tcpkmon.collector.commands.top_screen import Screen
from tcpkmon.collector.metrics import shown
from tcpkmon.collector.metrics.words import STATES
from tcpkmon.formats.base.text import address_of, text_of

V4 = bytes(10) + b"\xff\xff"
DTYPE = np.dtype([
    ("lport", ">u2"), ("rport", ">u2"), ("laddr", "V16"), ("raddr", "V16"), ("state", "u4"),
    ("pid", "u4"), ("comm", "V16"),
])  # fmt: skip


def make(count: int, seed: int = 1) -> Any:
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
    rows = make(400)
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
