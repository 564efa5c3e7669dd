# SPDX-License-Identifier: Apache-2.0
"""What the systems of 1987 and 1988 printed, from today's logs: condense, records, translate."""

from tcpkmon.formats.history.condense import condense
from tcpkmon.formats.history.condense_figure import draw_condensed
from tcpkmon.formats.history.condensed import Condensed, Device, Group, Shares, Slice, Times
from tcpkmon.formats.history.processes import NO_USER
from tcpkmon.formats.history.records_1987 import write_records_1987
from tcpkmon.formats.history.translate import Translator, words_of

__all__ = [
    "NO_USER",
    "Condensed",
    "Device",
    "Group",
    "Shares",
    "Slice",
    "Times",
    "Translator",
    "condense",
    "draw_condensed",
    "names_1988",
    "words_of",
    "write_records_1987",
]
