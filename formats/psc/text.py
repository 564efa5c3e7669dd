# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a PSC file as CSV or JSON lines."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from formats.base.errors import UsageError
from formats.base.escape import for_terminal
from formats.base.text import quote_csv
from formats.lines import Cell, Kind
from formats.psc.lines import number_cell, text_cell, write_entries

if TYPE_CHECKING:
    from formats.psc.entries import Entries

_TEXTS_KEPT = 1 << 16


def write_lines(
    entries: Entries,
    texts: Mapping[str, Callable[[Any], str] | None],
    form: str,
    out: BinaryIO,
) -> None:
    """Write CSV with a line of names ("csv"), or a JSON object a line ("json").

    texts: by column what shows a value as text, None for numbers and times. UsageError for another
    form.
    """
    if form not in ("csv", "json"):
        raise UsageError(f"{form} is for Klogger logs", "choose csv or json")
    is_json = form == "json"
    if not is_json:
        out.write((",".join(texts) + "\n").encode())
    cells = []
    end = ""
    for place, (name, text) in enumerate(texts.items()):
        before = end + ("," if place else "")
        if is_json:
            before = f"{before or '{'}{json.dumps(name)}:"
        end = '"' if is_json and entries.find_column(name).is_time else ""
        quote = json.dumps if is_json else _csv_text
        cells.append(_cell(entries, name, before + end, text and _quoted(text, quote)))
    after = end + ("}\n" if is_json else "\n")
    write_entries(
        entries, cells, after, lambda rows: ~entries.control_of(rows), out, with_losses=True
    )


def _cell(entries: Entries, name: str, before: str, text: Callable[[Any], str] | None) -> Cell:
    column = entries.find_column(name)
    if text is not None:
        return text_cell(entries, column, before, text)
    if column.is_time:
        return number_cell(entries, column, before, Kind.UTC, between=" ")
    return number_cell(entries, column, before)


def _quoted(text: Callable[[Any], str], quote: Callable[[str], str]) -> Callable[[Any], str]:
    return functools.lru_cache(_TEXTS_KEPT)(lambda value: quote(text(value)))


def _csv_text(text: str) -> str:
    return quote_csv(for_terminal(text))
