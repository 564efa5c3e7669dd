# SPDX-License-Identifier: Apache-2.0
"""The screen of tcpkmon top: its keys, and its lines, for a terminal of any width from 76 on.

    tcpkmon top of 4711   12 connections   by rate   /5201   paused
    LOCAL   REMOTE            STATE  SENT/s RECV/s SRTTms  MINms CWND  RTX  OWNER
    :5201   192.0.2.7:41022   ESTAB   1.2M   310K    12.4   11.9   34    2  nginx
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from formats.base.escape import for_terminal

WIDE = 110
"""From this width on, the local address is shown, not only its port."""
_STATES = ("", "ESTAB", "SYN-S", "SYN-R", "FIN1", "FIN2", "TIMEW", "CLOSE", "CLOSEW", "LASTA",
           "LISTEN", "CLOSNG")  # fmt: skip
_NO_MIN_RTT = 0xFFFFFFFF
_HEADS = {
    "acked": "SENT/s", "received": "RECV/s", "srtt_us": "SRTTms", "min_rtt_us": "MINms",
    "snd_cwnd_segs": "CWND", "retransmits": "RTX",
}  # fmt: skip
_HELP = "< > sort   / filter   space pause   q quit"
_ESCAPE, _ENTER, _DELETE = "\x1b", "\r\n", "\x7f\b"
_FIXED = 46
"""Columns of the terminal that all but the addresses and the owner take."""


@dataclass
class Screen:
    """The state of the screen. sorts: the keys there are; wanted: the filter's text."""

    sorts: Sequence[str]
    sort: str
    wanted: str = ""
    paused: bool = False
    stale: bool = False
    """Whether a key asks for other rows."""
    typing: str | None = None
    """The filter while it is typed."""
    answer: dict[str, Any] = field(default_factory=dict)

    def take(self, answer: dict[str, Any]) -> None:
        """Show these rows from now on: the answer of the op top."""
        self.answer = answer
        self.stale = False

    def press(self, key: str) -> bool:
        """A key; False for q."""
        if self.typing is not None:
            if key in _ENTER:
                self.wanted, self.typing = self.typing, None
            elif key == _ESCAPE:
                self.typing = None
            elif key in _DELETE:
                self.typing = self.typing[:-1]
            elif key.isprintable():
                self.typing += key
        elif key == "q":
            return False
        elif key in " p":
            self.paused = not self.paused
            self.stale = not self.paused
        elif key == "/":
            self.typing = ""
        elif key in "<>":
            step = 1 if key == ">" else -1
            place = (self.sorts.index(self.sort) + step) % len(self.sorts)
            self.sort = self.sorts[place]
            self.stale = True
        return True

    def draw(self, width: int, height: int) -> Group:
        """The screen's lines."""
        rows = [row for row in self._rows(width) if self._is_wanted(row)]
        has_owner = "comm" in self.answer.get("rows", {})
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=width)
        owner = (10 if width < WIDE else 20) if has_owner else 0
        room = max(12, width - _FIXED - owner - (23 if width >= WIDE else 7))
        table.add_column("LOCAL", width=22 if width >= WIDE else 6, no_wrap=True)
        table.add_column("REMOTE", width=room, no_wrap=True)
        table.add_column("STATE", width=6, no_wrap=True)
        for name, head in _HEADS.items():
            style = "reverse" if name == self.sort else ""
            narrow = 4 if head in ("CWND", "RTX") else 6
            table.add_column(head, width=narrow, justify="right", no_wrap=True, header_style=style)
        if has_owner:
            table.add_column("OWNER", width=owner - 1, no_wrap=True)
        for row in rows[: max(0, height - 3)]:
            row[1] = _cut(row[1], room)
            table.add_row(*map(Text, row))
        return Group(Text(self._title()[:width]), table, Text(_HELP[:width], style="dim"))

    def _title(self) -> str:
        count = self.answer.get("connections", 0)
        parts = [f"tcpkmon top of {self.answer.get('pid', '?')}", f"{count:,} connections"]
        parts.append(f"by {self.sort}")
        if self.typing is not None:
            parts.append(f"filter: {self.typing}_")
        elif self.wanted:
            parts.append(f"/{self.wanted}")
        if self.paused:
            parts.append("paused")
        return for_terminal("   ".join(parts))

    def _is_wanted(self, row: list[str]) -> bool:
        wanted = self.wanted if self.typing is None else self.typing
        return wanted.lower() in " ".join(row).lower()

    def _rows(self, width: int) -> list[list[str]]:
        columns = self.answer.get("rows", {})
        count = len(columns.get("id", ()))
        return [self._row({n: c[at] for n, c in columns.items()}, width) for at in range(count)]

    def _row(self, one: dict[str, Any], width: int) -> list[str]:
        local = f":{one.get('lport', '?')}"
        if width >= WIDE:
            local = f"{one.get('laddr', '')}{local}"
        state = one.get("state", 0)
        row = [
            local,
            f"{one.get('raddr', '')}:{one.get('rport', '?')}",
            _STATES[state] if state < len(_STATES) else str(state),
            short(one["acked_rate"]),
            short(one["received_rate"]),
            milliseconds(one.get("srtt_us") or None),
            milliseconds(one.get("min_rtt_us")),
            str(one.get("snd_cwnd_segs", "-")),
            str(one["retransmits"]),
        ]
        if "comm" in one:
            owner = one["comm"] or "-"
            row.append(f"{owner}/{one['pid']}" if one.get("pid") and width >= WIDE else owner)
        return [for_terminal(cell) for cell in row]


def short(number: float) -> str:
    """A number in five characters at most: 950, 1.2K, 31M."""
    for unit in ("", "K", "M", "G"):
        if number < 999.5:
            return f"{number:.1f}{unit}" if unit and number < 9.95 else f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def milliseconds(us: int | None) -> str:
    """Microseconds as milliseconds with three digits; - where there is no value."""
    if us is None or us == _NO_MIN_RTT:
        return "-"
    number = us / 1000
    return f"{number:.3f}" if number < 1 else f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def _cut(text: str, room: int) -> str:
    """The end of a text that is too long: an address's port is there."""
    return text if len(text) <= room else f"~{text[1 - room:]}"
