# SPDX-License-Identifier: Apache-2.0
"""Lines of text out of rows of bytes, as files hold them: what pmgraph -T and export print.

A Plan says of what cells a line consists; a writer of make_writer() turns Rows into text.
"""

from formats.lines.cells import Cell, Kind, Plan, Rows, Source
from formats.lines.writing import Texts, Writer, make_writer, write_pages

__all__ = [
    "Cell",
    "Kind",
    "Plan",
    "Rows",
    "Source",
    "Texts",
    "Writer",
    "make_writer",
    "write_pages",
]
