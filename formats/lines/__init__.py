# SPDX-License-Identifier: Apache-2.0
"""Writes rows of bytes from files as lines of text, for pmgraph -T and the exports.

A Plan lists the cells of a line; a writer from make_writer() turns Rows into text. A StringWriter
converts a single column, for Arrow files.
"""

from tcpkmon.formats.lines.cells import Cell, Kind, Plan, Rows, Source
from tcpkmon.formats.lines.strings import StringWriter
from tcpkmon.formats.lines.writing import Texts, make_writer, write_pages

__all__ = [
    "Cell", "Kind", "Plan", "Rows", "Source", "StringWriter", "Texts", "make_writer", "write_pages",
]  # fmt: skip
