# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a PSC file as CSV or JSON lines, for formats.export.columns."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from formats.base.escape import for_terminal
from formats.lines import Cell, Kind
from formats.psc.lines import number_cell, text_cell, write_entries

if TYPE_CHECKING:
    from formats.export.columns import Export

_TEXTS_KEPT = 1 << 16


def write_lines(export: Export, form: str, out: BinaryIO) -> None:
    """Write CSV with a line of names ("csv"), or a JSON object a line ("json")."""
    capture = export.capture
    is_json = form == "json"
    if not is_json:
        out.write((",".join(export.names) + "\n").encode())
    cells = []
    end = ""
    for place, name in enumerate(export.names):
        before = end + ("," if place else "")
        if is_json:
            before = f"{before or '{'}{json.dumps(name)}:"
        end = '"' if is_json and capture.find_column(name).is_time else ""
        cells.append(_cell(export, name, before + end, json.dumps if is_json else _csv_text))
    after = end + ("}\n" if is_json else "\n")
    write_entries(
        capture, cells, after, lambda rows: ~capture.control_of(rows), out, with_losses=True
    )


def _cell(export: Export, name: str, before: str, quote: Callable[[str], str]) -> Cell:
    capture = export.capture
    column = capture.find_column(name)
    text = export.texts(name)
    if text is not None:
        return text_cell(capture, column, before, _quoted(text, quote))
    if column.is_time:
        return number_cell(capture, column, before, Kind.UTC, between=" ")
    return number_cell(capture, column, before)


def _quoted(text: Callable[[Any], str], quote: Callable[[str], str]) -> Callable[[Any], str]:
    return functools.lru_cache(_TEXTS_KEPT)(lambda value: quote(text(value)))


def _csv_text(text: str) -> str:
    text = for_terminal(text)
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text
