# SPDX-License-Identifier: Apache-2.0
"""Writes rows of bytes from files as lines of text, for pmgraph -T and the exports.

A Plan lists the cells of a line; a Writer turns Rows into text. A StringWriter
converts a single column, for Arrow files.
"""

from tcpkmon.formats.lines.cells import Cell, Kind, Plan, Rows, Source
from tcpkmon.formats.lines.native import Writer
from tcpkmon.formats.lines.strings import StringWriter
from tcpkmon.formats.lines.writing import Texts, write_pages

__all__ = [
    "Cell", "Kind", "Plan", "Rows", "Source", "StringWriter", "Texts", "Writer", "write_pages",
]  # fmt: skip
