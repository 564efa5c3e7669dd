# SPDX-License-Identifier: Apache-2.0
"""The screen of tcpkmon top: its keys, and its lines, for a terminal of any width from 76 on.

    tcpkmon top of web   12 connections   +200/s -199/s   sort rate   /5201   paused
    LOCAL   REMOTE            STATE  SENT/s RECV/s SRTTms  MINms CWND  RTX  OWNER
    :5201   192.0.2.7:41022   ESTAB   1.2M   310K    12.4   11.9   34    2  nginx

    PORT                      OPEN  OPENED/s CLOSED/s SENT/s RECV/s SRTTms RTX/s
    local 5201                  12       200      199   1.2M   310K   12.4     2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tcpkmon.collector.metrics.words import GROUP_SORTS, GROUPS, MOST_WANTED, SORTS, STATES
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import counted

WIDE = 110
"""From this width on, the local address is shown, not only its port."""
WHOSE = 140
"""From this width on, the pod, else the container, else the unit is shown, if it is known."""
_NO_MIN_RTT = 0xFFFFFFFF
_HEADS = {
    "acked": "SENT/s", "received": "RECV/s", "srtt_us": "SRTTms", "min_rtt_us": "MINms",
    "snd_cwnd_segs": "CWND", "retransmits": "RTX",
}  # fmt: skip
_GROUP_HEADS = {
    "open": "OPEN", "opened": "OPENED/s", "closed": "CLOSED/s", "acked": "SENT/s",
    "received": "RECV/s", "srtt_us": "SRTTms", "retransmits": "RTX/s",
}  # fmt: skip
_HELP = "< > sort   g groups   / filter   space pause   q quit"
_ESCAPE, _ENTER, _DELETE = "\x1b", "\r\n", "\x7f\b"
_FIXED = 46
"""Columns of the terminal that all but the addresses and the owner take."""


@dataclass
class Screen:
    """The state of the screen. sort, by, wanted: what it asks for, see Watching.top(); name: of the
    capture."""

    sort: str = SORTS[0]
    by: str = ""
    wanted: str = ""
    name: str = "?"
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
                self.typing = (self.typing + key)[:MOST_WANTED]
            self.stale = True
        elif key == "q":
            return False
        elif key in " p":
            self.paused = not self.paused
            self.stale = not self.paused
        elif key == "/":
            self.typing = ""
        elif key == "g":
            choices = ["", *(by for by in GROUPS if by in self.answer.get("groups", ()))]
            self.by = choices[(choices.index(self.by) + 1) % len(choices)]
            self.sort = SORTS[0]
            self.stale = True
        elif key in "<>":
            step = 1 if key == ">" else -1
            sorts = sorts_of(self.by)
            self.sort = sorts[(sorts.index(self.sort) + step) % len(sorts)]
            self.stale = True
        return True

    @property
    def filter(self) -> str:
        """The text that connections must have, also while it is typed."""
        return self.wanted if self.typing is None else self.typing

    def draw(self, width: int, height: int) -> Group:
        """The screen's lines."""
        columns = self.answer.get("rows", {})
        count = len(next(iter(columns.values()), ()))
        rows = ({n: c[at] for n, c in columns.items()} for at in range(count))
        shown = [row for row, _ in zip(rows, range(max(0, height - 3)), strict=False)]
        is_grouped = bool(self.answer.get("by"))
        table = self._groups(shown, width) if is_grouped else self._connections(shown, width)
        return Group(Text(self._title()[:width]), table, Text(_HELP[:width], style="dim"))

    def _connections(self, rows: list[dict[str, Any]], width: int) -> Table:
        has_owner = "comm" in self.answer.get("rows", {})
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=width)
        owner = (10 if width < WIDE else 20) if has_owner else 0
        whose = 24 if width >= WHOSE and "unit" in self.answer.get("rows", {}) else 0
        room = max(12, width - _FIXED - owner - whose - (23 if width >= WIDE else 7))
        table.add_column("LOCAL", width=22 if width >= WIDE else 6, no_wrap=True)
        table.add_column("REMOTE", width=room, no_wrap=True)
        table.add_column("STATE", width=6, no_wrap=True)
        for name, head in _HEADS.items():
            self._add_number(table, name, head, 4 if head in ("CWND", "RTX") else 6)
        if has_owner:
            table.add_column("OWNER", width=owner - 1, no_wrap=True)
        if whose:
            table.add_column("WHOSE", width=whose - 1, no_wrap=True)
        for one in rows:
            row = self._row(one, width)
            if whose:
                name = one["pod"] or one["container"] or one["unit"] or "-"
                row.append(_cut(for_terminal(name), whose - 1))
            row[1] = _cut(row[1], room)
            table.add_row(*map(Text, row))
        return table

    def _groups(self, rows: list[dict[str, Any]], width: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        widths = {head: max(6, len(head)) for head in _GROUP_HEADS.values()}
        room = max(16, min(46, width - sum(widths.values()) - len(widths) - 1))
        table.add_column(str(self.answer["by"]).upper(), width=room, no_wrap=True)
        for name, head in _GROUP_HEADS.items():
            self._add_number(table, name, head, widths[head])
        for one in rows:
            cells = [
                milliseconds(round(one[name]) or None) if name == "srtt_us"
                else short(one[name if name == "open" else f"{name}_rate"])
                for name in _GROUP_HEADS
            ]  # fmt: skip
            table.add_row(*map(Text, (_cut(for_terminal(one["group"]), room), *cells)))
        return table

    def _add_number(self, table: Table, name: str, head: str, width: int) -> None:
        style = "reverse" if name == self.sort else ""
        table.add_column(head, width=width, justify="right", no_wrap=True, header_style=style)

    def _title(self) -> str:
        count = self.answer.get("connections", 0)
        opened, closed = (short(self.answer.get(f"{n}_rate", 0.0)) for n in ("opened", "closed"))
        parts = [f"tcpkmon top of {self.name}", counted(count, "connection")]
        parts += [f"+{opened}/s -{closed}/s", f"sort {self.sort}"]
        if self.typing is not None:
            parts.append(f"filter: {self.typing}_")
        elif self.wanted:
            parts.append(f"/{self.wanted}")
        if self.paused:
            parts.append("paused")
        return for_terminal("   ".join(parts))

    def _row(self, one: dict[str, Any], width: int) -> list[str]:
        local = f":{one.get('lport', '?')}"
        if width >= WIDE:
            local = f"{one.get('laddr', '')}{local}"
        state = one.get("state", 0)
        row = [
            local,
            f"{one.get('raddr', '')}:{one.get('rport', '?')}",
            STATES[state] if state < len(STATES) else str(state),
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


def sorts_of(by: str) -> tuple[str, ...]:
    """The keys to sort by."""
    return GROUP_SORTS if by else SORTS


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
