# SPDX-License-Identifier: Apache-2.0
"""The tab-delimited table of `tcpkmon magnet-parse`: a line of names, then one for each record."""

from __future__ import annotations

from collections.abc import Iterable

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.klogger.lines import TIME, Head, Piece, Style
from tcpkmon.formats.klogger.table import NUMBERS, LogEvent
from tcpkmon.formats.magnet.header import Kind, data_of
from tcpkmon.formats.magnet.layout import IP, TCP, Layout
from tcpkmon.formats.magnet.reader import field_of

_HEADS = ("sockid", TIME, "event", "size")
NOTHING = "-"


class TabStyle(Style):
    """Columns: those of struct magnet_data, then with data those of magnet_tcp and magnet_ip.

    NOTHING is in those that a record does not have.
    """

    def __init__(self, clock: str, layout: Layout) -> None:
        super().__init__(clock, with_cpu=False)
        self._layout = layout
        self._more = (*TCP, *IP) if layout.data else ()
        self.begin = "\t".join((*_HEADS, *self._more)) + "\n"

    def pieces(self, event: LogEvent) -> list[Piece]:
        sockid, size = (field_of(self._layout, name) for name in ("sockid", "size"))
        found: list[Piece] = [sockid, "\t", Head(TIME), "\t", self.quote(event.name), "\t", size]
        for name in self._more:
            found += ["\t", event.find_field(name) or NOTHING]
        return [*found, "\n"]

    def quote(self, text: str) -> str:
        return for_terminal(text).replace("\t", "\\t")


def kinds_of(named: Iterable[tuple[int, str]]) -> tuple[Kind, ...]:
    """The events of a file without a header: these codes have names, others EVENT_n. UsageError."""
    names = {code: f"EVENT_{code}" for code in range(NUMBERS)}
    for code, name in named:
        names[code] = name
    if len({*names.values()}) < len(names):
        raise UsageError("two events have one name", "name each code otherwise")
    return tuple(Kind(code, name, data_of(name)) for code, name in names.items())
